"""A dispatcher with a sandboxed handler: tasks reach the sandbox and their results come back; a queue that asks for one is obeyed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scylla_spark.client.scheduler import Scheduler
from scylla_spark.clock import now_us
from scylla_spark.config.settings import Settings
from scylla_spark.errors import TaskFailed
from scylla_spark.io.delta.new_tables import ensure_tables
from scylla_spark.io.host import die_with_parent
from scylla_spark.io.host.broker import EmbeddedBroker
from scylla_spark.io.kafka.topics import ensure_topics, with_broker
from tests.isolation import attacks

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
OPTIONS = ("dispatch.scan=reader", "dispatch.spark_slots=0", "dispatch.max_retries=0", "queues.safe.isolation=sandbox")
PROGRAM = """
import sys
from scylla_spark.services import process_main
from scylla_spark.services.deployment import Deployment
sys.exit(process_main.run(lambda settings: Deployment(settings, roles=["dispatch"]), None))
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("isolated")
    with EmbeddedBroker(folder / "kafka") as broker:
        settings = with_broker(Settings(data_dir=folder, partitions=2, _env_file=None), broker.bootstrap)
        ensure_tables(settings, ensure_topics(settings), now=now_us())
        yield settings


@pytest.fixture
def dispatcher(settings):
    """The process; it does not outlive the test."""
    own = (
        f"kafka.bootstrap_servers={settings.kafka.bootstrap_servers}",
        f"data_dir={settings.data_dir}",
        "partitions=2",
    )
    options = [word for text in (*own, *OPTIONS) for word in ("--set", text)]
    command = [sys.executable, "-c", PROGRAM, *options, "--handlers", attacks.__file__]
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
