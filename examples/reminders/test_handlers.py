"""Tests of the shop: no broker, no Spark, no waiting. `pytest examples/reminders` runs them."""

import handlers
import pytest

from scylla_spark.testing import call


@pytest.fixture
def scylla_handlers():
    return [handlers]


def test_a_reminder_is_sent_when_it_is_due_however_busy_the_server_is(scylla_world):
    task = scylla_world.enqueue("remind", {"email": "a@example.org", "busy": 2}, delay="3d")
    scylla_world.advance("2d")
    assert not scylla_world.ran("remind")
    scylla_world.run_until_idle()
    assert task.result() == {"sent_to": "a@example.org"}
    assert [run.outcome for run in scylla_world.runs] == ["failed", "failed", "succeeded"]


def test_without_an_address_there_is_no_second_attempt():
    assert call(handlers.remind, {"email": ""}).outcome == "aborted"


def test_the_report_is_made_every_night(scylla_world):
    scylla_world.put_schedules(handlers.NIGHTLY)
    scylla_world.advance("7d")
    assert scylla_world.ran("report", times=7)
    assert scylla_world.runs[0].result == {"day": "2026-01-01"}
