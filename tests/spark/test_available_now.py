"""Ingest that writes what the topics hold, and ends: for a job that runs every so often instead of always."""

import threading
from datetime import timedelta

from scylla_spark.processes.deployment import Deployment
from scylla_spark.schemas import DEFERRED, TASKS
from scylla_spark.services.ingest.service import IngestService
from tests.spark.batches import HOUR, rows, task
from tests.spark.streams import PATIENCE, ingested, level, sent

FAR = 10 * HOUR


def test_it_ends_when_all_is_written_and_either_kind_goes_on_where_the_other_ended(spark, settings):
    # with this trigger a streaming query lets few records wait
    ingest = settings.ingest.model_copy(
        update={"available_now": True, "max_records": 2, "trigger": timedelta(seconds=10)}
    )
    once = settings.model_copy(update={"ingest": ingest})

    def written_once():
        with Deployment(once, roles=["ingest"], spark=spark) as deployment:
            service, stop = deployment.service(IngestService), threading.Event()
            given_up = threading.Timer(PATIENCE, stop.set)
            given_up.start()
            deployment.serve(stop)
            given_up.cancel()
            assert service.finished()
            assert level(service._ingest)
            return service._ingest

    sent(settings, *(task("a", str(number), number) for number in range(5)))  # three batches
    assert len(rows(written_once(), TASKS, "uniqueness_key")) == 5
    written_once()  # nothing is new
    sent(settings, task("a", "5", 5), task("a", "far", 6, due=FAR))
    ingested(spark, settings)
    sent(settings, task("a", "6", 7))
    service = written_once()
    assert rows(service, TASKS, "uniqueness_key") == [(str(number),) for number in range(7)]
    assert rows(service, DEFERRED, "uniqueness_key") == [("far",)]
