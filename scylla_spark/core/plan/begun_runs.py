"""The begin of a run: schedules with a trigger on starts hear of it, once for each run, however often it is tried."""

from __future__ import annotations

from collections.abc import Mapping

from scylla_spark.clock import iso
from scylla_spark.core.plan.state.plan_log import BEGUN, Partly
from scylla_spark.core.plan.state.unwritten_changes import Journal
from scylla_spark.core.plan.triggers.observations import Occurrence
from scylla_spark.core.plan.triggers.telling import SECOND, Telling
from scylla_spark.core.plan.upstream import named, upstream_of, was_run
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.tags import MOST_TAGS
from scylla_spark.core.tasks.task import STARTED

_PLACE = SECOND * (2 + MOST_TAGS)  # greater than the places of the ends of batches


class BegunRuns:
    """Takes the first fact of a task that shows that it has begun: its start, or an end that came sooner.

    Args:
        journal: keeps which tasks have begun and not ended.
        telling: reports starts to schedules.
    """

    def __init__(self, journal: Journal, telling: Telling) -> None:
        self._journal = journal
        self._state = journal.state
        self._telling = telling

    def took(self, at: Partly, fact: Fact, resumed: Partly | None, now: int) -> None:
        """A fact was taken, with all else that follows from it.

        Args:
            at: how far the input is that says so.
            fact: a start, or the end of an attempt.
            resumed: how far the planner before us was with its input; None: through.
            now: microseconds since the epoch.
        """
        if "starts" not in self._telling.listeners and fact.key not in self._state.begun:
            return
        name, planned = self._run(fact)
        handler = self._handler(fact, name)
        both = dict.fromkeys((f"start:{name}", f"start:{handler}"))
        heard = [key for key in both if key in self._telling.listeners]
        under_way = resumed is not None and resumed[:3] == at[:3] and resumed.name.startswith(_PLACE)
        if heard and fact.started_us and (under_way or self._is_first(fact, name)):
            if not fact.terminal:
                self._journal.conclude(BEGUN, fact.key, True)
            values = self._values(fact, name, handler, planned)
            for number, key in enumerate(heard):
                also = next((one for one in heard if one != key), "")
                happened = Occurrence(key, values, ended=STARTED, also=also, at_us=fact.started_us)
                self._telling.tell(at, happened, now, _PLACE + SECOND * number, beside=number > 0)
        if fact.terminal and fact.key in self._state.begun:
            self._journal.conclude(BEGUN, fact.key, False)

    def _is_first(self, fact: Fact, name: str) -> bool:
        """Returns True if no fact before has shown that the task has begun. Of runs of schedules every fact is known."""
        return fact.key not in self._state.begun and (fact.attempt == 1 or not name)

    def _run(self, fact: Fact) -> tuple[str, str]:
        """Name of the schedule and planned time of a run; empty: the task is none."""
        return named(fact.key) if fact.key in self._state.runs or was_run(self._state, fact.key) else ("", "")

    def _handler(self, fact: Fact, name: str) -> str:
        entry = self._state.entries.get(name)
        return fact.handler or self._state.handlers.get(fact.key) or (entry.handler if entry is not None else "")

    @staticmethod
    def _values(fact: Fact, name: str, handler: str, planned: str) -> Mapping[str, object]:
        begun = fact._replace(outcome=STARTED, result=None, failure=None)
        return upstream_of(begun, name, handler, planned or iso(fact.key.time_us))
