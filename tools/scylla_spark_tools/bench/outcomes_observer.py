"""The observer: an independent consumer of `outcomes`, in a process of its own."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kafka import TopicPartition

from scylla_spark.clock import boot_us, now_us
from scylla_spark.config.settings import Settings
from scylla_spark.io.kafka.topics import consumer
from scylla_spark_tools.bench.helper_process import Channel
from scylla_spark_tools.bench.judge import Seen, judge

_MARK = b'"succeeded"'


def facts(
    channel: Channel, settings: Settings, *, expected: int, limit_s: float, idle_s: float, keep: bool, since_us: int = 0
) -> dict[str, Any]:
    """Reads `outcomes` from the beginning until enough tasks have succeeded, and judges the facts afterwards.

    It decodes nothing while the run goes on, so that it takes little of the machine.

    Args:
        channel: hears "ready" once it reads.
        settings: with the broker's address.
        expected: completions to wait for, those of earlier runs included.
        limit_s: most seconds to wait in all.
        idle_s: seconds without any record, after the first fact, at which it gives up.
        keep: whether to return `results` of every task.
        since_us: tasks scheduled before this are not judged, microseconds since the epoch.
    """
    kept: list[Seen] = []
    count = 0
    with consumer(settings) as reader:
        places = [TopicPartition(settings.topics.outcomes, number) for number in range(settings.partitions)]
        reader.assign(places)
        for place in places:
            reader.seek(place, 0)
        channel.tell("ready")
        begun = heard = boot_us()
        while count < expected and boot_us() - begun < limit_s * 1e6:
            for place, records in reader.poll(timeout_ms=100).items():
                received, heard = now_us(), boot_us()
                kept += [Seen(place.partition, record.value, received) for record in records]
                count += sum(record.value.count(_MARK) for record in records if record.value)
            if count and boot_us() - heard > idle_s * 1e6:
                break
    verdict = judge(kept, since_us)
    if not keep:
        verdict.results = []
    return asdict(verdict)


def violations(seen: dict[str, Any]) -> int:
    """Rows out of order, overlapping or doubled, in the observer's verdict."""
    return int(seen["disorder"] + seen["overlaps"] + seen["doubled"])
