"""How far a handler is kept from everything else, and what it may take: the words, and how they are read. Nothing here acts.

Two levels of the local pool: `process` (the default: a child of its own per call, as the user of the dispatcher) and `sandbox`
(children in a sandbox of that handler; see `executors.local.sandbox`). Limits can be asked for at both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scylla_spark.duration import duration_ms
from scylla_spark.errors import ArgumentError, shown

PROCESS: Final = "process"
SANDBOX: Final = "sandbox"
LEVELS: Final = (PROCESS, SANDBOX)

UNAVAILABLE: Final = "isolation_unavailable"
MEMORY_EXCEEDED: Final = "memory_exceeded"
CPU_EXCEEDED: Final = "cpu_exceeded"
PROCESSES_EXCEEDED: Final = "processes_exceeded"
OPEN_FILES_EXCEEDED: Final = "open_files_exceeded"
DISK_EXCEEDED: Final = "disk_exceeded"

SANDBOX_MEMORY: Final = 1_000_000_000
SANDBOX_PROCESSES: Final = 64
SANDBOX_OPEN_FILES: Final = 256
LEAST_MEMORY: Final = 16_000_000
MOST_MEMORY: Final = 1 << 44
LEAST_OPEN_FILES: Final = 32
MOST_COUNT: Final = 1_000_000
MOST_VARIABLES: Final = 64
MOST_VARIABLE_CHARS: Final = 16 * 1024

_UNITS: Final = {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?(" + "|".join(_UNITS) + ")")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Isolation:
    """What a handler with children of its own kind asks for.

    Attributes:
        level: one of `LEVELS`.
        memory: bytes that a process of it may take beyond what its imports have taken; None: no bound.
        cpu_s: seconds of CPU that a call may take; None: no bound.
        processes: how many processes and threads its tasks may have together besides their children; only in a sandbox.
        open_files: how many descriptors a process of it may have.
        environment: variables that it gets, as pairs of name and value.
    """

    level: str = PROCESS
    memory: int | None = None
    cpu_s: int | None = None
    processes: int | None = None
    open_files: int | None = None
    environment: tuple[tuple[str, str], ...] = ()

    def told(self) -> list[Any]:
        """As JSON can hold it; `heard` is its inverse."""
        pairs = [list(pair) for pair in self.environment]
        return [self.level, self.memory, self.cpu_s, self.processes, self.open_files, pairs]

    @classmethod
    def heard(cls, fields: list[Any]) -> Isolation:
        """The inverse of `told`.

        Raises:
            TypeError: it has other fields.
            ValueError: it has another level, or variables that are no pairs.
        """
        level, memory, cpu_s, processes, open_files, pairs = fields
        if level not in LEVELS:
            raise ValueError("a level that does not exist")
        return cls(level, memory, cpu_s, processes, open_files, tuple((str(name), str(value)) for name, value in pairs))


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a handler's registration says, as it was written; see `handler_registry.handler` for each.

    Attributes:
        isolation: a level, or None.
        memory: a size, or None.
        cpu: a duration, or None.
        processes: a number, or None.
        open_files: a number, or None.
        environment: variables, or None.
    """

    isolation: object = None
    memory: object = None
    cpu: object = None
    processes: object = None
    open_files: object = None
    environment: object = None


def asked_by(name: str, wishes: Wishes) -> Isolation | None:
    """Returns what the registration of a handler asks for; None: it runs in the children that all share.

    Args:
        name: of the handler, for errors.
        wishes: as they were written.

    Raises:
        ArgumentError: one of them cannot be; the message names it.
    """
    if wishes == Wishes():
        return None
    level = PROCESS if wishes.isolation is None else wishes.isolation
    if level not in LEVELS:
        raise ArgumentError(
            f"Handler {name!r} has isolation={shown(level)}.", hint=f"Choose one of: {', '.join(LEVELS)}."
        )
    boxed = level == SANDBOX
    if wishes.processes is not None and not boxed:
        raise ArgumentError(
            f"Handler {name!r} limits its processes, and is in no sandbox.",
            hint='The kernel counts processes by user, and only a sandbox has one of its own: add isolation="sandbox".',
        )
    memory = None if wishes.memory is None else _memory(name, wishes.memory)
    cpu_s = None if wishes.cpu is None else _cpu_s(name, wishes.cpu)
    processes = _count(name, "processes", wishes.processes, 0)
    open_files = _count(name, "open_files", wishes.open_files, LEAST_OPEN_FILES)
    variables = _variables(name, wishes.environment)
    if not boxed:
        return Isolation(PROCESS, memory, cpu_s, None, open_files, variables)
    return Isolation(
        SANDBOX,
        SANDBOX_MEMORY if memory is None else memory,
        cpu_s,
        SANDBOX_PROCESSES if processes is None else processes,
        open_files or SANDBOX_OPEN_FILES,
        variables,
    )


def size_bytes(value: object) -> int:
    """Bytes of a size such as "512MB" or "1.5GiB", or of a number of bytes.

    Raises:
        ArgumentError: it is no size.
    """
    if type(value) is int and value >= 0:
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ArgumentError(f"{shown(value)} is no size.", hint='Write a number of bytes, or a text such as "512MB".')
    return round(float(found[1]) * _UNITS[found[2]])


def _memory(name: str, value: object) -> int:
    size = size_bytes(value)
    if not LEAST_MEMORY <= size <= MOST_MEMORY:
        raise ArgumentError(f"Handler {name!r} has memory={shown(value)}.", hint="Pass 16MB or more, at most 16TiB.")
    return size


def _cpu_s(name: str, value: object) -> int:
    ms = duration_ms(value)
    if ms < 1000:
        raise ArgumentError(
            f"Handler {name!r} has cpu={shown(value)}.", hint="Pass 1s or more; the kernel counts whole seconds."
        )
    return -(-ms // 1000)


def _count(name: str, what: str, value: object, least: int) -> int | None:
    if value is None:
        return None
    if not (type(value) is int and least <= value <= MOST_COUNT):
        raise ArgumentError(f"Handler {name!r} has {what}={shown(value)}.", hint=f"Pass {least} to {MOST_COUNT}.")
    return value


def _variables(name: str, value: object) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping) or not all(type(one) is str for pair in value.items() for one in pair):
        raise ArgumentError(
            f"The environment of handler {name!r} is no dict of texts.", hint='Such as {"REGION": "eu"}.'
        )
    for variable, text in value.items():
        upper = variable.upper()
        if not _VARIABLE.fullmatch(variable) or "\0" in text or upper.startswith(("SCYLLASPARK_", "LD_")):
            raise ArgumentError(
                f"Handler {name!r} cannot have the variable {shown(variable)}.",
                hint="Names have letters, digits and _; those that begin with SCYLLASPARK_ or LD_ are not for handlers.",
            )
    if len(value) > MOST_VARIABLES or sum(len(one) for pair in value.items() for one in pair) > MOST_VARIABLE_CHARS:
        raise ArgumentError(
            f"The environment of handler {name!r} is too large.",
            hint=f"Pass at most {MOST_VARIABLES} variables of {MOST_VARIABLE_CHARS} characters together.",
        )
    return tuple(sorted(value.items()))
