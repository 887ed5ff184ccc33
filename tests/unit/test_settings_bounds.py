"""Settings with which nothing would run are refused at once, by name."""

import json

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
        ({"history": {"fires": "1h"}}, "fires"),
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


FILES = [
    {"data_dir": "{}"},
    {"outputs": {"path": "{}"}},
    {"log": {"file": "{}"}},
    {"handlers": ["{}"]},
    {"dispatch": {"sandbox_paths": ["{}"]}},
    {"kafka": {"bootstrap_servers": "k:9092", "tls": True, "ca_file": "{}"}},
]


def with_path(section, path):
    """The section with a path in the place of "{}"."""
    return json.loads(json.dumps(section).replace("{}", path))


@pytest.mark.parametrize("section", FILES, ids=str)
@pytest.mark.parametrize("path", ["s3://bucket/a", "dbfs:/a", "S3:/bucket/a", "file:///a"])
def test_a_file_or_folder_of_this_machine_is_no_uri(section, path):
    with pytest.raises(ConfigError, match=f"'{path}' is a URI. Give a path of this machine"):
        Settings.load(**with_path(section, path))


@pytest.mark.parametrize("path", ["/dbfs/lake", "/Volumes/main/own/lake"])
def test_mounts_of_databricks_hold_no_tables(path, monkeypatch):
    assert Settings.load(tables={"path": path}).tables_path == path, "elsewhere they are folders"
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "16.4")
    for section in {"tables": {"path": path}}, {"plan": {"tables": {"orders": path}}}:
        with pytest.raises(ConfigError, match="is a mount of Databricks"):
            Settings.load(**section)


@pytest.mark.parametrize("path", ["dbfs:/lake", "hdfs:/lake", "s3:/bucket/lake", "wasbs://c@a.net/x", "DBFS:/lake"])
def test_a_place_of_tables_that_is_not_supported_says_what_is_possible(path):
    for section in (
        {"tables": {"path": path}},
        {"plan": {"allowed_places": [path]}},
        {"plan": {"tables": {"t": path}}},
    ):
        with pytest.raises(ConfigError, match=r"(s3://BUCKET/PATH|absolute path)"):
            Settings.load(**section)


def test_the_name_of_a_catalog_is_no_folder(tmp_path, monkeypatch):
    for section in ("tables", "outputs"):
        with pytest.raises(ConfigError, match=r"main\.sales\.tasks.* storage location.* \./main\.sales\.tasks"):
            Settings.load(**{section: {"path": "main.sales.tasks"}})
    monkeypatch.chdir(tmp_path)
    settings = Settings.load(tables={"path": "./main.sales.tasks"}, outputs={"path": "./main.sales.files"})
    assert settings.tables_path == f"{tmp_path}/main.sales.tasks"
    assert Settings.load(tables={"path": settings.tables.path}).tables_path == settings.tables_path
    assert settings.outputs_path == tmp_path / "main.sales.files"


def test_a_home_folder_that_nobody_has_is_refused():
    with pytest.raises(ConfigError, match="nobody's home folder"):
        Settings.load(tables={"path": "~nosuchuser/lake"})
