from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from prometheus_client import CollectorRegistry, generate_latest

from scylla_spark.config.settings import Metrics
from scylla_spark.core.engine.queue import QueueLimits
from scylla_spark.core.plan.state.stored_token import StoredToken
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.core.tasks.task import NOT_STARTED, SUCCEEDED, TIMED_OUT, Invocation, Outcome
from scylla_spark.io.host.http_get import fetch
from scylla_spark.processes.process_metrics import ProcessMetrics
from scylla_spark.services.dispatch import describe
from scylla_spark.services.dispatch.describe import describe_due, describe_load
from scylla_spark.services.dispatch.metrics import MOST_TAGS, MOST_VALUES, DispatchMetrics
from scylla_spark.services.ingest.metrics import IngestMetrics
from scylla_spark.services.metrics_server import MetricsServer
from scylla_spark.services.plan.metrics import PlanMetrics
from tests.support.engine_harness import SECOND, Harness
from tests.support.worker_harness import PullWorld

PLANNED = 1_000_000


def run(number, payload="{}", handler="h", queue="q", tags=()):
    key = TaskKey(PLANNED, "a", "u")
    return SimpleNamespace(
        invocation=Invocation(number, key, 1, 1, handler, queue, payload, 0, PLANNED, 5000, tags=tags)
    )


def samples(measures):
    lines = generate_latest(measures.registry).decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def ended(number, late_us, took_us, outcome=SUCCEEDED):
    return Outcome(number, outcome, PLANNED + late_us, PLANNED + late_us + took_us)


def test_buckets_count_what_is_at_most_their_bound():
    measures = DispatchMetrics()
    measures.finished(
        [ended(1, 1_000, 3_000), ended(2, 1_001, 400_000_000), ended(3, -5, 0, TIMED_OUT)],
        {n: run(n) for n in (1, 2, 3)},
    )
    found = samples(measures)
    delay = 'scyllaspark_start_delay_seconds_bucket{handler="h",le="%s",queue="q"}'
    assert [found[delay % bound] for bound in ("0.001", "0.002", "300.0", "+Inf")] == ["2.0", "3.0", "3.0", "3.0"]
    assert found['scyllaspark_start_delay_seconds_count{handler="h",queue="q"}'] == "3.0"
    assert float(found['scyllaspark_start_delay_seconds_sum{handler="h",queue="q"}']) == pytest.approx(0.002001)
    took = 'scyllaspark_execution_seconds_%s{handler="h",%soutcome="succeeded",queue="q"}'
    assert found[took % ("bucket", 'le="300.0",')] == "1.0"
    assert found[took % ("count", "")] == "2.0"
    assert found['scyllaspark_execution_seconds_count{handler="h",outcome="timed_out",queue="q"}'] == "1.0"
    assert measures.stale == 0


def test_what_did_not_start_or_is_unknown_is_not_counted():
    measures = DispatchMetrics()
    measures.finished([Outcome(1, NOT_STARTED), ended(9, 0, 0)], {1: run(1)})
    assert samples(measures) == {}


def test_payload_keys_become_labels():
    measures = DispatchMetrics(["tenant"])
    measures.finished([ended(1, 301_000_000, 0)], {1: run(1, '{"tenant": "\\"x\\""}')})
    assert 'tenant="\\"x\\""' in generate_latest(measures.registry).decode()
    assert measures.stale == 1


def test_sends_are_measured():
    measures = DispatchMetrics()
    measures.persisted(1_500)
    assert samples(measures)['scyllaspark_fact_send_seconds_bucket{le="0.002"}'] == "1.0"


def tagged(told):
    """Tag and outcome → attempts, and tag → starts."""
    text = 'scyllaspark_tagged_attempts_total{outcome="succeeded",tag="'
    starts = 'scyllaspark_tagged_start_delay_seconds_count{tag="'
    return [
        {name[len(begin) : -2]: value for name, value in told.items() if name.startswith(begin)}
        for begin in (text, starts)
    ]


def test_attempts_are_counted_by_tags_that_are_listed_once_for_each_and_by_no_other():
    measures = DispatchMetrics(tags=["billing", "team:*"])
    tags = {1: ("billing", "team:a", "team:b"), 2: ("team:a", "eu"), 3: ("bill", "billing2", "tea"), 4: ()}
    measures.finished([ended(n, 0, 0) for n in tags], {n: run(n, tags=one) for n, one in tags.items()})
    measures.finished([ended(5, 0, 0, TIMED_OUT)], {5: run(5, tags=("team:b",))})
    told = samples(measures)
    assert tagged(told)[0] == {"billing": "1.0", "team:a": "2.0", "team:b": "1.0"}
    assert tagged(told)[1] == {"billing": "1.0", "team:a": "2.0", "team:b": "2.0"}
    assert told['scyllaspark_tagged_attempts_total{outcome="timed_out",tag="team:b"}'] == "1.0"


def test_tags_from_data_cost_a_bounded_number_of_series_and_take_no_place_of_those_listed_whole():
    whole = [f"whole:{n}" for n in range(49)]
    measures = DispatchMetrics(tags=["*", *whole])
    for number in range(3 * MOST_TAGS):
        measures.finished([ended(number, 0, 0)], {number: run(number, tags=(f"t{number}", f"u{number}"))})
    measures.finished([ended(1, 0, 0)], {1: run(1, tags=tuple(whole))})
    for found in tagged(samples(measures)):
        assert len(found) == MOST_TAGS + 1 + len(whole)
        assert {found[one] for one in whole} == {"1.0"}
        assert float(found["other"]) == 3 * MOST_TAGS - MOST_TAGS / 2, "once for both tags of an attempt"
    assert len(measures._tags._matched) == MOST_TAGS


def test_without_a_list_of_tags_nothing_is_counted_by_them():
    measures = DispatchMetrics()
    measures.finished([ended(1, 0, 0)], {1: run(1, tags=("billing",))})
    assert not any("tag" in name for name in samples(measures))


@pytest.mark.parametrize("wrong", [[""], [" billing"], ["a\n*"], ["x" * 65], ["a"] * 51])
def test_what_can_be_no_tag_is_no_setting(wrong):
    with pytest.raises(ValueError, match="tags"):
        Metrics(tags=wrong)


def counts(told, label):
    """How many attempts each value of a label has."""
    found = {}
    for name, value in told.items():
        if name.startswith("scyllaspark_start_delay_seconds_count"):
            told = name.partition(f'{label}="')[2].partition('"')[0]
            found[told] = found.get(told, 0) + float(value)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("label", ["queue", "handler", "tenant"])
def test_names_from_data_cost_a_bounded_number_of_series_and_nothing_goes_uncounted(label):
    measures, many = DispatchMetrics(["tenant"]), 3 * MOST_VALUES
    for number in range(many):
        given = {"payload": f'{{"tenant": "{number}"}}'} if label == "tenant" else {label: f"name-{number}"}
        measures.finished([ended(number, 0, 0)], {number: run(number, **given)})
    found = counts(samples(measures), label)
    assert len(found) == MOST_VALUES + 1
    assert found["other"] == many - MOST_VALUES
    assert sum(found.values()) == many


@pytest.mark.slow
def test_combinations_of_names_are_bounded_too():
    measures = DispatchMetrics()
    for number in range(MOST_VALUES * 12):
        one = run(number, handler=f"h{number % MOST_VALUES}", queue=f"q{number // MOST_VALUES}")
        measures.finished([ended(number, 0, 0)], {number: one})
    told = samples(measures)
    series = [name for name in told if name.startswith("scyllaspark_start_delay_seconds_count")]
    assert len(series) < 2_100
    assert sum(counts(told, "queue").values()) == MOST_VALUES * 12


@pytest.mark.slow
def test_a_long_name_is_cut_and_a_known_name_keeps_its_own_series():
    measures = DispatchMetrics()
    for number in range(2 * MOST_VALUES):
        measures.finished([ended(number, 0, 0)], {number: run(number, queue=f"{number:03}" * 200)})
    measures.finished([ended(1, 0, 0)], {1: run(1, queue="000" * 200)})
    found = counts(samples(measures), "queue")
    assert max(map(len, found)) == 100
    assert found[("000" * 200)[:100]] == 2


def test_ingest_counts_per_topic_what_it_wrote_refused_and_set_aside():
    counted = IngestMetrics()
    counted.written("tasks", ingested=5, rejected=1, set_aside=2)
    counted.written("tasks", ingested=5, rejected=0, set_aside=0)
    counted.written("outcomes", ingested=1, rejected=0, set_aside=0)
    told = generate_latest(counted.registry()).decode()
    assert 'scyllaspark_ingested_total{topic="tasks"} 10.0' in told
    assert 'scyllaspark_rejected_total{topic="tasks"} 1.0' in told
    assert 'scyllaspark_set_aside_total{topic="tasks"} 2.0' in told
    assert 'scyllaspark_set_aside_total{topic="outcomes"} 0.0' in told


def test_ingest_tells_how_long_batches_take_and_how_far_the_tables_are_behind():
    counted = IngestMetrics()
    assert "lag_records{" not in generate_latest(counted.registry()).decode(), "nobody has looked yet"
    counted.took("tasks", 1.5)
    counted.took("tasks", 0.5)
    counted.behind("tasks", {0: 10, 1: 7, 2: 3}, {0: 4, 1: 7, 2: 5})
    told = generate_latest(counted.registry()).decode()
    assert 'scyllaspark_ingest_batch_seconds_count{topic="tasks"} 2.0' in told
    assert 'scyllaspark_ingest_batch_seconds_sum{topic="tasks"} 2.0' in told
    assert 'scyllaspark_ingest_lag_records{topic="tasks"} 6.0' in told
    counted.unknown()
    assert "lag_records{" not in generate_latest(counted.registry()).decode(), "not what was true once"


def test_attempts_of_workers_are_counted_as_others():
    world, measures = PullWorld(lease_ms=30_000), DispatchMetrics()
    world.put(unique="done")
    world.now += 2 * SECOND
    (lease,) = world.leases(world.once(worker="w"))
    world.now += 7 * SECOND
    assert world.report(lease.token, worker="w") == "ok"
    measures.leased(world.engine.ended_leases())
    found = samples(measures)
    assert found['scyllaspark_start_delay_seconds_count{handler="h",queue="gpu"}'] == "1.0"
    assert 2 <= float(found['scyllaspark_start_delay_seconds_sum{handler="h",queue="gpu"}']) < 3
    assert 7 <= float(found['scyllaspark_execution_seconds_sum{handler="h",outcome="succeeded",queue="gpu"}']) < 8
    assert world.engine.ended_leases() == [], "each is counted once"


def test_a_lease_that_its_worker_never_got_is_no_attempt():
    world, measures = PullWorld(lease_ms=30_000), DispatchMetrics()
    world.put()
    world.leases(world.ask("w"))
    world.now += 5 * SECOND
    world.pump()
    assert world.outcomes() == ["started", "yielded"]
    measures.leased(world.engine.ended_leases())
    assert samples(measures) == {}


def test_what_is_due_and_does_not_start_is_told_while_it_waits(monkeypatch):
    world = Harness(queues={"slow": QueueLimits(concurrency=1)})
    for number in range(4):
        world.enqueue(lane=f"l{number}", queue="slow", due=number)
    world.pump()
    world.now += 3 * SECOND
    world.pump()
    told = describe_due(world.engine, world.now)
    assert (told["ready"], told["overdue"]) == (3, 0)
    assert told["oldest_ready_seconds"] == pytest.approx(2, abs=0.5)
    world.now += 400 * SECOND
    told = describe_due(world.engine, world.now)
    assert (told["ready"], told["overdue"]) == (3, 3)
    monkeypatch.setattr(describe, "_MOST_DUE", 2)
    assert describe_due(world.engine, world.now)["ready"] == 2, "a look is bounded"
    assert describe_due(Harness().engine, 0) == {
        "ready": 0,
        "overdue": 0,
        "oldest_ready_seconds": 0,
        "without_handler": 0,
    }


def test_what_each_queue_has_to_do_is_told_with_the_partitions_that_are_counted():
    world = Harness(queues={"slow": QueueLimits(concurrency=1)})
    for number in range(3):
        world.enqueue(lane=f"l{number}", queue="slow", due=number)
    world.pump()
    world.now += 3 * SECOND
    world.pump()
    told = describe_load(world.engine, world.now)
    assert told["partitions"] == [0]
    assert list(told["queues"]) == ["slow"]
    assert (told["queues"]["slow"]["ready"], told["queues"]["slow"]["running"]) == (2, 1)
    assert told["queues"]["slow"]["oldest_ready_seconds"] == pytest.approx(2, abs=0.5)
    assert describe_load(Harness().engine, 0)["queues"] == {}


def test_what_waits_for_a_worker_is_due_too():
    world = PullWorld()
    world.put()
    world.pump()
    world.now += 3 * SECOND
    told = describe_due(world.engine, world.now)
    assert (told["ready"], told["without_handler"]) == (1, 0), "it needs none here"


def test_events_and_partitions_that_alerts_watch_are_shown_before_they_count():
    """`increase` of Prometheus does not see the first value of a series that was not there before."""
    status = {
        "partitions": [{"partition": 3, "state": "active"}, {"partition": 4, "state": "loading"}],
        "counts": {"leases": 2},
    }
    for one in status["partitions"]:
        one |= dict.fromkeys(("in_flight", "loaded", "lanes", "unrecorded"), 0)
    due = dict.fromkeys(("ready", "overdue", "oldest_ready_seconds", "without_handler"), 0)
    shown = SimpleNamespace(look=lambda *_: (status, due))
    dispatcher = SimpleNamespace(engine=None, measures=SimpleNamespace(stale=0), on_workers=lambda: [])
    registry = CollectorRegistry()
    registry.register(describe._EngineCollector(dispatcher, shown))
    told = generate_latest(registry).decode()
    for event, count in (("defects", 0), ("leases_expired", 0), ("retries_exhausted", 0), ("leases", 2)):
        assert f'scyllaspark_events_total{{event="{event}"}} {count:.1f}' in told
    assert 'scyllaspark_partition_active{partition="3"} 1.0' in told
    assert 'scyllaspark_partition_active{partition="4"} 0.0' in told
    fresh = generate_latest(IngestMetrics(8).registry()).decode()
    assert "scyllaspark_partitions 8.0" in fresh
    assert 'scyllaspark_rejected_total{topic="tasks"} 0.0' in fresh


def test_tokens_that_can_expire_show_when():
    measures = PlanMetrics()
    token = StoredToken("d", "ci", ("read",), (), 5_000_000, False, "", 0)
    measures.tokens({"a": token, "b": token._replace(revoked=True), "c": token._replace(expires_us=None)})
    assert samples(measures)['scyllaspark_token_expires_timestamp_seconds{id="a",name="ci"}'] == "5.0"
    assert [name for name in samples(measures) if "token_expires" in name and 'id="a"' not in name] == []
    measures.tokens({})
    assert [name for name in samples(measures) if "token_expires" in name] == []


def test_a_process_shows_free_space_and_when_its_certificates_expire(tmp_path):
    ends = datetime(2030, 1, 2, tzinfo=UTC)
    files = {"kafka.ca_file": tmp_path / "ca.pem", "kafka.client_cert_file": tmp_path / "missing.pem"}
    files["kafka.ca_file"].write_bytes(certificate(ends + timedelta(days=9)) + certificate(ends))
    registry = CollectorRegistry()
    registry.register(ProcessMetrics({"data": tmp_path / "not" / "made"}, files))
    found = samples(SimpleNamespace(registry=registry))
    assert float(found['scyllaspark_disk_free_bytes{folder="data"}']) > 0
    expires = {name: float(value) for name, value in found.items() if "certificate" in name}
    assert expires == {'scyllaspark_certificate_expires_timestamp_seconds{setting="kafka.ca_file"}': ends.timestamp()}


def certificate(ends):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    begins = ends - timedelta(days=1_000)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, begins, ends).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


def test_a_process_without_dispatch_serves_its_metrics():
    counted = IngestMetrics()
    counted.written("tasks", ingested=1, rejected=0, set_aside=3)
    server = MetricsServer(Metrics())
    server.show(counted.registry())
    server.start()
    try:
        told = fetch(f"{server.address}/metrics", timeout_s=5.0, largest=1 << 20).decode()
    finally:
        server.stop()
    assert 'scyllaspark_set_aside_total{topic="tasks"} 3.0' in told
