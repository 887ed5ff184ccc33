"""Looks at watched topics in a thread of its own, so that silent brokers never keep the planner from planning."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final

from kafka.errors import KafkaError

from scylla_spark.clock import boot_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.plan.planner import Planner
from scylla_spark.core.plan.state.schedule_entry import Handed
from scylla_spark.core.plan.tables.watch import Place, TableWatch, Wanted
from scylla_spark.core.plan.topics.growth import (
    Span,
    TopicGrowth,
    TopicOffsets,
    growth_of,
    handed_at,
    is_replaced,
    position_of,
    rewound,
    spans_after,
)
from scylla_spark.core.plan.triggers.trigger import OnTopic
from scylla_spark.errors import ArgumentError, SchedulerError
from scylla_spark.io.kafka.topic_offsets import MISSING, UNREACHABLE, TopicTrouble, WatchedTopics, trouble_of
from scylla_spark.io.kafka.topic_sizes import Sized, TopicSizes
from scylla_spark.log import get_logger
from scylla_spark.topic_names import WatchableTopics

log = get_logger("plan")

SILENT_US: Final = 30_000_000  # brokers that do not answer for less are not reported: the planner cannot write either
AGAIN_US: Final = 5_000_000  # after which more of what a job claims already is told


def watchable_topics(settings: Settings) -> WatchableTopics:
    """Returns which topics triggers may watch."""
    return WatchableTopics(settings.topics.names, settings.plan.allowed_topics)


@dataclass(slots=True)
class _Look:
    """One leaf's view of its topic.

    Attributes:
        handed: what runs have.
        sized: partition → bytes of what has come since.
        told: what was told of it last, and when (boot clock).
    """

    handed: Handed
    sized: dict[int, Sized] = field(default_factory=dict)
    told: tuple[TopicGrowth, int] | None = None


class TopicWatcher:
    """Polls topics and tells the planner what has come.

    Args:
        settings: `plan` and the broker's address.
    """

    def __init__(self, settings: Settings) -> None:
        self._every_s = settings.plan.poll.total_seconds()
        self._allowed = watchable_topics(settings)
        self._topics = WatchedTopics(settings)
        self._sizes = TopicSizes(settings)
        self._watched: Mapping[Place, Wanted] = {}  # as the planner said, with tables
        self._wanted: dict[Place, tuple[OnTopic, Handed | None]] = {}
        self._looks: dict[Place, _Look] = {}
        self._silent_since: dict[str, int] = {}  # topic → boot clock
        self._found: SimpleQueue[tuple[str, Callable[[TableWatch], None]]] = SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topic-watcher", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """Ends looking; a question that hangs ends by itself."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=2)

    def exchange(self, planner: Planner, now: int) -> None:
        """Tells the planner what was found, and takes what it wants to be watched; called by the planner's thread."""
        try:
            while True:
                name, tell = self._found.get_nowait()
                planner.looked(name, tell, now)
        except Empty:
            pass
        if (watched := planner.watched()) is not self._watched:
            self._watched = watched
            self._wanted = {
                place: (one.trigger, one.handed) for place, one in watched.items() if isinstance(one.trigger, OnTopic)
            }

    # -- in the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._every_s):
                self._looks = {place: look for place, look in self._looks.items() if place in self._wanted}
                if wanted := self._wanted:
                    self.look(wanted)
        finally:
            self._topics.close()
            self._sizes.close()

    def look(self, wanted: Mapping[Place, tuple[OnTopic, Handed | None]]) -> None:
        """Looks at all topics once.

        Args:
            wanted: leaf → its trigger, and what was handed over.
        """
        names = {trigger.topic for trigger, _ in wanted.values()}
        try:
            found = self._topics.look(names)
        except (KafkaError, SchedulerError) as error:
            found = {name: trouble_of(name, error) for name in names}
            self._topics.close()
        for name in names:
            if not _is_silent(found.get(name)):
                self._silent_since.pop(name, None)
        for place, (trigger, handed) in wanted.items():
            if self._stop.is_set():
                return
            try:
                self._look_at(place, trigger, handed, found.get(trigger.topic))
            except (KafkaError, SchedulerError) as error:
                self._trouble(place, trigger.topic, trouble_of(trigger.topic, error))
                self._sizes.close()
            except Exception:  # a defect of ours; other topics are watched on
                log.exception("a look at a topic failed", topic=trigger.topic)

    def _look_at(
        self, place: Place, trigger: OnTopic, handed: Handed | None, found: TopicOffsets | TopicTrouble | None
    ) -> None:
        try:
            self._allowed.check(trigger.topic)  # settings may have changed since the schedule was put
        except ArgumentError as error:
            found = TopicTrouble("unsuitable", str(error))
        if found is None:
            found = TopicTrouble(MISSING, f"There is no topic {trigger.topic!r}.")
        if isinstance(found, TopicTrouble):
            self._trouble(place, trigger.topic, found)
            if found.kind == MISSING and handed is None:
                self._begin(place, Handed("", 0))  # all that comes to it will count
        elif handed is None:
            begins = found.firsts if trigger.start == "earliest" else found.ends
            self._begin(place, handed_at(found, begins))
        elif resume := _moved(trigger.topic, handed, found):
            self._looks.pop(place, None)
            self._put(place, *resume)
        else:
            self._tell_growth(place, trigger, handed, found)

    def _tell_growth(self, place: Place, trigger: OnTopic, handed: Handed, found: TopicOffsets) -> None:
        look = self._looks.get(place)
        if look is None or look.handed != handed:
            self._looks[place] = look = _Look(handed)
        spans = spans_after(handed, found)
        if not spans or (handed.at_us and handed.at_us + trigger.throttle_us > now_us()):
            return
        size = self._size(trigger.topic, look, spans) if trigger.bytes else 0
        last_us = handed.at_us or place.token[1]  # before the first run: since the schedule was put
        is_overdue = 0 < trigger.overdue_us <= now_us() - last_us
        growth = growth_of(trigger, handed, found.topic_id, spans, size, is_overdue=is_overdue)
        if growth is None or not _is_news(growth, look.told):
            return
        look.told = growth, boot_us()
        if growth.lost:
            self._put(place, TopicTrouble("truncated", _lost_words(trigger.topic, handed, spans)), None)
        self._found.put((place.name, lambda tables: tables.grew(place, growth, now_us())))

    def _size(self, topic: str, look: _Look, spans: Mapping[int, Span]) -> int:
        """Bytes of what has come, of which only what was not counted before is asked for."""
        known = {number: sized for number, sized in look.sized.items() if sized.begin == spans[number].begin}
        wanted = {
            number: (known[number].end if number in known else span.begin, span.end) for number, span in spans.items()
        }
        asked = {number: wide for number, wide in wanted.items() if wide[0] < wide[1]}
        for number, more in (self._sizes.of(topic, asked) if asked else {}).items():
            before = known.get(number, Sized(spans[number].begin, more.begin, 0))
            known[number] = Sized(before.begin, more.end, before.size + more.size)
        look.sized = known
        return sum(sized.size for sized in known.values())

    def _begin(self, place: Place, handed: Handed) -> None:
        self._found.put(
            (place.name, lambda tables: tables.begins(place, handed.table_id, handed.version, handed.parts))
        )

    def _trouble(self, place: Place, topic: str, trouble: TopicTrouble) -> None:
        if _is_silent(trouble):
            since = self._silent_since.setdefault(topic, boot_us())
            if boot_us() < since + SILENT_US:
                return
        self._put(place, trouble, None)

    def _put(self, place: Place, trouble: TopicTrouble, resume: Handed | None) -> None:
        self._found.put((place.name, lambda tables: tables.trouble(place, trouble.kind, trouble.why, resume, now_us())))


def _is_silent(found: TopicOffsets | TopicTrouble | None) -> bool:
    return isinstance(found, TopicTrouble) and found.kind == UNREACHABLE


def _is_news(growth: TopicGrowth, told: tuple[TopicGrowth, int] | None) -> bool:
    """Returns True if the planner must know: at once of the first growth and of lost records, later of what only adds to it."""
    if told is None:
        return True
    before, told_us = told
    if growth.lost > before.lost:
        return True
    return growth.to_version > before.to_version and boot_us() >= told_us + AGAIN_US


def _moved(topic: str, handed: Handed, found: TopicOffsets) -> tuple[TopicTrouble, Handed] | None:
    """Returns the trouble of a topic whose offsets began anew, and where to go on; None: they go on as before."""
    if is_replaced(handed, found):
        why = f"Another topic has the name {topic!r}: its id is {found.topic_id}, it was {handed.table_id}."
        return TopicTrouble("replaced", why), Handed(found.topic_id, 0)
    back = rewound(handed, found)
    if not back:
        return None
    number, (end, position) = min(back.items())
    why = f"Partition {number} of the topic {topic!r} ends at offset {end}; runs had all before {position}."
    positions = {one: min(position_of(handed, one), found.ends[one]) for one in found.ends}
    return TopicTrouble("rewound", why), handed_at(found, positions)


def _lost_words(topic: str, handed: Handed, spans: Mapping[int, Span]) -> str:
    number, span = next((number, span) for number, span in sorted(spans.items()) if span.lost)
    lost = sum(one.lost for one in spans.values())
    return (
        f"{lost} offsets of the topic {topic!r} were deleted before they were run; in partition {number} those from "
        f"{position_of(handed, number)} to {span.begin - 1}"
    )
