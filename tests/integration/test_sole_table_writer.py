"""The group whose one holder may write the tables: on a real broker, with processes that leave, die and freeze."""

import os
import signal
import subprocess
import sys

import pytest

from scylla_spark.errors import ConflictError
from scylla_spark.io.kafka.sole_table_writer import PATIENCE_S, SoleHolder
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.io.kafka.topics import admin
from tests.support.freezing import frozen
from tests.support.shared_broker import settings_on
from tests.support.waiting import eventually

HOLDER = """
import sys
from scylla_spark.config.settings import Settings
from scylla_spark.errors import ConflictError
from scylla_spark.io.kafka.sole_table_writer import SoleHolder

settings = Settings.model_validate_json(sys.argv[1])
member = SoleHolder(settings, "ingest", settings.topics.tasks)
member.wait(30)
print("answer holds", flush=True)
for line in sys.stdin:
    try:
        member.check()
        print("answer still", flush=True)
    except ConflictError as error:
        print("answer refused", flush=True)
"""


@pytest.fixture
def settings(broker, tmp_path):
    settings = settings_on(broker, tmp_path, partitions=1, dispatch={"session_timeout": "6s"})
    ensure_topics(settings)
    return settings


@pytest.fixture
def holder(settings):
    """Another process that holds the tables."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, settings.model_dump_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert answer(process) == "holds"
        yield process
    finally:
        process.kill()
        process.communicate()


def asked(process):
    process.stdin.write("?\n")
    process.stdin.flush()
    return answer(process)


def answer(process):
    """The next line of the process that is no log line."""
    return next(line.removeprefix("answer ").strip() for line in process.stdout if line.startswith("answer "))


def members(settings):
    """How many members the group has whose join has ended."""
    group = f"{settings.dispatch.group_id}-ingest"
    with admin(settings) as client:
        found = client.describe_groups([group])[group]
    return len(found["members"]) if found["group_state"] == "Stable" else 0


def test_a_newcomer_waits_until_the_holder_leaves(settings):
    first = SoleHolder(settings, "ingest", settings.topics.tasks)
    first.wait(20)
    with pytest.raises(ConflictError, match="Another ingest writes"):
        SoleHolder(settings, "ingest", settings.topics.tasks).wait(2)
    first.check()
    second = SoleHolder(settings, "ingest", settings.topics.tasks)
    first.release()
    second.wait(PATIENCE_S)
    second.check()
    with pytest.raises(ConflictError, match="stopped"):
        first.check()
    second.release()


def test_many_newcomers_leave_the_holder_alone(settings):
    first = SoleHolder(settings, "ingest", settings.topics.tasks)
    first.wait(20)
    others = [SoleHolder(settings, "ingest", settings.topics.tasks) for _ in range(3)]
    eventually(lambda: members(settings) == 4, PATIENCE_S, "all have joined", lambda: members(settings))
    first.check()
    first.release()
    eventually(lambda: any(member.held(0) for member in others), PATIENCE_S, "one of them follows")
    assert sum(member.held(1) for member in others) == 1
    for member in others:
        member.release()


def test_a_killed_holder_is_followed_after_its_session(settings, holder):
    os.kill(holder.pid, signal.SIGKILL)
    newcomer = SoleHolder(settings, "ingest", settings.topics.tasks)
    newcomer.wait(PATIENCE_S)
    newcomer.check()
    newcomer.release()


def test_a_frozen_holder_that_wakes_up_writes_no_more(settings, holder):
    assert asked(holder) == "still"
    with frozen(holder.pid):
        newcomer = SoleHolder(settings, "ingest", settings.topics.tasks)
        newcomer.wait(PATIENCE_S)
    assert asked(holder) == "refused"
    newcomer.check()
    newcomer.release()
