"""A dispatcher with a sandboxed handler: tasks reach the sandbox and their results come back; a queue that asks for one is obeyed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import now_us
from scylla_spark.errors import TaskFailed
from scylla_spark.io.delta.new_tables import ensure_tables
from scylla_spark.io.host import die_with_parent
from scylla_spark.io.kafka.topic_setup import ensure_topics
from tests.isolation import attacks
from tests.support.shared_broker import as_words, settings_on

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
OPTIONS = ("dispatch.scan=reader", "dispatch.max_retries=0", "queues.safe.isolation=sandbox")
PROGRAM = """
import sys
from scylla_spark.processes import process_main
from scylla_spark.processes.deployment import Deployment
sys.exit(process_main.run(lambda settings: Deployment(settings, roles=["dispatch"]), None))
"""


@pytest.fixture(scope="module")
def settings(broker, tmp_path_factory):
    settings = settings_on(broker, tmp_path_factory.mktemp("isolated"), partitions=2)
    ensure_tables(settings, ensure_topics(settings), now=now_us())
    return settings


@pytest.fixture
def dispatcher(settings):
    """The process; it does not outlive the test."""
    options = [word for text in OPTIONS for word in ("--set", text)]
    command = [sys.executable, "-c", PROGRAM, *as_words(settings), *options, "--handlers", attacks.__file__]
    process = subprocess.Popen(
        die_with_parent.command(command), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_tasks_of_a_deployment_run_in_their_sandbox_and_elsewhere_not_at_all(settings, dispatcher):
    secret = settings.data_dir / "secret"
    secret.write_text("word")
    place = {"canary": "word", "file_in_tmp": str(secret)}
    with Scheduler(settings) as scheduler:
        seen = scheduler.enqueue("attack.look", {}, queue="safe")
        stopped = scheduler.enqueue("attack.boxed", {"attack": "reads_file_in_tmp", "place": place})
        refused = scheduler.enqueue("attack.free", {"attack": "reads_file_in_tmp", "place": place}, queue="safe")
        free = scheduler.enqueue("attack.free", {"attack": "reads_file_in_tmp", "place": place})
        assert json.loads(dispatcher.stdout.readline())["ready"]
        assert seen.result(PATIENCE)["interfaces"] == ["lo"]
        assert free.result(PATIENCE) == "word"
        with pytest.raises(TaskFailed, match="FileNotFoundError"):
            stopped.result(PATIENCE)
        with pytest.raises(TaskFailed, match="isolation_unavailable"):
            refused.result(PATIENCE)
