"""What a pool has heard of calls that run in one child: the latest word of each, and what it asks to be sent."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.follow_up import FollowUps
from scylla_spark.core.tasks.output import MAX_OUTPUTS, OutputLink, links_text
from scylla_spark.executors.local.report import Report, is_follow_up, is_output, read_follow_up, read_note, read_output
from scylla_spark.handlers.framing import ProtocolError


class Heard:
    """The notes of the calls of one child; at most one for each call that it has.

    Attributes:
        news: numbers of calls that have said something since this was looked at last.
        quiet: none of the calls that it has said anything.
    """

    __slots__ = ("_follow_ups", "_notes", "_outputs", "news", "quiet")

    def __init__(self) -> None:
        self._notes: dict[int, WorkNote] = {}
        self._follow_ups: dict[int, FollowUps] = {}
        self._outputs: dict[int, dict[str, OutputLink]] = {}
        self.news: set[int] = set()
        self.quiet = True

    def take(self, record: list[Any], calls: Container[int]) -> None:
        """A call says something; what it does not speak of stays as it was.

        Args:
            record: as the child has sent it.
            calls: those that the child has; of others nothing is kept.

        Raises:
            ProtocolError: it is not of the form that our children send.
        """
        self.quiet = False
        if is_follow_up(record):
            self._take_follow_up(record, calls)
            return
        if is_output(record):
            self._take_output(record, calls)
            return
        number, note = read_note(record)
        if number not in calls:
            return
        self._notes[number] = self._notes.get(number, WorkNote()).then(note)
        self.news.add(number)

    def _take_follow_up(self, record: list[Any], calls: Container[int]) -> None:
        number, one = read_follow_up(record)
        if number in calls and not self._follow_ups.setdefault(number, FollowUps()).add(one):
            raise ProtocolError("more follow-ups than a call may have")

    def _take_output(self, record: list[Any], calls: Container[int]) -> None:
        number, link = read_output(record)
        if number not in calls:
            return
        links = self._outputs.setdefault(number, {})
        links[link.name] = link
        if len(links) > MAX_OUTPUTS:
            raise ProtocolError("more outputs than a call may have")
        before = self._notes.get(number, WorkNote())
        self._notes[number] = before._replace(outputs=links_text(list(links.values())))
        self.news.add(number)

    def with_report(self, report: Report) -> Report:
        """A report of a call, with all that the call has said before; nothing of it is kept."""
        if self.quiet:
            return report
        note, asked = self.pop(report.number), self._follow_ups.pop(report.number, None)
        self.quiet = not (self._notes or self._follow_ups)
        if note is None and asked is None:
            return report
        return report._replace(work=note, follow_ups=asked.all() if asked is not None else ())

    def of(self, number: int) -> WorkNote | None:
        """Returns what a call has said."""
        return self._notes.get(number)

    def pop(self, number: int) -> WorkNote | None:
        """Returns what a call has said, for the last time."""
        if not self._notes:
            return None
        self.news.discard(number)
        self._outputs.pop(number, None)
        return self._notes.pop(number, None)

    def take_news(self) -> dict[int, WorkNote]:
        """Number → note, of the calls that have said something since the last time."""
        found = {number: self._notes[number] for number in self.news}
        self.news.clear()
        return found
