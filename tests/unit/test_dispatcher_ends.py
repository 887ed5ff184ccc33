"""The end of a dispatcher: nobody waits for its engine, and no work that is under way keeps its process."""

import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from types import SimpleNamespace

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.services.dispatch import tasks_tail
from scylla_spark.services.dispatch.dispatcher import Dispatcher
from scylla_spark.services.dispatch.mailbox import Mailbox
from scylla_spark.services.dispatch.stepwise_work import Ask, Read, Threads
from scylla_spark.services.dispatch.tasks_tail import TasksTail, longest_drain_s
from tests.support.waiting import holds

TAIL = SimpleNamespace(failure=None, stop=lambda: None, certain_until_us=lambda: 0)
READS_FOR_EVER = """
import threading
from scylla_spark.services.dispatch.mailbox import Mailbox
from scylla_spark.services.dispatch.stepwise_work import Read, Threads
begun = threading.Event()
def work():
    yield Read(lambda: begun.set() or threading.Event().wait())
threads = Threads(Mailbox())
threads.run("scan", work())
begun.wait()
threads.stop()
"""


@pytest.mark.slow
def test_a_read_that_never_returns_keeps_no_process_from_ending():
    assert subprocess.run([sys.executable, "-c", READS_FOR_EVER], timeout=30).returncode == 0


@pytest.mark.slow
def test_whoever_asks_while_a_dispatcher_stops_or_later_is_told(tmp_path):
    dispatcher, last, told = Dispatcher(Settings(_env_file=None, data_dir=tmp_path), {}), threading.Event(), []
    goes_on = threading.Event()

    def ask():
        with pytest.raises(TimeoutError, match="has stopped"):
            dispatcher.mailbox.ask(lambda now: now, timeout_s=None)
        told.append(True)

    def last_message(_now):
        last.set()
        dispatcher._stopping.set()
        goes_on.wait(10)

    dispatcher.use(None, TAIL, TAIL)
    dispatcher._thread.start()
    dispatcher.mailbox.post(last_message)
    assert last.wait(30)
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    work = dispatcher._threads.run("scan", (Ask(lambda now: now) for _ in range(1)))
    assert holds(lambda: len(dispatcher.mailbox._asked) == 2, 5)
    threading.Timer(0.1, goes_on.set).start()
    dispatcher.stop()
    asking.join(30)
    assert told == [True]
    assert work.result(5) is None
    ask()


def test_what_has_not_begun_is_cancelled(tmp_path):
    threads, goes_on, begun = Threads(Mailbox()), threading.Event(), threading.Event()

    def work():
        yield Read(lambda: begun.set() or goes_on.wait(20))

    first, second = threads.run("scan", work()), threads.run("scan", work())
    assert begun.wait(30)
    threads.stop()
    with pytest.raises(CancelledError):
        second.result(5)
    goes_on.set()
    assert first.result(5) is None
    assert threads.run("scan", work()).cancelled()


def test_a_tail_that_stops_is_given_the_time_that_its_partitions_may_take(tmp_path, monkeypatch):
    settings = Settings(_env_file=None, data_dir=tmp_path, dispatch={"drain": "5m"})
    dispatcher = Dispatcher(settings, {})
    tail = TasksTail(settings, None, dispatcher.mailbox, dispatcher.engine, dispatcher, dict)
    given = []
    monkeypatch.setattr(tail, "_thread", SimpleNamespace(ident=1, join=lambda timeout: given.append(timeout)))
    tail.stop()
    assert given[0] > longest_drain_s(settings) > 600
    assert tasks_tail.max_poll_us(settings) > longest_drain_s(settings) * 1e6
