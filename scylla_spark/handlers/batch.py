"""Batch handlers: one call for many tasks, as an Arrow table or a pandas frame.

A batch handler is given a `pyarrow.Table` (or a `pandas.DataFrame`, if its parameter is annotated so) with one row
per task:

| column | type | |
|---|---|---|
| ordering_id | string | the lane |
| uniqueness_key | string | |
| scheduled_time | timestamp[us, UTC] | planned time |
| payload | string | JSON text |
| attempt | int32 | number of this attempt, from 1 |
| epoch | int64 | fencing number of the dispatcher |
| priority | int32 | |
| queue | string | |

It returns None (all succeeded) or a table or frame with one row per task in the same order, of which these columns
are read: `outcome` (succeeded, failed or aborted; default and null: succeeded), `result` (any value that JSON can
hold) and `error` (text).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from scylla_spark.core.tasks.task import ABORTED, FAILED, SUCCEEDED, Invocation
from scylla_spark.handlers.call import OK, describe, encode_result, failed, stack_of, verdict_of
from scylla_spark.handlers.messages import Verdict
from scylla_spark.handlers.registry import Handler

_COLUMNS: Final = (
    "ordering_id", "uniqueness_key", "scheduled_time", "payload", "attempt", "epoch", "priority", "queue",
)  # fmt: skip
_WRONG: Final = "batch_result_invalid"


def call_batch(handler: Handler, tasks: list[Invocation]) -> list[Verdict]:
    """Runs one call for many tasks and returns a verdict for each, in their order.

    Args:
        handler: a handler with max_batch.
        tasks: the attempts of the call.
    """
    try:
        table = to_table(tasks)
        answer = handler.function(table.to_pandas() if handler.signature.pandas else table)
    except BaseException as error:
        return [verdict_of(error)] * len(tasks)
    if answer is None:
        return [OK] * len(tasks)
    try:
        return _verdicts(answer, len(tasks))
    except BaseException as error:
        return [failed(_WRONG, f"The returned table cannot be read. {describe(error)}", stack_of(error))] * len(tasks)


def to_table(tasks: list[Invocation]) -> Any:
    """The tasks as a pyarrow.Table with the columns of this module's documentation."""
    import pyarrow as pa

    types = {
        "scheduled_time": pa.timestamp("us", tz="UTC"),
        "attempt": pa.int32(),
        "epoch": pa.int64(),
        "priority": pa.int32(),
    }
    schema = pa.schema([(name, types.get(name, pa.string())) for name in _COLUMNS])
    cells = [
        (
            one.key.ordering_id,
            one.key.uniqueness_key,
            one.key.time_us,
            one.payload,
            one.attempt,
            one.epoch,
            one.priority,
            one.queue,
        )
        for one in tasks
    ]
    columns = zip(*cells, strict=True) if cells else [()] * len(_COLUMNS)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def _verdicts(answer: Any, expected: int) -> list[Verdict]:
    import pyarrow as pa

    if isinstance(answer, pa.RecordBatch):
        answer = pa.Table.from_batches([answer])
    column: Callable[[str], list[Any]]
    if isinstance(answer, pa.Table):
        names = answer.column_names
        column = lambda name: answer.column(name).to_pylist()  # noqa: E731
    elif type(answer).__module__.partition(".")[0] == "pandas" and hasattr(answer, "columns"):
        names = list(answer.columns)
        column = lambda name: [_plain(value) for value in answer[name].tolist()]  # noqa: E731
    else:
        message = (
            f"A batch handler must return a pyarrow.Table, a pandas.DataFrame or None, not {type(answer).__name__}."
        )
        return [failed(_WRONG, message)] * expected
    if len(answer) != expected:
        message = f"The batch had {expected} tasks, but the handler returned {len(answer)} rows. Return one for each."
        return [failed(_WRONG, message)] * expected
    nothing = [None] * expected
    outcomes, results, errors = (column(n) if n in names else nothing for n in ("outcome", "result", "error"))
    return [_verdict(*row) for row in zip(outcomes, results, errors, strict=True)]


def _verdict(outcome: object, result: object, error: object) -> Verdict:
    if outcome is None or outcome == SUCCEEDED:
        return OK if result is None else encode_result(result)
    message = "" if error is None else str(error)
    if outcome == FAILED:
        return failed("batch_row_failed", message)
    if outcome == ABORTED:
        return failed("Abort", message)._replace(outcome=ABORTED)
    return failed(_WRONG, f"The column outcome holds {outcome!r}; it may hold succeeded, failed, aborted or null.")


def _plain(value: Any) -> Any:
    """A pandas cell as plain Python: NaN, NaT and NA are nulls."""
    if value is None or value != value or type(value).__name__ == "NAType":
        return None
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value
