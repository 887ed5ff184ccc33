"""A task that is moved to another time is a copy of what the tables and the log say of it."""

from scylla_spark.client.tasks.handle import TaskHandle
from scylla_spark.core.records.command import ENQUEUE, Command
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.schemas import TASKS
from tests.support.api_site import SiteConnection
from tests.support.delta_tables import append, make, task


def test_a_task_that_is_moved_keeps_what_its_first_enqueue_said(tmp_path):
    key = TaskKey(1_800_000_000_000_000, "a", "u")
    make(f"{tmp_path}/tables")
    append(f"{tmp_path}/tables", TASKS, [task(key, 1, first_offset=1, unique_open=True)])
    connection = SiteConnection(str(tmp_path))
    update = Command(ENQUEUE, key, 5, "other", unique=False)
    connection.log_reader.catch_up = lambda *_: None
    connection.log_reader.commands = lambda *_: [update]
    assert TaskHandle(connection, key).command() == update._replace(unique=True)
