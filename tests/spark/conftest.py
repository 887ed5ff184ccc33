"""One Spark session for all tests of this folder, and fresh tables for each."""

from __future__ import annotations

import re
import shutil

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.io.host.broker import EmbeddedBroker
from scylla_spark.io.host.session import open_session
from scylla_spark.io.kafka.topics import with_broker
from scylla_spark.services.ingest.ingest import Ingest
from tests.spark.batches import PARTITIONS, TOPIC_IDS


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """The session that `up` makes for its services, on two cores of this machine."""
    session = open_session(Settings(data_dir=tmp_path_factory.mktemp("spark")), "scylla-spark tests", services=True)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def template(spark, tmp_path_factory):
    """Empty tables, made once; every test gets a copy."""
    folder = tmp_path_factory.mktemp("template")
    Ingest(spark, Settings(data_dir=folder, partitions=PARTITIONS)).open_tables(TOPIC_IDS)
    return folder


@pytest.fixture
def ingest(spark, template, tmp_path):
    """The service on tables of its own. Its queries are many and small: they run without generated code, in three quarters of the time."""
    interpreted = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    before = {name: spark.conf.get(name) for name in interpreted}
    for name, value in interpreted.items():
        spark.conf.set(name, value)
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    service = Ingest(spark, Settings(data_dir=tmp_path, partitions=PARTITIONS))
    service.open_tables(TOPIC_IDS)
    yield service
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """Address of a broker that all tests of this folder share."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker") / "kafka") as broker:
        yield broker.bootstrap


@pytest.fixture
def settings(broker, tmp_path, request):
    """Settings of an ingest on that broker, with topics and tables of its own."""
    name = re.sub(r"[^\w.-]", "-", request.node.name.replace("test_", ""))[-80:]
    options = {"topics": {"tasks": f"t-{name}", "outcomes": f"o-{name}"}, "ingest": {"trigger": "100ms"}}
    return with_broker(Settings(data_dir=tmp_path, partitions=PARTITIONS, **options), broker)
