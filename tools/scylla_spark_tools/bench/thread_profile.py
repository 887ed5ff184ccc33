"""Where the driver spends its time: CPU per thread, and what each thread was doing when looked at."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

_PERIOD_S: Final = 0.005
_SHOWN: Final = 12
_IDLE: Final = frozenset(
    {"wait", "select", "poll", "accept", "recv_into", "readinto", "get", "_wait_for_tstate_lock", "acquire"}
)


@contextmanager
def sampled(wanted: bool) -> Iterator[None]:
    """Looks at all threads every 5 ms while the block runs, and tells stderr what it saw."""
    if not wanted:
        yield
        return
    sampler = _Sampler()
    sampler.start()
    try:
        yield
    finally:
        sys.stderr.write(sampler.end())


class _Sampler(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="sampler", daemon=True)
        self._over = threading.Event()
        self._leaves: Counter[tuple[str, str]] = Counter()
        self._stacks: Counter[tuple[str, str]] = Counter()
        self._looks: Counter[str] = Counter()
        self._cpu = _thread_seconds()

    def run(self) -> None:
        while not self._over.wait(_PERIOD_S):
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the documented way
                if ident != self.ident:
                    self._look(names.get(ident, "?"), frame)

    def _look(self, thread: str, frame: FrameType) -> None:
        if frame.f_code.co_name in _IDLE:
            return
        self._looks[thread] += 1
        self._leaves[thread, _place(frame)] += 1
        seen: set[str] = set()
        walk: FrameType | None = frame
        while walk is not None:
            if "scylla_spark" in walk.f_code.co_filename:
                seen.add(_place(walk, lines=False))
            walk = walk.f_back
        self._stacks.update((thread, place) for place in seen)

    def end(self) -> str:
        """The report."""
        self._over.set()
        self.join()
        lines = ["profile: CPU seconds per thread of the driver"]
        spent = {name: seconds - self._cpu.get(name, 0.0) for name, seconds in _thread_seconds().items()}
        lines += [
            f"  {seconds:7.2f}  {name}"
            for name, seconds in sorted(spent.items(), key=lambda item: -item[1])
            if seconds > 0.02
        ]
        for title, counts in (("functions, with callees", self._stacks), ("lines", self._leaves)):
            for thread in [name for name, _ in sorted(spent.items(), key=lambda item: -item[1])][:5]:
                rows = [(place, count) for (name, place), count in counts.most_common() if name == thread][:_SHOWN]
                if rows:
                    lines.append(
                        f"profile: {thread}, {title}, share of {self._looks[thread]} looks that found it at work"
                    )
                    lines += [f"  {count / self._looks[thread]:6.1%}  {place}" for place, count in rows]
        return "\n".join(lines) + "\n"


def _place(frame: FrameType, *, lines: bool = True) -> str:
    file = "/".join(Path(frame.f_code.co_filename).parts[-2:])
    return f"{file}:{frame.f_lineno} {frame.f_code.co_qualname}" if lines else f"{file} {frame.f_code.co_qualname}"


def _thread_seconds() -> dict[str, float]:
    tick = os.sysconf("SC_CLK_TCK")
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        try:
            fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[thread.name] = found.get(thread.name, 0.0) + (int(fields[11]) + int(fields[12])) / tick
    return found
