"""Every way of access against a real broker with a private authority, in both clients; and what is told of each that does not work."""

from __future__ import annotations

import uuid

import pytest
from kafka import TopicPartition
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from pyspark.sql import functions as F

from scylla_spark import doctor
from scylla_spark.errors import ConfigError, UnreachableError
from scylla_spark.io.host.broker_files import free_port
from scylla_spark.io.kafka import access, probe, rights, topic_setup, topics
from tests.support import kafka_site
from tests.support.waiting import eventually

WAYS = sorted(kafka_site.LISTENERS)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with kafka_site.running(tmp_path_factory.mktemp("site")) as found:
        yield found


def python_round_trip(settings) -> bytes:
    """Sends a record with kafka-python and reads it, as a member of the dispatchers' group."""
    topic_setup.ensure_topics(settings)
    told, producer = uuid.uuid4().bytes, topics.producer(settings)
    try:
        placed = producer.send(settings.topics.tasks, told, partition=0).get(timeout=30)
    finally:
        producer.close()
    consumer = topics.consumer(settings, group_id=settings.dispatch.group_id)
    try:
        place = TopicPartition(settings.topics.tasks, 0)
        consumer.assign([place])
        consumer.seek(place, placed.offset)
        for _ in range(100):
            for records in consumer.poll(timeout_ms=200).values():
                consumer.commit()
                return bytes(records[0].value) if records[0].value == told else b""
    finally:
        consumer.close()
    return b""


def spark_round_trip(spark, settings) -> bool:
    """Writes a record with Spark's Kafka sink and reads it back with its source."""
    options, told = topics.spark_options(settings), uuid.uuid4().hex
    row = spark.range(1).select(F.lit(told).alias("value"))
    row.write.format("kafka").options(**options).option("topic", settings.topics.tasks).save()
    read = spark.read.format("kafka").options(**options).option("subscribe", settings.topics.tasks).load()
    return told in {row.value for row in read.select(F.col("value").cast("string")).collect()}


@pytest.mark.parametrize("auth", WAYS)
def test_both_clients_come_in(site, spark, auth):
    settings = site.settings(auth)
    assert python_round_trip(settings)
    assert spark_round_trip(spark, settings)
    assert [check for check in doctor.examine_kafka(settings) if not check.ok] == []


def test_a_key_in_a_file_of_its_own_works_in_both_clients(site, spark):
    both = (site.folder / f"{kafka_site.USER}.pem").read_text()
    certificate = site.folder / "own.crt"
    certificate.write_text(both[both.index("-----BEGIN CERTIFICATE") :])
    settings = site.settings(
        "mtls", client_cert_file=certificate, client_key_file=site.folder / f"{kafka_site.USER}.key"
    )
    assert python_round_trip(settings)
    assert spark_round_trip(spark, settings)


def test_options_are_passed_on_to_each_client_and_win(site):
    wrong = site.settings("scram", ca_file=None)
    assert probe.first_fault(wrong).step == "TLS authority"
    right = {
        "python_options": {"ssl_cafile": str(site.authority.file)},
        "java_options": {"ssl.endpoint.identification.algorithm": ""},
    }
    settings = site.settings("scram", ca_file=None, **right)
    assert python_round_trip(settings)
    assert topics.spark_options(settings)["kafka.ssl.endpoint.identification.algorithm"] == ""


# -- what fails is named -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strange(site, tmp_path_factory):
    """Another authority, and a certificate for us that it signed."""
    authority = kafka_site.Authority(tmp_path_factory.mktemp("strange"), "strange")
    return authority, authority.sign(kafka_site.USER)


def cases(site, strange):
    authority, certificate = strange
    port = site.ports
    yield "scram", {"ca_file": authority.file}, "TLS authority", "kafka.ca_file"
    yield "scram", {"bootstrap_servers": f"localhost:{port['scram']}"}, "TLS host name", "certificate lists"
    yield "scram", {"password": "wrong"}, "login", "kafka.password"
    yield "scram", {"username": "nobody"}, "login", "kafka.username"
    yield "scram", {"auth": "plain"}, "login", "kafka.auth"
    yield "scram", {"scram_mechanism": "SCRAM-SHA-256"}, "login", "kafka.scram_mechanism"
    yield "scram", {"tls": False, "ca_file": None}, "protocol", "kafka.tls"
    yield "scram", {"bootstrap_servers": site.broker.bootstrap}, "TLS", "kafka.tls = false"
    yield "plain", {"password": "wrong"}, "login", "kafka.password"
    yield "plain", {"auth": "none", "username": None, "password": None}, "TLS client certificate", "kafka.auth"
    yield "mtls", {"client_cert_file": certificate}, "TLS client certificate", "kafka.client_cert_file"
    yield "mtls", {"auth": "none", "client_cert_file": None}, "TLS client certificate", "kafka.client_cert_file"
    yield "mtls", {"client_key_file": site.folder / "server.key"}, "TLS files", "belong"
    yield "oauth", {"password": "wrong"}, "login", "kafka.oauth_token_url"
    yield "oauth", {"oauth_token_url": f"http://127.0.0.1:{free_port()}/token"}, "login", "kafka.oauth_token_url"
    yield "scram", {"bootstrap_servers": f"127.0.0.1:{free_port()}"}, "TCP", "start the broker"


def test_doctor_names_the_step_that_fails_and_what_to_do(site, strange):
    told = []
    for auth, changes, step, mend in cases(site, strange):
        (check,) = doctor.examine_kafka(site.settings(auth, **changes))
        if check.ok or not check.detail.startswith(f"{step}: ") or mend not in check.mend:
            told.append((auth, changes, check))
        assert kafka_site.PASSWORD not in str(check)
        assert kafka_site.TOKEN_SECRET not in str(check)
    assert told == []


def test_an_error_of_the_services_names_the_step_too(site):
    with pytest.raises(UnreachableError, match=r"does not let us in: login: .*refuses scheduler") as caught:
        topics.producer(site.settings("scram", password="wrong-canary", request_timeout="1s"))
    assert "wrong-canary" not in str(caught.value)


@pytest.mark.parametrize("label", ["RSA PRIVATE KEY", "EC PRIVATE KEY", "ENCRYPTED PRIVATE KEY"])
def test_a_key_that_java_cannot_read_is_refused_with_the_command_that_changes_it(site, tmp_path, label):
    old = tmp_path / "old.pem"
    old.write_text(f"-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n")
    for options in (topics.spark_options, topics.client_options):
        with pytest.raises(ConfigError, match="openssl pkcs8"):
            options(site.settings("mtls", client_key_file=old))


def test_tokens_are_kept_until_they_are_near_their_end(site):
    settings = site.settings("oauth").kafka
    provider = access.python_options(settings)["sasl_oauth_token_provider"]
    assert access.python_options(settings)["sasl_oauth_token_provider"] is provider, "all connections share it"
    provider.token()
    before = site.issuer.served
    assert provider.token() == provider.token()
    assert site.issuer.served == before


# -- rights --------------------------------------------------------------------------------------------------------------


def test_the_documented_rights_are_enough_and_less_is_named(site, spark):
    name, word = "restricted", "restricted-word"
    settings = site.settings("scram", username=name, password=word)
    topic_setup.ensure_topics(site.settings("scram"))
    with site.admin() as admin:
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion(name, ScramMechanism.SCRAM_SHA_512, word)])
        eventually(lambda: probe.first_fault(settings) is None, 30)
        lacking = {finding.name: finding.fault for finding in rights.findings(settings)}
        assert set(lacking.values()) == {"we may not even see it"}
        assert not all(check.ok for check in doctor.examine_kafka(settings))
        admin.create_acls([_allowed(name, ResourceType.TOPIC, settings.topics.tasks, ACLOperation.READ)])
        eventually(lambda: "WRITE" in _fault(settings, settings.topics.tasks), 30)
        assert "READ" not in _fault(settings, settings.topics.tasks)
        admin.create_acls(list(_needed(settings, name)))
        eventually(lambda: not any(finding.fault for finding in rights.findings(settings)), 30)
    assert python_round_trip(settings)
    assert spark_round_trip(spark, settings)
    assert all(check.ok for check in doctor.examine_kafka(settings))


def _needed(settings, name):
    """The table in docs/security.md, as rights."""
    for topic in topic_setup.plan_topics(settings):
        for right in rights.NEEDED["topic"]:
            yield _allowed(name, ResourceType.TOPIC, topic, ACLOperation[right])
    for group in rights.group_ids(settings):
        yield _allowed(name, ResourceType.GROUP, group, ACLOperation.READ)


def _allowed(name, kind, resource, right):
    return ACL(f"User:{name}", "*", right, ACLPermissionType.ALLOW, ResourcePattern(kind, resource))


def _fault(settings, topic):
    return next(finding.fault for finding in rights.findings(settings) if finding.name == topic)
