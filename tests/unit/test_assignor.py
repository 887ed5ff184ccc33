"""Who gets which partition when members claim what they had; subscriptions travel as the broker passes them on."""

from types import SimpleNamespace

import pytest
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from scylla_spark.io.kafka.client_patches import Assignor
from scylla_spark.io.kafka.sole_table_writer import _Eldest

CLUSTER = SimpleNamespace(topics=lambda: {"tasks"}, partitions_for_topic=lambda _topic: {0, 1, 2})


def member(kind, name, partitions, generation):
    """A member that was assigned these partitions in that generation, as the leader sees it."""
    assignor = kind()
    if generation is not None:
        assignor.on_assignment(ConsumerProtocolAssignment(kind.version, [("tasks", partitions)], b""), generation)
    metadata = ConsumerProtocolSubscription.decode(assignor.metadata({"tasks"}).encode())
    return SimpleNamespace(member_id=name, group_instance_id=None, metadata=metadata)


def assigned(kind, *members):
    found = kind().assign(CLUSTER, list(members))
    return {name: sorted(place.partition for place in given.partitions()) for name, given in found.items()}


def claims(kind):
    """The owner of everything, and one that was away and still claims partition 2."""
    return member(kind, "owner", [0, 1, 2], 7), member(kind, "away", [2], 3)


def test_kafka_pythons_own_gives_a_partition_away_before_its_owner_lets_go():
    given = [
        assigned(CooperativeStickyAssignor, *order(claims(CooperativeStickyAssignor)))
        for order in (tuple, reversed_pair)
    ]
    assert {"owner": [0, 1], "away": [2]} in given, "it is mended there: the generation can go"


@pytest.mark.parametrize("reverse", [False, True])
def test_a_member_that_was_away_gets_nothing_before_the_owner_has_let_go(reverse):
    members = claims(Assignor)
    first = assigned(Assignor, *(reversed_pair(members) if reverse else members))
    assert first["away"] == []
    assert len(first["owner"]) == 2
    (moving,) = {0, 1, 2} - set(first["owner"])
    second = assigned(Assignor, member(Assignor, "owner", first["owner"], 8), member(Assignor, "away", [], 8))
    assert second == {"owner": first["owner"], "away": [moving]}


def test_newcomers_claim_nothing():
    given = assigned(Assignor, member(Assignor, "a", [], None), member(Assignor, "b", [], None))
    assert sorted(given["a"] + given["b"]) == [0, 1, 2]


@pytest.mark.parametrize("reverse", [False, True])
def test_the_sole_writer_keeps_everything_whoever_comes_or_comes_back(reverse):
    members = [
        member(_Eldest, "z-owner", [0, 1, 2], 7),
        member(_Eldest, "away", [0, 1, 2], 3),
        member(_Eldest, "a", [], None),
    ]
    given = assigned(_Eldest, *(reversed(members) if reverse else members))
    assert given == {"z-owner": [0, 1, 2], "away": [], "a": []}


def reversed_pair(pair):
    return tuple(reversed(pair))
