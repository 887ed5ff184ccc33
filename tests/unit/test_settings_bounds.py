"""Settings with which nothing would run are refused at once, by name."""

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dispatch": {"session_timeout": "3s"}}, "session_timeout"),
        ({"dispatch": {"timeout": "0s"}}, "timeout"),
        ({"dispatch": {"group_id": ""}}, "group_id"),
        ({"topics": {"tasks": ""}}, "tasks"),
        ({"topics": {"tasks": "x", "outcomes": "x"}}, "one name"),
        ({"topics": {"tasks": "a b"}}, "tasks"),
        ({"ingest": {"retention": "0s"}}, "retention"),
        ({"plan": {"poll": "0s"}}, "poll"),
        ({"logs": {"trigger": "0s"}}, "trigger"),
    ],
)
def test_what_makes_nothing_run_is_refused(tmp_path, given, said):
    with pytest.raises(ConfigError, match=said):
        Settings.load(data_dir=tmp_path, **given)


def test_paths_may_begin_with_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    paths = {
        "tables": {"path": "~/lake"},
        "outputs": {"path": "~/files"},
        "kafka": {"bootstrap_servers": "k:9092", "tls": True, "ca_file": "~/ca.pem"},
    }
    settings = Settings.load(data_dir="~/data", **paths)
    assert (settings.tables_path, settings.checkpoints_path) == ("/home/me/lake", "/home/me/lake/_checkpoints")
    assert str(settings.outputs_path) == "/home/me/files"
    assert str(settings.kafka.ca_file) == "/home/me/ca.pem"
    assert str(settings.data_dir) == "/home/me/data"
    assert Settings.load(tables={"path": "s3a://bucket/~x"}).tables_path == "s3://bucket/~x"


def test_a_home_folder_that_nobody_has_is_refused():
    with pytest.raises(ConfigError, match="nobody's home folder"):
        Settings.load(tables={"path": "~nosuchuser/lake"})
