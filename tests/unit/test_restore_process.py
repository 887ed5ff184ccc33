"""What handlers of one process find around them: as it was before the task before, but for what all of them share."""

import gc
import json
import locale
import logging
import os
import pickle
import resource
import signal
import socket
import sys
import threading
import time
import types
import warnings

import pytest

from scylla_spark.handlers import restore_process, watched_modules
from scylla_spark.handlers.restore_process import Surroundings
from scylla_spark.handlers.shared_resources import setup


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
    home = os.environ.pop("HOME", None)
    os.chdir(tmp_path)
    tmp_path.rmdir()
    os.umask(0o123)
    assert here.restore()
    assert "TENANT" not in os.environ
    assert os.environ["PATH"] != "/nowhere"
    assert os.environ.get("HOME") == home
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


def set_alarm():
    signal.setitimer(signal.ITIMER_REAL, 60)


def lower_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))


def move_to_another_zone():
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()


LOGGER = logging.getLogger("scylla_spark.of_a_task")


def rearrange_logging():
    LOGGER.setLevel(1)
    logging.root.addHandler(logging.NullHandler())
    logging.disable(60)


CHANGES = {
    "a timer": (set_alarm, lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0),
    "a signal": (lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN), lambda: signal.getsignal(signal.SIGUSR1)),
    "the signals that are blocked": (
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]), lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    ),
    "a limit": (lower_limit, lambda: resource.getrlimit(resource.RLIMIT_NOFILE)),
    "the zone": (move_to_another_zone, lambda: (time.tzname, time.localtime(0).tm_gmtoff)),
    "the locale": (lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"), lambda: locale.setlocale(locale.LC_ALL)),
    "warnings": (lambda: warnings.simplefilter("always"), lambda: warnings.filters[:]),
    "logging": (
        rearrange_logging,
        lambda: (LOGGER.level, logging.root.handlers[:], logging.root.manager.disable),
    ),
    "the import path": (lambda: sys.path.insert(0, "/nowhere"), lambda: sys.path[:]),
    "the recursion limit": (lambda: sys.setrecursionlimit(5_000), sys.getrecursionlimit),
    "the garbage collector": (gc.disable, gc.isenabled),
    "the time-out of sockets": (lambda: socket.setdefaulttimeout(3), socket.getdefaulttimeout),
}  # fmt: skip


@pytest.fixture
def watched(here, monkeypatch):
    """The surroundings where calls of setters are noted, and modules watched, as in a child."""
    for module, names in restore_process._SETTERS.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))  # is restored when the test ends
    restore_process.note_setters()
    monkeypatch.setattr(watched_modules, "_replaced", [])
    monkeypatch.setattr(restore_process, "_touched", [False])
    return Surroundings()


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_task_changes_is_as_before_for_the_next(watched, what):
    change, read = CHANGES[what]
    before = read()
    change()
    assert read() != before
    assert watched.restore()
    assert read() == before


def test_what_is_set_behind_the_back_of_python_is_found_before_many_calls_have_passed(here):
    in_c = restore_process._signal  # as C code does, it passes the noted functions by
    in_c.signal(signal.SIGUSR1, in_c.SIG_IGN)
    assert all(here.restore() for _ in range(restore_process._SELDOM))
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_a_thread_that_goes_on_spoils_the_process(here):
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    assert not here.restore()
    go.set()
    thread.join()
    assert here.restore()


def test_connections_may_stay_open_but_not_without_end_and_ours_must_be_what_they_were(watched, tmp_path):
    def restored():
        restore_process._touched[0] = True
        return watched.restore()

    left = [os.open(tmp_path / str(number), os.O_CREAT) for number in range(10)]
    assert restored()
    many = [os.open(tmp_path / str(number), os.O_CREAT) for number in range(100)]
    assert not restored()
    for number in (*left, *many):
        os.close(number)
    assert restored()
    kept = os.dup(0)
    os.close(0)
    try:
        assert not restored()
    finally:
        os.dup2(kept, 0)
        os.close(kept)


@pytest.fixture
def module(monkeypatch):
    """A module of another package, watched."""
    made = types.ModuleType("elsewhere.parts")
    made.__file__ = "elsewhere/parts.py"
    made.load = json.loads
    monkeypatch.setattr(watched_modules, "_replaced", [])
    monkeypatch.setattr(watched_modules, "_watching", [])
    with pytest.MonkeyPatch.context() as patch:  # no other module of this process is watched
        patch.setattr(sys, "modules", {made.__name__: made})
        watched_modules.watch_modules()
    watched_modules._watching.clear()
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_a_module_of_others_that_a_task_has_patched_spoils_the_process(here, module):
    module.added = 1
    assert here.restore(), "what is new disturbs nobody"
    module.load = None
    assert not here.restore()


def test_a_package_may_keep_state_in_its_own_modules(here, module):
    exec("module.load = 1", {"__name__": "elsewhere", "module": module})
    assert here.restore()


def test_a_setup_function_may_patch_modules_set_signals_and_start_threads(watched, module):
    go = threading.Event()
    before = signal.getsignal(signal.SIGUSR1)

    @setup
    def client():
        module.load = len
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        threading.Thread(target=go.wait).start()
        yield 1

    try:
        assert client() == 1
        assert watched.restore()
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    finally:
        go.set()
        signal.signal(signal.SIGUSR1, before)


def test_a_watched_module_is_pickled_by_its_name(module):
    assert pickle.loads(pickle.dumps(module)) is module
