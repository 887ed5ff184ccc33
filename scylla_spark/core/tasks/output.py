"""Files that an attempt leaves behind: what they may be called, what is known of them, and where below a folder they lie."""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol

from scylla_spark.clock import iso
from scylla_spark.core.tasks.key import TaskKey, partition_of
from scylla_spark.errors import ArgumentError, shown

MAX_OUTPUTS: Final = 50
"""Most files of one attempt."""
MAX_OUTPUT_NAME_BYTES: Final = 200
MAX_OUTPUTS_BYTES: Final = 64 * 1024
"""Most bytes that the links of one attempt have as text."""
UNKNOWN_TYPE: Final = "application/octet-stream"
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,60}/[A-Za-z0-9!#$&^_.+-]{1,60}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES: Final = 1 << 62
_DIGEST_BYTES: Final = 16
_RULE: Final = f"A name has 1 to {MAX_OUTPUT_NAME_BYTES} bytes of UTF-8 that can be seen, without / and \\, and does not begin with a dot."
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class FilePath(Protocol):
    """The path of a file: a `pathlib.Path`, or what is like one."""

    def __fspath__(self) -> str:
        """As text."""


class OutputTerms(NamedTuple):
    """Where files are kept that attempts leave behind.

    Attributes:
        folder: absolute path.
        partitions: of the deployment.
        max_bytes: of one attempt.
        identity: of the folder (see `OutputFiles.identity`), for what may run where another one has its path; empty: it cannot.
    """

    folder: str
    partitions: int
    max_bytes: int
    identity: str = ""


class OutputLink(NamedTuple):
    """What is known of one file.

    Attributes:
        name: as the handler called it; a file name of any alphabet.
        bytes: its size.
        sha256: of its content, 64 hexadecimal digits.
        media_type: what it is said to be; nobody has looked.
    """

    name: str
    bytes: int
    sha256: str
    media_type: str = UNKNOWN_TYPE


def is_output_name(name: object) -> bool:
    """Returns True if a file may be called so: it is safe as a file name here and wherever somebody saves it."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= MAX_OUTPUT_NAME_BYTES
        and name.isprintable()  # no control characters, no lone surrogates, nothing that turns the direction of writing
        and not name.startswith(".")
        and not name.isspace()
        and "/" not in name
        and "\\" not in name
        and len(name.encode()) <= MAX_OUTPUT_NAME_BYTES
    )


def checked_output_name(name: object) -> str:
    """The name.

    Raises:
        ArgumentError: no file may be called so.
    """
    if not isinstance(name, str) or not is_output_name(name):
        raise ArgumentError(f"{shown(name)} is no name of an output.", hint=_RULE, reason="wrong_value")
    return name


def is_media_type(text: object) -> bool:
    """Returns True if a text is a media type, without parameters."""
    return isinstance(text, str) and _MEDIA_TYPE.fullmatch(text) is not None


def read_link(fields: object) -> OutputLink | None:
    """The link that a list of four fields stands for; None: it is none."""
    if type(fields) is not list or len(fields) != len(OutputLink._fields):
        return None
    name, size, sha256, media_type = fields
    if not is_output_name(name) or type(size) is not int or not 0 <= size <= _MOST_BYTES:
        return None
    if type(sha256) is not str or _SHA256.fullmatch(sha256) is None or not is_media_type(media_type):
        return None
    return OutputLink(name, size, sha256, media_type)


def links_text(links: list[OutputLink]) -> str | None:
    """The links of an attempt as they stand in its note: a JSON list of objects; None: there are none."""
    return _encode([link._asdict() for link in links]) if links else None


def read_links(text: str | None) -> tuple[OutputLink, ...]:
    """The inverse of `links_text`, of whatever text: what is no link is passed over."""
    try:
        rows: Any = json.loads(text) if text is not None and len(text) <= MAX_OUTPUTS_BYTES else []
    except (ValueError, RecursionError):
        return ()
    if type(rows) is not list:
        return ()
    found = [
        read_link([row.get(name) for name in OutputLink._fields]) for row in rows[:MAX_OUTPUTS] if type(row) is dict
    ]
    return tuple(link for link in found if link is not None)


def outputs_place(key: TaskKey, attempt: int, partitions: int) -> str:
    """Returns where the files of an attempt lie: partition/hour/digest of the key/attempt, so that whole hours can be deleted.

    Args:
        key: of the task.
        attempt: its number, from 1.
        partitions: of the deployment.
    """
    parts = list(key[1:])
    if any("," in part for part in parts):
        parts = [json.dumps(part, ensure_ascii=False) if "," in part or '"' in part else part for part in parts]
    # no other text may take its place: it is where the files of all tasks are stored
    text = f"TaskKey({iso(key.time_us)},{parts[0]},{parts[1]})"
    digest = blake2b(text.encode(errors="replace"), digest_size=_DIGEST_BYTES, person=b"ss outputs").hexdigest()
    return f"{partition_of(key.ordering_id, partitions)}/{key.hour}/{digest}/{attempt}"
