"""Ingest on a real broker, run until the tables are level with the logs."""

from __future__ import annotations

import shutil

from kafka import KafkaProducer

from scylla_spark.io.kafka.topic_setup import ensure_topics
from scylla_spark.io.kafka.topics import end_offsets
from scylla_spark.services.ingest.ingest import Ingest
from tests.support.waiting import eventually

PATIENCE = 180.0


def sent(settings, *records, **options):
    """Sends (partition, _, key, value) records, each acknowledged."""
    ensure_topics(settings)
    producer = KafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers, **options)
    try:
        futures = [
            producer.send(settings.topics.tasks, key=key, value=value, partition=partition)
            for partition, _, key, value in records
        ]
        return [future.get(timeout=60).offset for future in futures]
    finally:
        producer.close()


def level(service):
    """Whether all records of `tasks` are below progress."""
    numbers = list(range(service.settings.partitions))
    ends = end_offsets(service.settings, service.settings.topics.tasks, numbers)
    positions = {number: mark.tasks_offset for number, mark in service.progress.tasks().items()}
    return all(positions.get(number, 0) >= end for number, end in ends.items())


def ingested(spark, settings):
    """A service that has written all there is, and is stopped."""
    service = Ingest(spark, settings)
    try:
        service.prepare()
        service.start()
        eventually(lambda: not service.alive() or level(service), PATIENCE, "all is written", service.progress.tasks)
        assert service.alive()
    finally:
        service.stop()
    return service


def copied(source, target):
    """Replaces a folder by another one's content."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
