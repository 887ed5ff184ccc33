"""One Spark session for all tests of this folder, and fresh tables for each."""

from __future__ import annotations

import shutil

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.io.host.session import open_session
from scylla_spark.services.ingest.ingest import Ingest
from tests.spark.batches import PARTITIONS, TOPIC_IDS
from tests.support.shared_broker import settings_on

SMALL_QUERIES = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
}
"""The tests run thousands of different queries on a few rows each: neither Spark nor Java spends time on code that runs once."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """The session that `up` makes for its services, on two cores of this machine, without compilers that optimise."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("spark"), spark={"options": SMALL_QUERIES})
    session = open_session(settings, "scylla-spark tests", services=True)
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
    """The service on tables of its own."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    service = Ingest(spark, Settings(data_dir=tmp_path, partitions=PARTITIONS))
    service.open_tables(TOPIC_IDS)
    return service


@pytest.fixture
def settings(broker, tmp_path):
    """Settings of an ingest on the shared broker, with topics and tables of its own."""
    return settings_on(broker, tmp_path, partitions=PARTITIONS, ingest={"trigger": "100ms"})
