"""Every error that scylla-spark raises on purpose: one base class, a few families, and a hint that says what to do next."""

from __future__ import annotations

import reprlib
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of all processes and commands. `docs/operations.md` has the same table, with what to do."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    OUTAGE = 5
    TIMED_OUT = 6
    CONFIGURATION = 7
    DEFECT = 70
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """In words, such as "not found"."""
        return self.name.lower().replace("_", " ")


class SchedulerError(Exception):
    """Base of all errors of this package.

    Args:
        message: what went wrong, with the values that matter.
        hint: what to do next, as a full sentence; shown after the message.
        **fields: structured details, kept in `fields` for logs and JSON output.
    """

    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str = "", **fields: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields = fields

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class ArgumentError(SchedulerError, ValueError):
    """The caller passed something that cannot be accepted; nothing was stored."""

    exit_code = ExitCode.USAGE


class ConfigError(SchedulerError):
    """The settings are wrong or contradict what the deployment was made with."""

    exit_code = ExitCode.CONFIGURATION


class VersionError(ConfigError):
    """A record or table was written by a newer version of this package, and must not be passed over."""


class SetupError(SchedulerError):
    """This machine lacks something that the command needs (Java, jars, packages)."""

    exit_code = ExitCode.CONFIGURATION


class NotFoundError(SchedulerError):
    """No such task, lane, queue or handler."""

    exit_code = ExitCode.NOT_FOUND


class ConflictError(SchedulerError):
    """Another process holds the resource, or the state does not allow the request."""

    exit_code = ExitCode.CONFLICT


class UnreachableError(SchedulerError):
    """A server or process that is needed does not answer, or has ended."""

    exit_code = ExitCode.OUTAGE


class BrokerError(UnreachableError):
    """The embedded broker could not be started or has died."""


class DiskFullError(UnreachableError):
    """A disk that is needed has no space left."""


class ClockError(SchedulerError):
    """This machine's clock is wrong, or was wrong until now."""

    exit_code = ExitCode.OUTAGE


class WaitTimeoutError(SchedulerError, TimeoutError):
    """The awaited event did not happen in time; it may still happen later."""

    exit_code = ExitCode.TIMED_OUT


class TaskFailed(SchedulerError):
    """The awaited task ended other than succeeded; `fields` holds outcome, error class, message and stack."""


class Abort(Exception):
    """Raise in a handler to end the task as *aborted*, without retry.

    Args:
        reason: short machine-readable cause, kept with the completion.
    """


class Yield(Exception):
    """Raise in a handler to hand the task back to the queue; uses up no attempt.

    Args:
        after: how long to wait before the task may start again (a timedelta; default: at once).
    """

    def __init__(self, after: object = None) -> None:
        super().__init__("yielded")
        self.after = after


class RateLimited(Yield):
    """Raise in a handler when what it needs asks it to wait; the task runs again afterwards, and this uses up no attempt.

    With a key, all that share the limit wait as long: tasks that bear the key as a tag, and tasks of handlers that are registered
    with it (`rate_key`).

    Args:
        key: name of the limit, as a tag may be: `RateLimited("api.acme", retry_after="90s")`. With one argument that is `after`.
        retry_after: how long to wait (a duration, at most a day), such as what a server says in `Retry-After`.
        after: the same by the name that `Yield` has for it; without a key only this task is to wait: `RateLimited(after="90s")`.
    """

    def __init__(self, key: object = None, retry_after: object = None, *, after: object = None) -> None:
        retry_after = after if retry_after is None else retry_after
        if retry_after is None:
            key, retry_after = None, key
        super().__init__(retry_after)
        self.key = key
        self.args = ("rate limited",)


def shown(value: object) -> str:
    """A value as an error message shows it: short, however large it is."""
    try:
        return reprlib.repr(value)
    except Exception as error:  # a whole number of thousands of digits, or an object that fights back
        return f"<{type(value).__name__}: {type(error).__name__}>"
