"""Tables with a bit of everything that the dashboard shows: all states, several attempts, and names that are made to harm."""

from __future__ import annotations

from scylla_spark.clock import from_us, now_us
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.schemas import ATTEMPTS, COMPLETIONS, TASKS
from tests.support.delta_tables import append, fact, make_filled, task

MARKUP = '<img src=x onerror="document.title=1"><script>alert(1)</script>'
HOSTILE = (
    MARKUP,
    "x" * 1_024,
    "\u202eevil\u2066 \u05d0\u05d1\u05d2 abc",
    "a/b%2Fc?d=e#f&g",
    "line one\nline two\ttab",
    "{{ 7 * 7 }}{% raw %}",
    "' onfocus=alert(1) autofocus='",
    "..",
    "\u00e4 \u4e2d\u6587 \U0001f600",
)
_MINUTE = 60_000_000
_NO_ERROR = {"error_class": None, "error_message": None}


def fill(path: str, now: int | None = None) -> dict[str, TaskKey]:
    """Makes the tables; name of what a task shows → its key.

    Args:
        path: of the tables.
        now: microseconds since the epoch.
    """
    return make_filled(path, _filled, now_us() // _MINUTE * _MINUTE if now is None else now)


def _filled(path: str, now: int) -> dict[str, TaskKey]:
    keys = {
        "succeeded": TaskKey(now - 90 * _MINUTE, "cust-9", "invoice-17"),
        "failed": TaskKey(now - 60 * _MINUTE, "cust-9", "invoice-18"),
        "ready": TaskKey(now - 4 * _MINUTE, "cust-9", "invoice-19"),
        "scheduled": TaskKey(now + 30 * _MINUTE, "cust-9", "invoice-20"),
        "retrying": TaskKey(now - 10 * _MINUTE, "cust-4", "reminder-3"),
        "running": TaskKey(now - 2 * _MINUTE, "cust-5", "report-1"),
        "cancelled": TaskKey(now - 70 * _MINUTE, "cust-6", "reminder-1"),
    }
    keys |= {
        f"hostile {number}": TaskKey(now - 3 * _MINUTE - number, name, name) for number, name in enumerate(HOSTILE)
    }
    queues = {"failed": "mail", "ready": "mail", "running": "reports"}
    rows = []
    for number, (name, key) in enumerate(keys.items()):
        more = (
            {"handler": HOSTILE[int(name.split()[1])], "queue": HOSTILE[int(name.split()[1])][:200]}
            if "hostile" in name
            else {"handler": "send"}
        )
        rows.append(task(key, number, queue=queues.get(name, "default")) | more)
    rows[1] |= {"payload": '{"amount": 9007199254740993, "note": "<b>bold</b>\\u202e"}'}
    append(path, TASKS, rows)
    append(path, ATTEMPTS, [
        attempt_row(keys["failed"], 1, now - 60 * _MINUTE, 12, next_at=from_us(now - 58 * _MINUTE)),
        attempt_row(keys["failed"], 2, now - 58 * _MINUTE, 20, next_at=from_us(now - 50 * _MINUTE)),
        attempt_row(keys["retrying"], 1, now - 10 * _MINUTE, 9, next_at=from_us(now + 5 * _MINUTE)),
        attempt_row(keys["running"], 1, now - 2 * _MINUTE, None, outcome="started", **_NO_ERROR),
    ])  # fmt: skip
    too_slow = "Traceback:\n  File mail.py, line 31\nTimeoutError: too slow"
    append(path, COMPLETIONS, [
        attempt_row(keys["succeeded"], 1, now - 90 * _MINUTE, 4, outcome="succeeded", result='{"sent": true}', **_NO_ERROR),
        attempt_row(keys["failed"], 3, now - 50 * _MINUTE, 31, result=None, error_stack=too_slow),
        attempt_row(keys["cancelled"], 0, now - 70 * _MINUTE, 0, outcome="cancelled", result=None, **_NO_ERROR),
    ])  # fmt: skip
    return keys


def attempt_row(key: TaskKey, attempt: int, planned: int, seconds: float | None, **more: object) -> dict[str, object]:
    """A row of an attempt that began half a second after it was to begin.

    Args:
        key: of the task.
        attempt: its number.
        planned: when it was to begin, microseconds since the epoch.
        seconds: how long it ran; None: it still does.
        **more: other columns.
    """
    begun = planned + 500_000
    times = {
        "planned_at": from_us(planned), "started_at": from_us(begun),
        "finished_at": from_us(begun + int(seconds * 1e6)) if seconds is not None else None,
    }  # fmt: skip
    given = {
        "outcome": "failed",
        "error_class": "TimeoutError",
        "error_message": "The mail server did not answer within 30 s",
    }
    merged = given | times | more
    return fact(key, attempt, merged.pop("outcome"), 3) | merged
