"""The start of ingest's queries outlasts a broker that is away for a moment, and nothing else."""

from __future__ import annotations

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.errors import ConfigError, UnreachableError
from scylla_spark.services.ingest import service
from scylla_spark.services.ingest.service import IngestService


class Starts:
    """An ingest whose starts fail with these errors, one after the other."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.count = 0

    def start(self) -> None:
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)


@pytest.mark.parametrize(
    ("errors", "starts", "fails"),
    [
        ((), 1, False),
        ((UnreachableError("away"), UnreachableError("away")), 3, False),
        ((ConfigError("wrong"),), 1, True),
        ((ValueError(),), 1, True),
    ],
)
def test_a_start_is_tried_again_while_the_broker_is_away(monkeypatch, errors, starts, fails):
    monkeypatch.setattr(service, "_AGAIN_S", 0.0)
    ingest = Starts(*errors)
    one = IngestService(Settings(_env_file=None), None)
    one._ingest = ingest
    one._start_queries()
    assert (ingest.count, one._failure is not None) == (starts, fails)
