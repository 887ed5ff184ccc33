"""A fleet of workers of a benchmark that hold many leases each: a few threads speak for all of them, and keep every lease alive."""

from __future__ import annotations

import random
import threading
from http.client import HTTPConnection
from typing import Any, Final
from urllib.parse import urlsplit

from scylla_spark.clock import boot_us
from scylla_spark.config.settings import Settings
from scylla_spark.core.leases.messages import folded
from scylla_spark_tools.bench.helper_process import Channel
from scylla_spark_tools.bench.lease_workers import post

_WAIT_MS: Final = 2_000
_THREADS: Final = 8


class _Member:
    """One worker of the fleet, which is only a session and what it holds."""

    def __init__(self, name: str, most: int) -> None:
        self.name = name
        self.tokens: list[str] = []
        self.keys: list[str] = []
        self.beat_us = 1_000_000
        self.next_us = 0
        self.repeated = 0
        self._most = most
        self._sequence = 0

    def call(self, connection: HTTPConnection, queue: str) -> tuple[int, int]:
        """Its next call: it asks for what it lacks, and keeps what it has; microseconds that took, and leases that were lost."""
        self._sequence += 1
        lacks = self._most - len(self.tokens)
        body = {
            "seq": self._sequence, "session": "fleet", "held": {"count": len(self.tokens), "digest": f"{folded(self.tokens):08x}"},
            "want": [{"queue": queue, "max": lacks}] if lacks else [], "wait_ms": _WAIT_MS if lacks else 0,
        }  # fmt: skip
        begun = boot_us()
        answer = self._answer(connection, body)
        took = boot_us() - begun
        gone = set(answer["lost"])
        self.tokens = [token for token in self.tokens if token not in gone]
        for lease in answer["leases"]:
            self.tokens.append(lease["lease"])
            self.keys.append(lease["task"]["uniqueness_key"])
            self.beat_us = lease["beat_every_ms"] * 1000
        return took, len(gone)

    def _answer(self, connection: HTTPConnection, body: dict[str, Any]) -> Any:
        """The answer to a call, which is sent again as it is where a server has none for now, as workers do."""
        while True:
            try:
                return post(connection, f"/v1/workers/{self.name}/sync", body)
            except RuntimeError as error:
                if "503" not in str(error):
                    raise
                self.repeated += 1


class _Speaker(threading.Thread):
    """Speaks for some members, one call at a time, until it is told that it is enough."""

    def __init__(self, api: str, queue: str, members: list[_Member], ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._connection = HTTPConnection(urlsplit(api).netloc, timeout=60)
        self._queue, self._members, self._ended = queue, members, ended
        self.calls_us: list[int] = []
        self.late_us = 0
        self.lost = 0

    def lease(self) -> None:
        """Every member asks until it has what it wants, or nothing comes any more; in between those that have beat."""
        for member in self._members:
            before = -1
            while before < len(member.tokens):
                before = len(member.tokens)
                member.call(self._connection, self._queue)
            member.next_us = boot_us() + member.beat_us
            self._beat()

    def run(self) -> None:
        """Keeps all leases alive."""
        rng = random.Random(len(self._members))
        for member in self._members:  # spread over a beat, as those of workers are that started at any time
            member.next_us = min(member.next_us, boot_us() + rng.randrange(member.beat_us))
        while not self._ended.wait(0.005):
            self._beat()

    def _beat(self) -> None:
        now = boot_us()
        for member in self._members:
            if 0 < member.next_us <= now:
                self.late_us = max(self.late_us, now - member.next_us)
                took, lost = member.call(self._connection, self._queue)
                self.calls_us.append(took)
                self.lost += lost
                member.next_us = boot_us() + member.beat_us


def lease_fleet(
    channel: Channel, _settings: Settings, *, api: str, queue: str, workers: int, most: int
) -> dict[str, Any]:
    """Leases what there is, tells that, and keeps it alive until it is told to end.

    Args:
        channel: to the parent, which says when to begin and when to end.
        api: address of the API.
        queue: to lease from.
        workers: members of the fleet.
        most: leases of each.

    Returns:
        `calls_us` of the heartbeats, sorted, `late_us` of the latest of them, `lost` and `held` leases, `doubled` ones, and calls that
        were `repeated`.
    """
    members = [_Member(f"fleet-{number}", most) for number in range(workers)]
    ended = threading.Event()
    speakers = [_Speaker(api, queue, members[number::_THREADS], ended) for number in range(_THREADS)]
    channel.tell("ready")
    channel.hear()
    leasing = [threading.Thread(target=speaker.lease, daemon=True) for speaker in speakers]
    for thread in leasing:
        thread.start()
    for thread in leasing:
        thread.join()
    for speaker in speakers:
        speaker.calls_us.clear()
        speaker.start()
    channel.tell(sum(len(member.tokens) for member in members))
    channel.hear()
    ended.set()
    for speaker in speakers:
        speaker.join()
    keys = [key for member in members for key in member.keys]
    return {
        "calls_us": sorted(us for speaker in speakers for us in speaker.calls_us), "late_us": max(one.late_us for one in speakers),
        "lost": sum(speaker.lost for speaker in speakers), "held": sum(len(member.tokens) for member in members),
        "doubled": len(keys) - len(set(keys)), "repeated": sum(member.repeated for member in members),
    }  # fmt: skip
