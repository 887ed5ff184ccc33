"""The demo plans its times after it has measured the machine, keeps the evidence when it fails, and says that the machine is busy."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scylla_spark.errors import UnreachableError
from scylla_spark_tools.demo import show, tour
from scylla_spark_tools.demo.check import Finding


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns where temporary folders are made; each run leaves a log there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def ends(monkeypatch: pytest.MonkeyPatch, how: bool | BaseException, load: float = 0.0) -> None:
    def run_and_judge(folder: Path, limit_s: float, *, as_json: bool) -> bool:
        (folder / "demo.log").write_text("what happened")
        if isinstance(how, BaseException):
            raise how
        return how

    monkeypatch.setattr(tour, "_run_and_judge", run_and_judge)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, load, 0.0))


def run(**more: Any) -> int:
    return tour.run(as_json=True, data=None, limit_s=1, **more)


def test_nothing_is_left_of_a_run_that_held(folders, monkeypatch, capsys):
    ends(monkeypatch, True)
    assert (run(), list(folders.iterdir()), capsys.readouterr().err) == (0, [], "")


def test_the_evidence_of_a_run_that_failed_is_kept_and_named(folders, monkeypatch, capsys):
    ends(monkeypatch, False)
    assert run() == 1
    (folder,) = folders.iterdir()
    assert (folder / "demo.log").read_text() == "what happened"
    told = capsys.readouterr().err
    assert f"kept in {folder}" in told
    assert "busy" not in told


def test_the_evidence_of_a_run_that_broke_off_is_kept_and_a_busy_machine_is_named(folders, monkeypatch, capsys):
    ends(monkeypatch, UnreachableError("The broker ended."), load=40.0 * (os.cpu_count() or 1))
    with pytest.raises(UnreachableError):
        run()
    assert len(list(folders.iterdir())) == 1
    assert "this machine is busy, its load average is" in capsys.readouterr().err


def test_nothing_is_left_of_a_run_that_was_interrupted(folders, monkeypatch):
    ends(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run()
    assert list(folders.iterdir()) == []


def test_lateness_alone_is_no_fault_of_ours_on_a_busy_machine(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 13.0 * (os.cpu_count() or 1), 0.0))
    *_, last = show.told([Finding("late", "", "p99 of 900 ms")])
    assert show.is_busy()
    assert last.startswith("lateness is not judged: this machine is busy, its load average is")


@pytest.mark.parametrize(("took_s", "lead_s"), [(0.1, 10), (8, 32), (30, 120), (500, 240)])
def test_the_first_task_is_due_by_how_long_a_frame_without_rows_takes(tmp_path, monkeypatch, took_s, lead_s):
    now = [0]

    class Slow:
        def __init__(self, *_: object) -> None:
            pass

        def __enter__(self) -> Slow:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def warm_up(self) -> None:
            now[0] += int(took_s * 1e6)

    monkeypatch.setattr(tour, "Sender", Slow)
    monkeypatch.setattr(tour, "boot_us", lambda: now[0])
    one = tour._Tour(tmp_path, SimpleNamespace(at=lambda phase: None), 0, 600)
    assert one._lead_us(SimpleNamespace(settings=None, spark=object())) == lead_s * 1_000_000
