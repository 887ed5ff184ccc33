"""One writer of the tables at a time: by a lock file on a local disk, by a consumer group with one holder anywhere else.

The group asks nothing of the storage. Its oldest member holds all partitions of `tasks` (and reads none of them); a newcomer
holds them once the old one has left, or has been silent for a session. Before every commit the holder makes sure that its
membership was confirmed within the session, minus a margin; one that was away for longer ends, since what it has in memory
may be out of date. A process that is frozen between that check and its commit is left to the storage's own conflict check.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment
from kafka.structs import OffsetAndMetadata

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.duration import duration_ms, duration_us
from scylla_spark.errors import ConflictError
from scylla_spark.io.kafka.client_patches import Assignor, rejoining
from scylla_spark.io.kafka.topics import consumer
from scylla_spark.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger("ingest")

MARGIN_US: Final = 3_000_000
PATIENCE_S: Final = 60.0
_CONFIRM_EVERY_S = 2.0
_POLL_MS = 500
_SOON_S = 3.0  # a join takes about a second


class SingleWriter(Protocol):
    """The right to write."""

    def check(self) -> None:
        """Returns when the tables are certainly ours.

        Raises:
            ConflictError: they may have been another's meanwhile.
        """

    def release(self) -> None:
        """Gives the right back."""


def sole(spark: SparkSession, settings: Settings, patience_s: float = PATIENCE_S) -> SingleWriter:
    """Becomes the one writer of the tables.

    Args:
        spark: session whose JVM writes; it holds the lock file.
        settings: `ingest.exclusion` says by what; with the broker's address.
        patience_s: how long to wait for another member of the group to go.

    Raises:
        ConflictError: another process writes them.
    """
    folder, by = settings.tables_folder, settings.ingest.exclusion
    if folder is None or by == "group":
        group = SoleHolder(settings, "ingest", settings.topics.tasks)
        group.wait(patience_s)
        return group
    return _locked(spark, str(folder))


class _LockFile:
    """A lock file held by the JVM, which does the writing, so that it ends exactly when the writer does."""

    def __init__(self, channel: Any, lock: Any) -> None:
        self._channel = channel
        self._lock = lock

    def check(self) -> None:
        """The operating system keeps the lock."""

    def release(self) -> None:
        with contextlib.suppress(Exception):  # a JVM that has ended has given it back
            self._lock.release()
            self._channel.close()


def _locked(spark: SparkSession, path: str) -> _LockFile:
    Path(path).mkdir(parents=True, exist_ok=True)
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the only way to java.nio
    file = jvm.java.io.RandomAccessFile(str(Path(path) / ".ingest.lock"), "rw")
    channel = file.getChannel()
    try:
        lock = channel.tryLock()
    except Exception:
        lock = None
    if lock is None:
        channel.close()
        raise _taken(path)
    return _LockFile(channel, lock)


def _taken(path: str) -> ConflictError:
    return ConflictError(
        f"Another ingest writes the tables at {path}.",
        hint="One ingest application at a time: stop the other first.",
    )


class _Eldest(Assignor):
    """Gives everything to the member that has it, or else to the first."""

    name = "scylla-spark-sole"

    def assign(self, cluster: Any, members: Any) -> Any:
        """As in the base class."""
        fair = super().assign(cluster, members)  # checks the metadata and drops old claims
        claims = [member.member_id for member in members if self.parse_member_metadata(member.metadata).partitions]
        holder = min(claims or fair)
        (topic,) = {topic for member in members for topic in member.metadata.topics}
        everything = [(topic, sorted(cluster.partitions_for_topic(topic)))]
        return {
            identity: ConsumerProtocolAssignment(self.version, everything if identity == holder else [], b"")
            for identity in fair
        }


class SoleHolder:
    """Member of the group whose holder may write.

    Args:
        settings: with the broker's address.
        role: whose right it is; part of the name of the group.
        topic: whose partitions stand for the right.
    """

    def __init__(self, settings: Settings, role: str, topic: str) -> None:
        self._settings = settings
        self._role = role
        self._topic = topic
        self._certain_us = duration_us(settings.dispatch.session_timeout) - MARGIN_US
        self._confirmed_us: int | None = None  # boot clock
        self._lost: str | None = None
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sole-writer", daemon=True)
        self._thread.start()

    def wait(self, patience_s: float) -> None:
        """Returns as soon as we hold the tables.

        Raises:
            ConflictError: another member still does after `patience_s`.
        """
        with self._changed:
            held = self._changed.wait_for(lambda: self._confirmed_us is not None or self._lost, _SOON_S)
            if not held:
                log.info("waiting for another process to end", role=self._role, patience_s=patience_s)
                held = self._changed.wait_for(lambda: self._confirmed_us is not None or self._lost, patience_s)
        if not held:
            self.release()
            raise _taken(self._settings.tables_path)
        self.check()

    def held(self, patience_s: float) -> bool:
        """Returns True if we hold the right; waits for that, some time at most.

        Raises:
            ConflictError: we held it, and it may be another's now.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._confirmed_us is not None or self._lost, patience_s)
            if self._lost:
                raise ConflictError(f"The right of {self._role} is lost: {self._lost}.", hint="It is taken again.")
            return self._is_certain()

    def check(self) -> None:
        """Returns when membership is confirmed; while no broker answers, that may take as long as the broker does.

        Raises:
            ConflictError: membership was lost, so that another may have written.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._lost or self._is_certain())
            if self._lost:
                raise ConflictError(
                    f"Another ingest may have written the tables meanwhile: {self._lost}.",
                    hint="Start this one again; it goes on from where the tables are.",
                )

    def release(self) -> None:
        """Leaves the group, so that another need not wait for the session to end."""
        self._stopping.set()
        self._thread.join(timeout=15)
        self.lose("it was stopped")

    def _is_certain(self) -> bool:
        return self._confirmed_us is not None and boot_us() < self._confirmed_us + self._certain_us

    def _run(self) -> None:
        try:
            session_ms = duration_ms(self._settings.dispatch.session_timeout)
            instance = self._settings.dispatch.instance_id
            named = {"group_instance_id": f"{instance}-{self._role}"} if instance and self._role != "ingest" else {}
            member = rejoining(consumer(
                self._settings, group_id=f"{self._settings.dispatch.group_id}-{self._role}", session_timeout_ms=session_ms,
                heartbeat_interval_ms=max(session_ms // 5, 500), partition_assignment_strategy=(_Eldest,), **named,
            ))  # fmt: skip
            member.subscribe([self._topic], listener=_Listener(self, member))
            confirmed = boot_us()
            while not self._stopping.is_set():
                member.poll(timeout_ms=_POLL_MS)
                if member.assignment() and (
                    self._confirmed_us is None or boot_us() - confirmed > _CONFIRM_EVERY_S * 1e6
                ):
                    confirmed = boot_us()
                    self._confirm(member)
            member.close(autocommit=False)
        except BaseException as error:
            self.lose(repr(error))
            log.error("membership of the writers' group ended", error=repr(error))

    def _confirm(self, member: KafkaConsumer) -> None:
        """A synchronous offset commit: it fails for a generation that is gone."""
        sent = boot_us()
        try:
            member.commit({min(member.assignment()): OffsetAndMetadata(0, "", -1)}, timeout_ms=5_000)
        except (KafkaError, AssertionError) as error:
            log.warning("a right is not confirmed", role=self._role, error=repr(error))
            return
        with self._changed:
            self._confirmed_us = sent
            self._changed.notify_all()

    def lose(self, why: str) -> None:
        """We were the holder, and may not be any more."""
        with self._changed:
            self._lost = why
            self._changed.notify_all()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, sole_member: SoleHolder, member: KafkaConsumer) -> None:
        self._sole = sole_member
        self._member = member

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        for place in assigned:
            self._member.seek(place, 0)
        self._member.pause(*assigned)

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        if revoked:
            self._sole.lose("the group gave them to another member")

    def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        if lost:
            self._sole.lose("this process was silent for longer than dispatch.session_timeout")
