"""A request that belongs to a trace: so do the tasks that it brings."""

import pytest

from scylla_spark.api.tasks.views import NewTask

NOW = 1_800_000_000_000_000
GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OURS = "00-000000000000000000000000000000ab-00000000000000cd-00"


@pytest.mark.parametrize(
    ("body", "header", "found"),
    [
        ({}, GIVEN, GIVEN),
        ({"traceparent": OURS}, GIVEN, OURS),
        ({}, "nonsense", None),
        ({}, GIVEN.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32), None),
        ({}, None, None),
    ],
)
def test_the_header_of_a_request_is_its_trace(body, header, found):
    assert NewTask(**body).within(header).new_command(NOW).traceparent == found
