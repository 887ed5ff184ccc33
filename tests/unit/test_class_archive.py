"""The archive of Spark's classes is used where it is there, and left out in silence where it is not or cannot be made."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scylla_spark.errors import SetupError
from scylla_spark.io.host import class_archive, class_archive_maker


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty jar cache."""
    monkeypatch.setenv("SCYLLASPARK_JARS_DIR", str(tmp_path))
    return tmp_path


def test_without_an_archive_the_jvm_is_told_nothing(cache):
    assert class_archive.flags() == ""


def test_an_archive_that_is_there_is_named(cache):
    archive = class_archive.place()
    archive.parent.mkdir()
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in class_archive.flags()


def test_a_path_that_cannot_stand_among_options_is_not_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SCYLLASPARK_JARS_DIR", str(tmp_path / "with space"))
    archive = class_archive.place()
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert class_archive.flags() == ""


def test_another_java_has_another_archive(cache, tmp_path, monkeypatch):
    ours = class_archive.place()
    other = tmp_path / "java" / "bin" / "java"
    other.parent.mkdir(parents=True)
    shutil.copy("/bin/true", other)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    assert class_archive.place() not in (ours, None)


def test_a_java_whose_time_of_change_lost_its_fraction_in_an_image_has_the_same_archive(cache, tmp_path, monkeypatch):
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    shutil.copy("/bin/true", java)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    os.utime(java, ns=(0, 1_700_000_000_987_654_321))
    before = class_archive.place()
    os.utime(java, ns=(0, 1_700_000_000_000_000_000))
    assert class_archive.place() == before is not None


def test_without_java_there_is_none_and_nothing_is_made(cache, monkeypatch):
    def missing():
        raise SetupError("Java was not found.")

    monkeypatch.setattr(class_archive, "find_java", missing)
    assert class_archive.place() is None
    assert (class_archive_maker.make(), class_archive.flags()) == (False, "")


def test_an_archive_that_cannot_be_made_is_done_without(cache, monkeypatch):
    def fail(*_, **__):
        raise subprocess.CalledProcessError(1, "python")

    archive = class_archive.place()
    archive.parent.mkdir()
    monkeypatch.setattr(subprocess, "run", fail)
    assert class_archive_maker.make() is False
    assert list(archive.parent.iterdir()) == []


def test_what_was_made_is_put_in_place_whole_and_only_some_are_kept(cache, monkeypatch):
    archive = class_archive.place()
    archive.parent.mkdir()
    for age in range(6):
        old = archive.with_name(f"spark-classes-{age}.jsa")
        old.touch()
        os.utime(old, (1000 - age, 1000 - age))

    def write(command, **_):
        (Path(command[-1]) / archive.name).write_text("classes")

    monkeypatch.setattr(subprocess, "run", write)
    assert class_archive_maker.make() is True
    assert archive.read_text() == "classes"
    assert {file.name for file in archive.parent.iterdir()} == {
        archive.name,
        *(f"spark-classes-{n}.jsa" for n in range(3)),
    }
