"""Workers on virtual time: leases that the engine gives, used by the same `Lease` that workers use over HTTP."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

from scylla_spark.core.leases.messages import Answer, Call, LeasedLine, Report, Sign, Want, lease_view
from scylla_spark.core.tasks.attempt_note import WorkNote, fitted_note
from scylla_spark.core.tasks.task import Failure
from scylla_spark.errors import ArgumentError, ConflictError, SchedulerError
from scylla_spark.testing.virtual_deployment import VirtualDeployment
from scylla_spark.worker.lease import Lease, Output


class VirtualWorker:
    """Asks the engine for leases, and brings it what is said of them; the `Reporter` of its leases.

    Args:
        here: has the engine, and the clock.
    """

    def __init__(self, here: VirtualDeployment) -> None:
        self._here = here
        self._numbers = count(1)

    def lease(self, queue: str, n: int, worker: str) -> list[Lease]:
        """Leases up to n tasks of a queue.

        Args:
            queue: its name.
            n: how many, at most.
            worker: who asks.

        Raises:
            ArgumentError: the queue is none whose tasks workers lease.
        """
        definition = self._here.dispatcher.queues.of(queue)
        if definition is not None and definition.mode != "pull":
            raise ArgumentError(f"Handlers run the tasks of {queue!r}.", hint='Define it with mode="pull".')
        answer, now = self._call(worker, wants=(Want(queue, n),)), self._here.now
        granted = (one._replace(until_us=max(one.until_us - now, 0)) for one in answer.leases)
        return [Lease(lease_view(one), self) for one in granted]

    # -- what leases say ------------------------------------------------------------------------------------------------

    def report(self, lease: Lease, text: str) -> None:
        """A lease ends; one without a token has, when it was handed over."""
        if not lease.token:
            return
        said = json.loads(text)
        error = said.get("error")
        failure = Failure(error["code"], error.get("description", ""), error.get("stack", "")) if error else None
        report = Report(
            lease.token, said["outcome"], _text(said.get("result")), failure, said.get("after_ms"),
            _text(said.get("checkpoint")), _text(said.get("metrics")),
        )  # fmt: skip
        lease.settle(self._call("", reports=(report,)).statuses[0])

    def output(self, lease: Lease, output: Output) -> None:
        """A file is left behind."""
        with open(output.file, "rb") as file:
            if not self._here.dispatcher.keep_output(lease.token, output, file):
                raise ArgumentError("The lease is over.")

    def sign(self, lease: Lease, **fields: str) -> None:
        """A lease goes on."""
        progress = float(fields["value"]) if "value" in fields else None
        note = fitted_note(json.loads(fields["note"])) if "note" in fields else None
        sign = Sign(lease.token, WorkNote.heard(progress, fields.get("checkpoint"), note))
        status = self._call("", signs=(sign,)).statuses[0]
        if status != "ok":
            lease.settle(status)

    def lines(self, lease: Lease, lines: Sequence[LeasedLine]) -> None:
        """Nobody tells lines here: what handlers print goes where the worker's own output goes."""

    def refuse(self) -> SchedulerError | None:
        """Nothing keeps a report from being brought here."""
        return None

    def _call(self, worker: str, **said: Any) -> Answer:
        number = next(self._numbers)
        self._here.dispatcher.call(Call(number, worker, until_us=self._here.now, **said), self._here.now)
        self._here.settle_quietly()
        answer = self._here.dispatcher.answers.pop(number, None)
        if answer is None:
            raise ConflictError("A handler asks for leases.", hint="Only the test itself may do that.")
        return answer


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value)
