"""Options that are made from the fields of a definition. Its model is loaded when a command with them runs, not with the command tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, get_origin

from typer.core import TyperCommand, TyperOption

from scylla_spark.errors import ArgumentError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from scylla_spark.definitions.definition import Definition

_GIVEN: Final = "scylla_spark.given_fields"


def command_with(load: Callable[[], type[Definition]]) -> type[TyperCommand]:
    """The class of a command that has an option for every field but the name; `given_fields` returns their values.

    Args:
        load: imports the model.
    """

    class WithFields(TyperCommand):
        def get_params(self, ctx: Any) -> list[Any]:
            return [*super().get_params(ctx), *_options(load())]

        def invoke(self, ctx: Any) -> Any:
            model = load()
            given = {
                field: ctx.params.pop(field) for field in model.model_fields if field in ctx.params and field != "name"
            }
            ctx.meta[_GIVEN] = {
                field: _value(model, field, value)
                for field, value in given.items()
                if value is not None and value != ()
            }
            return super().invoke(ctx)

    return WithFields


def given_fields(ctx: Any) -> dict[str, Any]:
    """The fields that options of the command give, by their names in Python."""
    given: dict[str, Any] = ctx.meta[_GIVEN]
    return given


def _options(model: type[Definition]) -> list[TyperOption]:
    return [_option(field, info) for field, info in model.model_fields.items() if field != "name"]


def _option(field: str, info: FieldInfo) -> TyperOption:
    name, help = f"--{field.replace('_', '-')}", info.description
    if info.annotation is bool:
        return TyperOption(param_decls=[field, f"{name}/--no-{name[2:]}"], type=bool, is_flag=True, help=help)
    if not _is_many(info):
        return TyperOption(param_decls=[field, name], help=f"{help}, or none" if info.default is None else help)
    metavar = "NAME=N" if isinstance(info.default, Mapping) else None
    return TyperOption(
        param_decls=[field, name.removesuffix("s")], metavar=metavar, multiple=True, help=f"{help}; repeatable"
    )


def _is_many(info: FieldInfo) -> bool:
    return get_origin(info.annotation) in (dict, Sequence)


def _value(model: type[Definition], field: str, given: Any) -> Any:
    if isinstance(given, bool):
        return given
    if isinstance(given, str):
        return model.value_of(field, given)
    return _pairs(field, given) if isinstance(model.model_fields[field].default, Mapping) else list(given)


def _pairs(field: str, texts: Sequence[str]) -> dict[str, int]:
    found = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            found[name] = int(number)
        except ValueError:
            option = field.removesuffix("s").replace("_", "-")
            raise ArgumentError(f"--{option} {text!r} names no number.", hint=f"Write --{option} gold=10.") from None
    return found
