"""YAML as its version 1.2 means it: `on` is a text and no truth, 22:30 no number of minutes, and no key may stand twice."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """The safe loader with few implicit types; what stands in `yaml_implicit_resolvers` of the other is not taken over."""

    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  as PyYAML has it

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """An object, if no key stands twice."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands there twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


@lru_cache(maxsize=1)
def loader() -> type[_Loader]:
    """The class that `yaml.load` takes."""
    for tag, pattern, first in (
        ("bool", r"true|false", "tf"),
        ("null", r"null|~|", ["n", "~", ""]),
        ("int", r"-?(0|[1-9][0-9]*)", "-0123456789"),
        ("float", r"-?(0|[1-9][0-9]*)\.[0-9]+([eE][-+]?[0-9]+)?", "-0123456789"),
    ):
        _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first))
    return _Loader
