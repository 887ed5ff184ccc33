"""A dispatcher whose scans are a reader's: a real process that runs tasks of log and tables, without a JVM and without pyspark."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import from_us, now_us
from scylla_spark.core.engine.partition import CLOCK_MARGIN_US
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.io.delta.new_tables import ensure_tables
from scylla_spark.io.host import die_with_parent
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.schemas import TASKS
from tests.support import sample_handlers
from tests.support.delta_tables import append, task
from tests.support.shared_broker import as_words, settings_on
from tests.support.slow_store import BUCKET, slow_store

ROOT = Path(__file__).parents[2]
PATIENCE = 90.0
MOST_LATE_S = 10.0  # the limit of a request to the store is twice as long
OPTIONS = ("dispatch.scan=reader", "dispatch.look_ahead=4s", "dispatch.trigger=200ms")
PROGRAM = """
import sys
from scylla_spark.processes import process_main
from scylla_spark.processes.deployment import Deployment
code = process_main.run(lambda settings: Deployment(settings, roles=["dispatch"]), None)
print({name.partition(".")[0] for name in sys.modules} & {"pyspark", "py4j", "delta"})
sys.exit(code)
"""


@pytest.fixture(scope="module")
def settings(broker, tmp_path_factory):
    settings = settings_on(broker, tmp_path_factory.mktemp("reader"), partitions=2)
    ensure_tables(settings, ensure_topics(settings), now=now_us())
    return settings


@contextmanager
def dispatching(settings, *more, **environment):
    """A process that dispatches; it does not outlive the block."""
    options = [word for text in (*OPTIONS, *more) for word in ("--set", text)]
    command = [
        *(sys.executable, "-c", PROGRAM),
        *(*as_words(settings), *options),
        *("--handlers", sample_handlers.__file__),
    ]
    process = subprocess.Popen(
        die_with_parent.command(command), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        env=os.environ | environment,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def commands_below(pid):
    """The programs of all living processes that descend from one."""
    parents, found, wanted = {}, [], {pid}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    while wanted:
        wanted = {child for child, parent in parents.items() if parent in wanted}
        for child in wanted:
            try:
                found.append(os.readlink(f"/proc/{child}/exe"))
            except OSError:
                continue
    return found


def test_it_runs_what_the_log_and_the_tables_hold_and_loads_no_spark(settings):
    with dispatching(settings) as dispatcher, Scheduler(settings) as scheduler:
        sent = scheduler.enqueue("echo", {"n": 1}, ordering_id="from-the-log")
        ready = json.loads(dispatcher.stdout.readline())
        assert (ready["ready"], ready["roles"]) == (True, ["dispatch"])
        assert sent.result(PATIENCE)["payload"] == {"n": 1}
        # its partition is taken and its tail is past offset 0 by now: only a look-ahead can find what comes into the tables
        scheduler.enqueue("echo", {"n": 2}, ordering_id="from-the-tables").result(PATIENCE)
        stored = TaskKey(now_us() + 8_000_000, "from-the-tables", "u")
        append(settings.tables_path, TASKS, [task(stored, handler="echo")])
        assert scheduler.task(stored).result(PATIENCE)["lane"] == "from-the-tables"
        assert all("java" not in program for program in commands_below(dispatcher.pid))
        dispatcher.send_signal(signal.SIGTERM)
        told = dispatcher.stdout.read()
        assert (dispatcher.wait(PATIENCE), told) == (0, "set()\n")


def test_tasks_in_memory_start_in_time_and_it_stops_while_the_store_does_not_answer(broker, tmp_path):
    settings = settings_on(broker, tmp_path, partitions=2)
    ensure_tables(settings, ensure_topics(settings), now=now_us())
    with slow_store(tmp_path) as store, Scheduler(settings) as scheduler:
        place = (f"tables.path=s3://{BUCKET}/tables", "tables.store_timeout=20s", "dispatch.look_ahead=3m")
        with dispatching(settings, *place, **store.environment) as dispatcher:
            scheduler.enqueue("echo", {"n": 0}).result(PATIENCE)
            soon = (
                now_us() + CLOCK_MARGIN_US + 6_000_000
            )  # what is due sooner after the take is looked up in the tables
            times = [soon + number * 100_000 for number in range(20)]
            sent = [scheduler.enqueue("echo", {"n": 1}, at=from_us(at), ordering_id=f"lane-{at}") for at in times]
            scheduler.enqueue("echo", {"n": 2}).result(PATIENCE)  # so all before it is in memory
            store.answer(r"\.parquet")  # the log answers, data files do not
            scheduler.enqueue(
                "echo", {"n": 9}, at=from_us(now_us() - 5_000_000), ordering_id="old"
            )  # is looked up there
            for task_sent in sent:
                task_sent.result(PATIENCE)
            delays = [
                (one.status().attempt_details[-1].started_at - one.key.scheduled_time).total_seconds() for one in sent
            ]
            assert max(delays) < MOST_LATE_S, delays
            scheduler.enqueue("echo", {"n": 3}).result(PATIENCE)  # and what comes now does not wait for the tables
            dispatcher.send_signal(signal.SIGTERM)
            assert dispatcher.wait(15) == 0
