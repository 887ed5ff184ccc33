"""What people see: progress on stderr while the demo runs, the summary on stdout at the end."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self, TextIO

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from scylla_spark.clock import boot_us
from scylla_spark.visible import visible
from scylla_spark_tools.demo import schedules
from scylla_spark_tools.demo.check import CHECKS, Finding, lateness, percentiles
from scylla_spark_tools.demo.evidence import History
from scylla_spark_tools.demo.planned_tasks import CLIENT, FOREIGN, FRAME, Plan

WIDTH: Final = 100
_SHOWN_FINDINGS: Final = 20
_BUSY_PER_CORE: Final = 2


class Display:
    """Live progress on a terminal, elsewhere a line now and then; a context manager.

    Args:
        stream: where to.

    Attributes:
        phase: what is going on; set it by `at`.
        total: how many tasks must end.
        count: how many have.
    """

    def __init__(self, stream: TextIO) -> None:
        self.phase = "starting"
        self.total: int | None = None
        self.count: Callable[[], int] = lambda: 0
        self._console = Console(file=stream)
        self._stream = stream
        self._live = self._console.is_terminal
        self._begun = boot_us()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", justify="left"),
            BarColumn(bar_width=34),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            auto_refresh=False,
            transient=True,
        )

    def __enter__(self) -> Self:
        if self._live:
            self._bar.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._live:
            self._bar.stop()

    def at(self, phase: str) -> None:
        """The next part begins."""
        self.phase = phase
        if self._live:
            self._bar.console.print(f"[dim]{self._seconds():5.1f} s[/]  {phase}", highlight=False)
        else:
            self._line()

    def _run(self) -> None:
        row = self._bar.add_task("tasks ended", total=None)
        while not self._over.wait(0.5 if self._live else 10.0):
            if self._live:
                self._bar.update(row, total=self.total, completed=self.count())
                self._bar.refresh()
            else:
                self._line()

    def _line(self) -> None:
        ended = f"; {self.count():,} of {self.total:,} tasks ended" if self.total else ""
        self._stream.write(f"demo {self._seconds():5.1f} s: {self.phase}{ended}\n")

    def _seconds(self) -> float:
        return (boot_us() - self._begun) / 1e6


def as_json(summary: dict[str, Any]) -> None:
    """The summary as the last line of stdout."""
    sys.stdout.write(json.dumps(summary) + "\n")
    sys.stdout.flush()


def told(findings: Sequence[Finding]) -> Iterable[str]:
    """The first findings as lines."""
    for finding in findings[:_SHOWN_FINDINGS]:
        yield visible(": ".join(filter(None, (finding.check, finding.key, finding.why))))
    if len(findings) > _SHOWN_FINDINGS:
        yield f"… and {len(findings) - _SHOWN_FINDINGS} more"
    if any(finding.check == "late" for finding in findings) and is_busy():
        yield f"lateness is not judged: {load()}"


def load() -> str:
    """Returns how busy this machine is, in words."""
    return f"this machine is busy, its load average is {_load():.1f} on {os.cpu_count()} cores"


def is_busy() -> bool:
    """Returns True if so much else runs on this machine that lateness says nothing about the scheduler."""
    return _load() / (os.cpu_count() or 1) > _BUSY_PER_CORE


def _load() -> float:
    """The higher one of the load averages of one minute and of five, about as long as the demo runs."""
    return max(os.getloadavg()[:2])


def as_table(
    plan: Plan, history: History, failed: set[str], findings: Sequence[Finding], numbers: dict[str, Any]
) -> None:
    """The summary for people.

    Args:
        plan: what was sent.
        history: what happened.
        failed: names of the checks that do not hold.
        findings: all findings.
        numbers: the summary.
    """
    console = Console(width=WIDTH)
    console.print()
    shown = Columns([_sent(plan), _troubles(plan), _refused(history)], padding=(0, 2))
    parts: list[RenderableType] = [shown, Text(), _checks(failed), Text(), _numbers(history, numbers)]
    verdict = "[bold green]everything held[/]" if numbers["ok"] else "[bold red]some checks failed[/]"
    style = "green" if numbers["ok"] else "red"
    console.print(Panel(Group(*parts), title=f"scylla-spark demo: {verdict}", border_style=style, padding=(1, 2)))
    for line in told(findings):
        console.print(Text(f"✗ {line}", style="red"))


def _sent(plan: Plan) -> Table:
    table = _plain("enqueued by")
    by = Counter(task.via for task in plan.tasks.values())
    for means in (FRAME, FOREIGN, CLIENT):
        table.add_row(means, f"{by[means]:,}")
    table.add_section()
    table.add_row("[bold]run by[/]", "")
    names = {"default": "local pool", "batch": "batch handler", "spark": "Spark workers"}
    for queue, count in Counter(task.row.queue for task in plan.tasks.values()).items():
        table.add_row(names[queue], f"{count:,}")
    table.add_row("[dim]lanes[/]", f"[dim]{len({key.ordering_id for key in plan.tasks}):,}[/]")
    return table


def _troubles(plan: Plan) -> Table:
    table = _plain("with trouble")
    for trouble, count in plan.shown().items():
        table.add_row(trouble, f"{count:,}")
    return table


def _refused(history: History) -> Table:
    table = _plain("refused")
    for reason, count in sorted(Counter(reject.reason for reject in history.rejects).items()):
        table.add_row(reason, f"{count:,}")
    return table


def _plain(title: str) -> Table:
    table = _bare(title)
    table.add_column()
    table.add_column(justify="right")
    return table


def _bare(title: str | None) -> Table:
    return Table(
        title=title, title_justify="left", title_style="bold", box=None, show_header=False, padding=(0, 1, 0, 0)
    )


def _checks(failed: set[str]) -> Table:
    table = _bare("checked")
    for name in CHECKS:
        table.add_row("[bold red]✗[/]" if name in failed else "[green]✓[/]", name)
    return table


def _numbers(history: History, numbers: dict[str, Any]) -> Table:
    table = _bare(None)
    counts = ("accepted", "completed", "failed", "cancelled", "rejected")
    table.add_row("[bold]tasks[/]", "  ".join(f"{numbers[name]:,} {name}" for name in counts))
    ran = Counter(run.schedule for run in history.runs)
    runs = (
        (schedules.EACH_SECOND, "each second"),
        (schedules.GROWTH, "for a table"),
        (schedules.EITHER, "for a time or that table"),
    )
    table.add_row("[bold]schedules[/]", "  ".join(f"{ran[name]:,} {when}" for name, when in runs))
    for name, on_spark in (("lateness, local pool", False), ("lateness, Spark workers", True)):
        late = lateness(history, on_spark=on_spark)
        ranks = "  ".join(f"{rank} {value:,.1f} ms" for rank, value in percentiles(late.values()).items())
        table.add_row(f"[bold]{name}[/]", f"{ranks}  [dim]of {len(late):,}[/]" if late else "none")
    table.add_row("[bold]took[/]", f"{numbers['seconds']:.0f} s")
    return table
