"""Who looks at an attempt is told how its handler was kept apart."""

import pytest

from scylla_spark.api.tasks.views import attempt_view
from scylla_spark.cli.commands import task as cli_task
from scylla_spark.core.records.fact import Fact
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.status import attempt_of


@pytest.mark.parametrize(
    ("work", "shown"), [(WorkNote(isolation="sandbox"), "sandbox"), (WorkNote(), None), (None, None)]
)
def test_the_level_of_an_attempt_is_shown_over_http_and_on_the_command_line(work, shown):
    key = TaskKey(0, "lane", "u")
    attempt = attempt_of(Fact(key, 1, "succeeded", work=work))
    assert attempt_view(key, attempt)["isolation"] == shown
    assert cli_task._attempt(attempt)["isolation"] == shown
