"""The secrets of the settings, wherever they stand: found by their type, so that a new one need not be listed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, Secret, SecretStr

_LEAST_PATH: Final = 20  # what is shorter may be an ordinary word


def secrets_in(value: Any) -> Iterator[str]:
    """Every secret that is set. Of an address its path too, which is what programs show of a request.

    Args:
        value: settings, a section of them, or a value.
    """
    if isinstance(value, SecretStr | Secret):
        text = str(value.get_secret_value())
        yield text
        yield from _in_address(text)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from secrets_in(getattr(value, name))
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from secrets_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from secrets_in(one)


def _in_address(text: str) -> Iterator[str]:
    if "://" not in text:
        return
    try:
        parts = urlsplit(text)
        password = parts.password
    except ValueError:
        return
    if password:
        yield password
    if len(path := parts.path.strip("/")) >= _LEAST_PATH:
        yield path
