"""What is told: occurrences as messages show them, and the task that carries a message to its channel."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from scylla_spark.clock import iso
from scylla_spark.core.notifications.error_fingerprint import fingerprint_of
from scylla_spark.core.notifications.proof import PROOF, proof_of
from scylla_spark.core.plan.state.schedule_entry import Entry, Run
from scylla_spark.core.records.bounded_text import cut
from scylla_spark.core.records.command import ENQUEUE, Command, WireRetry, payload_text
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.defaults import NOTIFY_HANDLER, NOTIFY_QUEUE
from scylla_spark.definitions.notification_rule import ALIVE, NotificationRule

VERSION: Final = 1
LANES: Final = "notify/"
"""How the ordering ids of notifications begin; the name of the channel follows."""
NOTICES: Final = "notice/"
"""How their uniqueness keys begin."""
FIRST: Final = "first"
REPEATED: Final = "repeated"
RESOLVED: Final = "resolved"
TEST: Final = "test"
_ONCE: Final = WireRetry(0, 1_000, 1_000)
_MOST_MESSAGE_BYTES: Final = 2_048
_MOST_KIND_BYTES: Final = 256


class Channel(NamedTuple):
    """What the planner knows of a channel: where a task must go so that it reaches it.

    Attributes:
        handler: of the task.
        queue: of the task.
        tasks: tasks may name the channel.
    """

    handler: str = NOTIFY_HANDLER
    queue: str = NOTIFY_QUEUE
    tasks: bool = False


class Channels(NamedTuple):
    """What the planner knows of the settings of notifications.

    Attributes:
        known: name → channel.
        public_url: where people reach the HTTP API; empty: messages hold no links.
        key: proves to dispatchers that the planner has written a message; empty: they send none.
    """

    known: Mapping[str, Channel] = {}
    public_url: str = ""
    key: bytes = b""


class Concern(NamedTuple):
    """The work that something is about, as rules choose by it.

    Attributes:
        queue: empty: unknown.
        handler: likewise.
        schedule: whose run it is; empty: of none.
        tags: of that schedule, and of the task.
    """

    queue: str = ""
    handler: str = ""
    schedule: str = ""
    tags: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """Returns what is well again when some of it succeeds: a schedule, or a handler in a queue."""
        return f"schedule {self.schedule}" if self.schedule else f"{self.queue} {self.handler}"


class Occurrence(NamedTuple):
    """Something that a rule tells of.

    Attributes:
        event: what, such as "failed".
        subject: the work.
        at_us: when, microseconds since the epoch.
        sample: for messages, JSON values.
        kind: of the error, which the fingerprint is made of.
        message: likewise.
    """

    event: str
    subject: str
    at_us: int
    sample: Mapping[str, Any]
    kind: str = ""
    message: str = ""

    @property
    def fingerprint(self) -> str:
        """The same for what one message is enough for."""
        return fingerprint_of(self.event, self.subject, self.kind, self.message)


def is_notice(key: TaskKey) -> bool:
    """Returns True if a task is a notification, of whose failure nobody is notified."""
    return key.ordering_id.startswith(LANES) and key.uniqueness_key.startswith(NOTICES)


def concern_of(fact: Fact, entry: Entry | None) -> Concern:
    """The work that a task was.

    Args:
        fact: that it has ended.
        entry: the schedule whose run it was.
    """
    queue, handler = fact.queue or "", fact.handler or ""
    if entry is None:
        return Concern(queue, handler, tags=fact.tags or ())
    found = of_entry(entry)
    tags = tuple(dict.fromkeys((*found.tags, *(fact.tags or ()))))
    return found._replace(queue=queue or found.queue, handler=handler or found.handler, tags=tags)


def of_entry(entry: Entry) -> Concern:
    """The work that a schedule launches."""
    schedule = entry.schedule
    return Concern(schedule.work.queue, entry.handler, entry.name, schedule.tags)


def of_end(event: str, fact: Fact, concern: Concern, run: Run | None) -> Occurrence:
    """The end of a task.

    Args:
        event: what a rule calls that, such as "failed".
        fact: that it has ended.
        concern: the work that it was.
        run: of a schedule, that it was.
    """
    failure = fact.failure
    kind, message = (failure.kind, failure.message) if failure is not None else ("", "")
    sample: dict[str, Any] = {
        "key": str(fact.key),
        "queue": concern.queue,
        "handler": concern.handler,
        "schedule": concern.schedule,
        "planned": iso(run.planned_us) if run is not None else None,
        "status": fact.outcome,
        "attempts": fact.attempt,
        "started": iso(fact.started_us) if fact.started_us else None,
        "ended": iso(fact.finished_us),
    }
    sample = {name: value for name, value in sample.items() if value not in (None, "")}
    time_us, ordering_id, uniqueness_key = fact.key
    sample["task"] = {"scheduledTime": iso(time_us), "orderingId": ordering_id, "uniquenessKey": uniqueness_key}
    if failure is not None:
        sample["error"] = {"kind": cut(kind, _MOST_KIND_BYTES), "message": cut(message, _MOST_MESSAGE_BYTES)}
    return Occurrence(event, concern.subject, fact.finished_us, sample, kind, message)


def of_schedule(event: str, entry: Entry, why: str, at_us: int, planned_us: int = 0) -> Occurrence:
    """Something about a schedule.

    Args:
        event: such as "missed".
        entry: the schedule.
        why: for people.
        at_us: when it was decided.
        planned_us: the time that it is about; 0: none.
    """
    sample = {"schedule": entry.name, "handler": entry.handler, "status": event, "why": cut(why, _MOST_MESSAGE_BYTES)}
    if planned_us:
        sample["planned"] = iso(planned_us)
    return Occurrence(event, of_entry(entry).subject, at_us, sample, "", why)


class Message(NamedTuple):
    """One message of a rule.

    Attributes:
        notice: "first", "repeated", "resolved", "test" or "alive".
        event: what the rule tells of.
        fingerprint: of what has happened.
        number: of the message about it, from 1.
        sample: what has happened, as the first time.
        times: how often since the last message.
        since_us: when it happened first.
    """

    notice: str
    event: str
    fingerprint: str
    number: int
    sample: Mapping[str, Any]
    times: int
    since_us: int


def task_of(message: Message, rule: NotificationRule, channels: Channels, now: int) -> Command:
    """The task that carries a message; the same for the same message, whenever it is made.

    Args:
        message: what is told.
        rule: that wants it told.
        channels: of the settings; one that they have no more gets a task that fails and says so.
        now: when it was decided, microseconds since the epoch.
    """
    channel = channels.known.get(rule.channel, Channel())
    unique = f"{NOTICES}{rule.name}/{message.fingerprint}/{message.number}"
    key = TaskKey(now, LANES + rule.channel, unique)
    told = sha256(str(key).encode()).hexdigest()[:32]
    payload: dict[str, Any] = {
        "version": VERSION,
        "id": f"msg_{told}",
        "rule": rule.name,
        "channel": rule.channel,
        "event": message.event,
        "notice": message.notice,
        "count": message.times,
        "since": iso(message.since_us),
        "at": iso(now),
        "dedupKey": f"{rule.name}/{message.fingerprint}",
        **message.sample,
    }
    if rule.description:
        payload["description"] = rule.description
    if channels.public_url and "task" in message.sample:
        path = ",".join(quote(part, safe=":") for part in message.sample["task"].values())
        payload["link"] = f"{channels.public_url.rstrip('/')}/v1/tasks/{path}"
    if channels.key and channel.handler == NOTIFY_HANDLER:
        payload[PROOF] = proof_of(payload, channels.key)
    retry = _ONCE if message.event == ALIVE else None  # the next one comes anyway
    return Command(ENQUEUE, key, 0, channel.handler, channel.queue, payload_text(payload), retry=retry, enqueued_us=now)
