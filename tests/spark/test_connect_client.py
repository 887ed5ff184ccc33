"""Whatever takes a Spark session takes one of Spark Connect as well, and a session that cannot write to Kafka is told so at once."""

import json
import subprocess
import sys
from datetime import timedelta
from urllib.parse import quote

import pytest
from pyspark.sql import functions as F

from scylla_spark.client.tasks.frames import check_connector
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import SetupError
from scylla_spark.io.host.connect_server import ConnectServer
from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.io.kafka.topics import end_offsets
from scylla_spark.schemas import TASKS
from tests.support import connect_client
from tests.support.delta_tables import PARTITIONS, append, at, make, task
from tests.support.shared_broker import settings_on


@pytest.fixture
def settings(broker, tmp_path):
    make(f"{tmp_path}/tables")
    settings = settings_on(broker, tmp_path, partitions=PARTITIONS)
    ensure_topics(settings)
    return settings


@pytest.fixture
def address(spark):
    server = ConnectServer(spark)
    url, token = server.start()
    yield f"{url}/;token={quote(token, safe='')};user_id=tests"
    server.stop()


def test_a_client_works_in_a_session_of_spark_connect(spark, settings, address, tmp_path):
    append(f"{tmp_path}/tables", TASKS, [task(TaskKey(at(1), "lane", key)) for key in ("one", "two")])
    rows = str(tmp_path / "rows")
    spark.range(4).select(
        F.col("id").cast("string").alias("u"), (F.current_timestamp() + timedelta(hours=1)).alias("t")
    ).write.format("delta").save(rows)
    words = [address, settings.model_dump_json(exclude_unset=True), rows, str(tmp_path / "checkpoint")]
    done = subprocess.run(
        [sys.executable, "-m", connect_client.__name__, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    tables = {"completions": 0, "attempts": 0, "rejected": 0}
    assert told == {"plain": 3, "full": 3, "cancelled": 2, "tables": tables}
    assert sum(end_offsets(settings, settings.topics.tasks, list(range(PARTITIONS))).values()) == 3 + 3 + 2 + 4


def test_a_session_without_the_kafka_connector_is_told_what_to_add(spark, settings):
    with pytest.raises(SetupError, match="no connector for Kafka") as caught:
        check_connector(spark, settings, "avro")
    assert f"spark-sql-kafka-0-10_2.13:{spark.version}" in str(caught.value.hint)
