"""Checkpoint and tables that were restored apart: nothing is lost in silence, whichever of the two is older."""

import json
import shutil

import pytest

from scylla_spark.errors import ConfigError
from scylla_spark.io.kafka.stream_offsets import offsets_in
from scylla_spark.schemas import DEFERRED, TASKS
from tests.spark.batches import HOUR, rows, task
from tests.spark.streams import copied, ingested, sent

FAR = 10 * HOUR


def test_a_restored_older_checkpoint_loses_no_far_record(spark, settings, tmp_path):
    sent(settings, task("a", "1", 0, due=FAR))
    ingested(spark, settings)
    copied(tmp_path / "checkpoints", tmp_path / "older")
    sent(settings, task("a", "2", 1, due=FAR))
    ingested(spark, settings)
    copied(tmp_path / "older", tmp_path / "checkpoints")
    sent(settings, task("a", "3", 2, due=FAR), task("b", "1", 3))
    service = ingested(spark, settings)
    assert rows(service, DEFERRED, "uniqueness_key", "data_offset") == [("1", 0), ("2", 1), ("3", 2)]
    assert rows(service, TASKS, "ordering_id") == [("b",)]


@pytest.mark.promise
def test_restored_older_tables_stop_ingest_with_words_that_help(spark, settings, tmp_path):
    sent(settings, task("a", "1", 0))
    ingested(spark, settings)
    copied(tmp_path / "tables", tmp_path / "older")
    sent(settings, task("a", "2", 1), task("a", "3", 2, due=FAR))
    ingested(spark, settings)
    copied(tmp_path / "older", tmp_path / "tables")
    sent(settings, task("a", "4", 3))
    with pytest.raises(ConfigError, match=r"is ahead of the tables .*: 1 to 3\)") as told:
        ingested(spark, settings)
    checkpoint = tmp_path / "checkpoints/ingest-tasks"
    assert f"Delete the folder {checkpoint} " in told.value.hint
    shutil.rmtree(checkpoint)
    service = ingested(spark, settings)
    assert rows(service, TASKS, "uniqueness_key") == [("1",), ("2",), ("4",)]
    assert rows(service, DEFERRED, "uniqueness_key") == [("3",)]


def test_a_new_checkpoint_begins_where_the_tables_are(spark, settings, tmp_path):
    sent(settings, task("a", "1", 0), task("a", "2", 1))
    service = ingested(spark, settings)
    shutil.rmtree(tmp_path / "checkpoints")
    sent(settings, task("a", "3", 2))
    service = ingested(spark, settings)
    began = offsets_in((tmp_path / "checkpoints/ingest-tasks/sources/0/0").read_text(), settings.topics.tasks)
    assert max(began.values()) == 2, json.dumps(began)
    assert rows(service, TASKS, "uniqueness_key", "data_offset") == [("1", 0), ("2", 1), ("3", 2)]


def test_tables_that_are_gone_are_not_filled_from_the_middle_of_the_log(spark, settings, tmp_path):
    sent(settings, task("a", "1", 0))
    ingested(spark, settings)
    shutil.rmtree(tmp_path / "tables")
    sent(settings, task("a", "2", 1))
    with pytest.raises(ConfigError, match="is ahead of the tables"):
        ingested(spark, settings)
