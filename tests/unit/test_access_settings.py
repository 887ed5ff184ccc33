"""Settings of access: what fits together fills both Kafka clients, what does not is refused with the setting to change."""

from __future__ import annotations

import itertools
import re
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.errors import ConfigError, SetupError
from scylla_spark.io.host import private_files, process_limits, session
from scylla_spark.io.kafka import access
from scylla_spark.io.kafka.topics import (
    LOCK_FILE,
    announce,
    client_options,
    located,
    spark_options,
    with_broker,
)
from scylla_spark.processes import deployment

WORD = {"username": "u", "password": "p"}
AT = {"bootstrap_servers": "kafka:9093"}


def load(**kafka):
    return Settings.load(kafka=AT | kafka)


@pytest.fixture(autouse=True)
def _empty_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("kafka", "told"),
    [
        ({"auth": "scram"}, "kafka.username"),
        ({"auth": "scram", "username": "u"}, "kafka.password_file"),
        ({"auth": "plain", "username": "", "password": "p"}, "kafka.username"),
        ({"auth": "mtls"}, "kafka.tls = true"),
        ({"auth": "mtls", "tls": True}, "kafka.client_cert_file"),
        ({"auth": "mtls", "tls": True, "client_cert_file": "c"} | WORD, "no user and no password"),
        ({"auth": "oauth"} | WORD, "kafka.oauth_token_url"),
        ({"auth": "aws"}, "kafka.tls = true"),
        ({"auth": "aws", "tls": True} | WORD, "no user and no password"),
        ({"auth": "oauth", "oauth_token_url": "http://login.example.com"} | WORD, "https"),
        ({"auth": "oauth", "oauth_token_url": "file:///etc/passwd"} | WORD, "https"),
        (WORD, "no user and no password"),
        ({"auth": "scram", "password_file": "f"} | WORD, "exclude each other"),
        ({"ca_file": "c"}, "kafka.tls = true"),
        ({"client_cert_file": "c"}, "kafka.tls = true"),
        ({"tls": True, "client_key_file": "c"}, "kafka.client_cert_file"),
        ({"auth": "scram", "oauth_scope": "s"} | WORD, 'kafka.auth = "oauth"'),
        ({"auth": "scram", "bootstrap_servers": ""} | WORD, "kafka.bootstrap_servers"),
        ({"tls": True, "bootstrap_servers": ""}, "kafka.bootstrap_servers"),
        ({"auth": "gssapi"}, "kafka.auth"),
        ({"python_options": {"acks": 0}}, "options of connections only"),
        ({"python_options": {"group_id": "g"}}, "options of connections only"),
        ({"java_options": {"enable.auto.commit": True}}, "options of connections only"),
        ({"java_options": {"isolation.level": "x"}}, "options of connections only"),
        ({"security_protocol": "SSL"}, "kafka.security_protocol"),
    ],
)
def test_what_does_not_fit_together_is_refused_and_the_message_names_the_setting(kafka, told):
    with pytest.raises(ConfigError, match=re.escape(told)):
        load(**kafka)


@pytest.mark.parametrize("auth", ["none", "plain", "scram", "oauth"])
@pytest.mark.parametrize("tls", [False, True])
def test_both_clients_get_the_same_protocol_and_mechanism(auth, tls):
    more = (
        {} if auth == "none" else WORD | ({"oauth_token_url": "https://login.example.com"} if auth == "oauth" else {})
    )
    settings = load(auth=auth, tls=tls, **more)
    python, java = client_options(settings), spark_options(settings)
    assert python["security_protocol"] == java.get("kafka.security.protocol", "PLAINTEXT")
    assert python.get("sasl_mechanism") == java.get("kafka.sasl.mechanism")
    assert ("SSL" in python["security_protocol"].removeprefix("SASL_")) is tls
    assert ("sasl_plain_password" in python) is (auth in ("plain", "scram"))


def test_a_login_by_iam_needs_its_library_for_python_and_names_the_classes_of_the_one_for_java(monkeypatch):
    settings = load(auth="aws", tls=True)
    monkeypatch.setattr(access, "find_spec", lambda _: None)
    with pytest.raises(SetupError, match="needs botocore") as refused:
        client_options(settings)
    assert refused.value.hint == "pip install 'scylla-spark[aws]'"
    monkeypatch.setattr(access, "find_spec", lambda _: object())
    python, java = client_options(settings), spark_options(settings)
    assert (python["security_protocol"], python["sasl_mechanism"]) == ("SASL_SSL", "AWS_MSK_IAM")
    assert java["kafka.sasl.mechanism"] == "AWS_MSK_IAM"
    assert java["kafka.sasl.jaas.config"] == "software.amazon.msk.auth.iam.IAMLoginModule required;"
    assert "sasl_plain_password" not in python


def test_on_databricks_classes_of_the_java_client_have_the_names_of_its_runtime(monkeypatch):
    settings = load(auth="oauth", oauth_token_url="https://login.example.com", **WORD)
    for version, prefix in (None, ""), ("16.4", "kafkashaded."):
        if version:
            monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", version)
        java = spark_options(settings)
        assert java["kafka.sasl.jaas.config"].startswith(f"{prefix}org.apache.kafka.common.security.oauthbearer.")
        assert java["kafka.sasl.login.callback.handler.class"].startswith(f"{prefix}org.apache.kafka.")
    java = spark_options(load(auth="aws", tls=True))
    assert java["kafka.sasl.client.callback.handler.class"].startswith("shadedmskiam.software.amazon.msk.auth.iam.")


@pytest.mark.slow
def test_a_password_may_hold_any_letter():
    for letters in itertools.permutations('"\\;= ', 3):
        word = "".join(letters)
        settings = load(auth="plain", username="u", password=word)
        told = re.search(r'password="((?:[^"\\]|\\.)*)";$', spark_options(settings)["kafka.sasl.jaas.config"])
        assert told is not None
        assert re.sub(r"\\(.)", r"\1", told[1]) == word


def test_options_from_texts_get_the_type_that_kafka_python_wants():
    settings = load(python_options={"ssl_check_hostname": "false", "reconnect_backoff_ms": "70", "client_id": "17"})
    options = client_options(settings)
    assert (options["ssl_check_hostname"], options["reconnect_backoff_ms"], options["client_id"]) == (False, 70, "17")
    assert spark_options(load(java_options={"ssl.x": True, "client.id": 7}))["kafka.ssl.x"] == "true"
    with pytest.raises(ConfigError, match="no option"):
        client_options(load(python_options={"ssl_nothing": 1}))
    with pytest.raises(ConfigError, match="not a bool"):
        client_options(load(python_options={"ssl_check_hostname": "perhaps"}))


def test_an_announced_broker_that_wants_a_secret_is_logged_in_to(tmp_path):
    announce(tmp_path, {"kafka": "127.0.0.1:1", "auth": True})
    (tmp_path / "kafka").mkdir()
    private_files.write(tmp_path / "kafka" / "client.secret", "word\n")
    with deployment._lock(tmp_path / LOCK_FILE):
        options = client_options(located(Settings.load(data_dir=tmp_path)))
        assert (options["sasl_mechanism"], options["sasl_plain_password"]) == ("SCRAM-SHA-512", "word")
        announce(tmp_path, {"kafka": "127.0.0.1:1", "auth": False})
        assert "sasl_mechanism" not in client_options(located(Settings.load(data_dir=tmp_path)))


def test_settings_of_ones_own_brokers_keep_their_access():
    settings = with_broker(load(auth="scram", **WORD), "other:1")
    assert client_options(settings)["sasl_plain_username"] == "u"


# -- files and sessions --------------------------------------------------------------------------------------------------


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_its_owners_and_an_old_one_is_told_or_closed(tmp_path):
    assert not private_files.make_folder(tmp_path / "a" / "b")
    assert mode(tmp_path / "a" / "b") == 0o700
    old = tmp_path / "old"
    old.mkdir()
    old.chmod(0o755)
    assert private_files.make_folder(old)
    assert mode(old) == 0o755, "somebody may have opened it on purpose"
    private_files.close_folder(old)
    assert mode(old) == 0o700


def test_a_secret_is_kept_and_never_readable_by_others(tmp_path):
    path = tmp_path / "secret"
    (tmp_path / "secret.new").write_text("somebody's")
    first = private_files.kept_secret(path)
    assert len(first) >= 32
    assert mode(path) == 0o600
    path.chmod(0o644)
    assert private_files.kept_secret(path) == first
    assert mode(path) == 0o600
    assert private_files.kept_secret(tmp_path / "other") != first


def test_all_who_ask_for_a_new_secret_at_once_get_the_same(tmp_path):
    with ThreadPoolExecutor(8) as threads:
        for number in range(20):
            begin = threading.Barrier(8)
            path = tmp_path / str(number)

            def ask(_, begin=begin, path=path):
                begin.wait(30)
                return private_files.kept_secret(path)

            assert len(set(threads.map(ask, range(8)))) == 1
    assert len(list(tmp_path.iterdir())) == 20, "nothing else is left"


def test_a_session_of_this_machine_authenticates_and_names_no_secret(tmp_path):
    chosen = session.options(Settings.load(data_dir=tmp_path), services=False)
    assert chosen["spark.authenticate"] == "true"
    assert not [name for name in chosen if "authenticate.secret" in name]
    assert re.search(chosen["spark.redaction.regex"], "kafka.ssl.keystore.key")
    assert "spark.authenticate" not in session.options(Settings.load(master="spark://head:7077"), services=False)


def test_kafka_is_refused_to_a_python_that_leaves_out_assertions(monkeypatch):
    monkeypatch.setattr(process_limits, "sys", SimpleNamespace(flags=SimpleNamespace(optimize=1)))
    with pytest.raises(SetupError, match="unset PYTHONOPTIMIZE"):
        client_options(load())


@pytest.mark.slow
def test_our_part_for_kafka_can_be_imported_where_warnings_are_errors():
    words = [sys.executable, "-W", "error", "-c", "import scylla_spark.io.kafka.topics"]
    subprocess.run(words, check=True, timeout=60)
