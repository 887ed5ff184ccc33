"""What handlers of one process find around them: as it was before the task before, but for what all of them share."""

import os

import pytest

from scylla_spark.executors import restore_process
from scylla_spark.executors.restore_process import Surroundings
from scylla_spark.executors.shared_resources import setup


@pytest.fixture
def here(monkeypatch, tmp_path):
    """This process's surroundings, which are as they are now when the test has ended."""
    before, folder = dict(os.environ), os.getcwd()
    monkeypatch.setattr(restore_process, "_ours", [])
    yield Surroundings()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(before)


def test_what_is_set_changed_or_taken_away_is_as_before(here, tmp_path):
    mask = os.umask(0o022)
    os.umask(mask)
    folder = os.getcwd()
    os.environ |= {"TENANT": "red", "PATH": "/nowhere"}
    os.environ.pop("HOME", None)
    home = here._variables.get(b"HOME")
    os.chdir(tmp_path)
    tmp_path.rmdir()
    os.umask(0o123)
    here.restore()
    assert "TENANT" not in os.environ
    assert os.environ["PATH"] != "/nowhere"
    assert os.environ.get("HOME", "").encode() == (home or b"")
    assert (os.getcwd(), os.umask(mask)) == (folder, mask)


def test_what_a_setup_function_sets_stays_and_what_a_handler_had_set_before_does_not(here, tmp_path):
    @setup
    def client():
        os.environ["DB_URL"] = "x"
        os.environ.pop("LANG", None)
        os.chdir(tmp_path)
        yield 1

    os.environ["TENANT"] = "red"
    assert client() == 1
    here.restore()
    assert (os.environ.get("DB_URL"), os.environ.get("TENANT"), os.getcwd()) == ("x", None, str(tmp_path))
    assert "LANG" not in os.environ
    os.environ["DB_URL"] = "mine"
    here.restore()
    assert os.environ["DB_URL"] == "x"


def test_what_pyspark_sets_changes_and_takes_back_stays_so(here):
    for value in ("1", "2", None, "3"):
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
        if value is not None:
            os.environ["SPARK_CONNECT_MODE_ENABLED"] = value
        here.restore()
        assert os.environ.get("SPARK_CONNECT_MODE_ENABLED") == value


def test_a_folder_that_is_gone_already_is_nobodys(here, tmp_path):
    gone = tmp_path / "release-41"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    Surroundings().restore()
