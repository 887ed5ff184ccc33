"""Reasons for which a record of either topic is set aside: a short stable code, and a sentence for people."""

from __future__ import annotations

import traceback
from typing import Final, NamedTuple

from pydantic import ValidationError

from scylla_spark.core.records.bounded_text import clean

DEFECT: Final = "defect"  # not the record is at fault, but our code
_MOST_CHARS: Final = 500
_MOST_STACK_CHARS: Final = 8_000
_CODES: Final = {"json_invalid": "not_json", "missing": "missing_field", "timezone_aware": "no_time_zone"}


class Reason(NamedTuple):
    """Why a record was set aside."""

    code: str
    detail: str


def said(code: str, detail: str) -> Reason:
    """A reason whose detail fits into a table, whatever the record had in it."""
    return Reason(code, clean(detail[:_MOST_CHARS]))


def of_form(error: ValidationError) -> Reason:
    """Returns what the first thing is that is wrong with a record's form; a version above ours comes before all others."""
    errors = error.errors(include_url=False, include_input=False)
    newer = [each for each in errors if each["loc"] == ("version",) and each["type"] == "less_than_equal"]
    first = (newer or errors)[0]
    place = ".".join(str(part) for part in first["loc"])
    code = "unknown_version" if newer else _CODES.get(first["type"], "wrong_value")
    return said(code, f"{place}: {first['msg'].removesuffix('.')}.".removeprefix(": "))


def for_the_sender(code: str, detail: str) -> str:
    """The sentence for whoever sent a record: without the stack of a defect, which names files of this machine."""
    return (
        "A defect of scylla-spark met this request. Its stack is in the table `rejected`." if code == DEFECT else detail
    )


def of_defect(error: Exception) -> Reason:
    """A defect of ours: the end of the stack, for a bug report."""
    stack = "".join(traceback.format_exception(error))
    return Reason(DEFECT, clean(stack[-_MOST_STACK_CHARS:]))
