"""Folders of container runners: whose they are, and that none stays when its runner is gone. Nothing here needs a podman."""

from __future__ import annotations

import fcntl
import os

import pytest

from scylla_spark.worker.containers import runner_folder as place
from scylla_spark.worker.containers.maker_identity import identity
from scylla_spark.worker.containers.podman import Podman
from scylla_spark.worker.containers.runner_folder import remove_folder, remove_left_folders, runner_folder

GONE = "999999999-1-00000000"
NO_PODMAN = Podman(("/no/such/program",), {})


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """A place of folders that no other runner of this machine uses."""
    monkeypatch.setattr(place, "_MEMORY", tmp_path)
    monkeypatch.setattr(place, "memory_folder", lambda: tmp_path)
    monkeypatch.setattr(place.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


def made(folder, name):
    inner = folder / name / "lease" / "out"
    inner.mkdir(parents=True)
    (inner / "large").write_bytes(bytes(1_000))
    return folder / name


def test_a_runner_has_a_folder_of_its_owner_that_nobody_takes_for_one_that_is_left(memory):
    with runner_folder(NO_PODMAN, identity(), in_memory=True) as first:
        with runner_folder(NO_PODMAN, identity(), in_memory=True) as second:
            assert {first, second} == set(memory.iterdir())
            assert first.stat().st_mode & 0o777 == 0o700
            assert remove_left_folders(NO_PODMAN) == []
        assert list(memory.iterdir()) == [first]
    assert list(memory.iterdir()) == []


def test_folders_of_runners_that_are_gone_are_removed_and_no_others(memory):
    gone = made(memory, f"scylla-spark-containers-{GONE}-ab_1")
    for name in (f"scylla-spark-containers-{identity()}-ab_1", "scylla-spark-containers-newer", f"other-{GONE}-a"):
        made(memory, name)
    (memory / f"scylla-spark-containers-{GONE}-file").touch()
    (memory / f"scylla-spark-containers-{GONE}-link").symlink_to(memory)
    assert remove_left_folders(NO_PODMAN) == [gone]
    assert not gone.exists()
    assert len(list(memory.iterdir())) == 5


def test_a_runner_that_cannot_be_seen_from_here_holds_its_folder_by_a_lock(memory):
    with runner_folder(NO_PODMAN, GONE, in_memory=True) as held:
        assert remove_left_folders(NO_PODMAN) == []
        assert held.exists()


def test_a_folder_of_another_user_is_none_of_ours(memory, monkeypatch):
    folder = made(memory, f"scylla-spark-containers-{GONE}-ab_1")
    monkeypatch.setattr(place.os, "geteuid", lambda: os.getuid() + 1)
    assert remove_left_folders(NO_PODMAN) == []
    assert folder.exists()


def test_where_there_are_no_locks_the_name_alone_says_that_a_runner_lives(memory, monkeypatch):
    def refused(*_):
        raise OSError("no locks")

    monkeypatch.setattr(fcntl, "flock", refused)
    with runner_folder(NO_PODMAN, identity(), in_memory=False) as folder:
        assert remove_left_folders(NO_PODMAN) == []
        assert folder.exists()


def test_what_belongs_to_a_user_of_containers_is_removed_as_root_of_their_namespace(tmp_path):
    (tmp_path / "rm").write_text("#!/bin/sh\nexit 1\n")  # as of one who may not
    podman = tmp_path / "podman"
    podman.write_text('#!/bin/sh\n[ "$1 $2" = "unshare rm" ] && shift 2 && exec /bin/rm "$@"\n')
    for program in (podman, tmp_path / "rm"):
        program.chmod(0o755)
    folder = made(tmp_path, "folder")
    remove_folder(Podman((str(podman),), {"PATH": str(tmp_path)}), folder)
    assert not folder.exists()
