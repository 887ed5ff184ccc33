"""Reads JSON values strictly: nothing is converted, nothing unknown is passed over, and what is wrong names its field."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from scylla_spark.duration import duration_us
from scylla_spark.errors import ArgumentError
from scylla_spark.name import PATTERN

Name = Annotated[str, Field(pattern=f"^{PATTERN}$")]
Text = Annotated[str, Field(max_length=1_024)]
Micros = Annotated[int, BeforeValidator(duration_us)]
STRICT: Final = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


def validated(adapter: TypeAdapter[Any], value: Any, what: str) -> Any:
    """The value, if it has the shape that it should have.

    Args:
        adapter: of the shape, which is configured as STRICT.
        value: as `json.loads` gives it.
        what: to call it by in messages.

    Raises:
        ArgumentError: it has another shape, or is no JSON value.
    """
    try:
        return adapter.validate_json(json.dumps(value))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ArgumentError(
            f"{where or what}: {first['msg']}.", hint=f"Look at {where or 'its fields'} of {what}."
        ) from error
    except (RecursionError, OverflowError, TypeError, ValueError) as error:
        raise ArgumentError(f"{what} is no JSON value, or nested too deep.") from error
