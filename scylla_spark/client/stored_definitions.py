"""Stored definitions of any kind: they are put, deleted, read from files, and shown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scylla_spark.client.schedules.files import content_of, json_value
from scylla_spark.clock import from_us
from scylla_spark.core.plan.state.stored_definition import StoredDefinition
from scylla_spark.definitions.definition import Definition
from scylla_spark.errors import ArgumentError, shown

if TYPE_CHECKING:
    from scylla_spark.client.planner_interface import PlannerLink

MAX_PART_BYTES: Final = 400 * 1024
_MOST_OF_A_PART: Final = 5_000
D = TypeVar("D", bound=Definition)


@dataclass(frozen=True)
class DefinitionStatus:
    """A definition as it is stored.

    Attributes:
        name: of what it defines.
        revision: of the definition; 0: none was put.
        author: who put it.
        changed_at: when.
        definition: as it was put, a JSON object, which `of` of its model reads.
        fields: all fields by their names in Python, defaults included.
    """

    name: str
    revision: int
    author: str
    changed_at: datetime | None
    definition: dict[str, Any]
    fields: dict[str, Any]


def stored_fields(model: type[Definition], name: str, stored: StoredDefinition) -> dict[str, Any]:
    """The fields of a `DefinitionStatus`; of a definition of a newer version `fields` are as they were put.

    Args:
        model: of the kind.
        name: of the definition.
        stored: what the planner holds of it.
    """
    definition = json.loads(stored.text)
    try:
        fields = model.of(definition).values
    except ArgumentError:
        fields = definition
    return {
        "name": name,
        "revision": stored.revision,
        "author": stored.author,
        "changed_at": from_us(stored.changed_us),
        "definition": definition,
        "fields": fields,
    }


def put(plan: PlannerLink, definitions: Sequence[Definition], author: str) -> dict[str, dict[str, Any]]:
    """Stores definitions of one kind; name → `became` and `revision`.

    Args:
        plan: asks the planner.
        definitions: each replaces the one of its name.
        author: who changes them.

    Raises:
        ArgumentError: one is refused, or two have one name.
    """
    count = Counter(one.name for one in definitions)
    twice = next((one for one in definitions if count[one.name] > 1), None)
    if twice is not None:
        raise ArgumentError(f"The {twice.noun} {twice.name!r} is defined twice.", hint="Define it once.")
    done: dict[str, dict[str, Any]] = {}
    for part in parts_of([one.definition for one in definitions]):
        word = definitions[0].word
        done |= plan.ask(f"put_{word}", author=author or None, **{f"{word}s": part}).done
    return done


def delete(
    plan: PlannerLink, model: type[Definition], names: Sequence[str], author: str, expect: int | None = None
) -> None:
    """Removes definitions of one kind.

    Args:
        plan: asks the planner.
        model: of the kind.
        names: of the definitions.
        author: who asks.
        expect: the revision that must be stored of each; None: any.

    Raises:
        NotFoundError: one of them is not stored; nothing is changed.
        ConflictError: another revision is stored than expected.
    """
    expected = None if expect is None else dict.fromkeys(names, expect)
    plan.ask(f"delete_{model.word}", names=list(names), expect=expected, author=author or None)


def read_file(path: str, model: type[D]) -> list[D]:
    """The definitions of a TOML, YAML or JSON file: `[queues.NAME]` before each, or a list `queues` of objects with a name.

    Args:
        path: of the file.
        model: of the kind; the key in the file is its plural.

    Raises:
        ArgumentError: it cannot be read, or a definition is not valid; the message names file, definition and field.
        SetupError: a package that reads the format is missing.
    """
    content, key = content_of(path), f"{model.word}s"
    values = content.get(key) if isinstance(content, Mapping) else None
    if not isinstance(values, Mapping | list) or not values:
        raise ArgumentError(
            f"{path} has no `{key}`.", hint=f"TOML: [{key}.NAME] before each; YAML: {key}: and NAME: below it."
        )
    foreign = sorted(map(str, content.keys() - {key}))
    if foreign:
        raise ArgumentError(f"{path}: there is no {foreign[0]!r} beside `{key}`.", hint=f"A file holds {key} only.")
    if isinstance(values, list):
        return [_read(path, f"number {number}", value, model) for number, value in enumerate(values, 1)]
    return [_read(path, shown(name), _named(name, value, model), model) for name, value in values.items()]


def _named(name: object, value: Any, model: type[Definition]) -> Any:
    if isinstance(value, Mapping) and "name" in value:
        raise ArgumentError(f"The {model.noun} {shown(name)} has its name already.", hint="Leave out `name`.")
    return {"name": name, **value} if isinstance(value, Mapping) else value


def _read(path: str, which: str, value: Any, model: type[D]) -> D:
    try:
        return model.of(json_value(value))
    except ArgumentError as error:
        raise ArgumentError(f"{path}, {model.noun} {which}: {error.message}", hint=error.hint) from None


def parts_of(definitions: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yields definitions in parts that fit into one record each, of at most 400 KiB and 5,000 definitions; one definition always fits."""
    part: list[dict[str, Any]] = []
    size = 0
    for definition in definitions:
        length = len(json.dumps(definition, ensure_ascii=False).encode()) + 2
        if part and (size + length > MAX_PART_BYTES or len(part) >= _MOST_OF_A_PART):
            yield part
            part, size = [], 0
        part.append(definition)
        size += length
    if part:
        yield part
