"""Places of tables: one canonical form, a list of what is supported, and what triggers may watch."""

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.errors import ArgumentError, ConfigError
from scylla_spark.table_place import TablePlaces, is_place, table_place

AZURE = "abfss://lake@account.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("/a/b/", "/a/b"),
        ("//a//b/./c/../d", "/a/b/d"),
        ("/a%61", "/a%61"),
        ("/../a", "/a"),
        ("file:/a/b/", "/a/b"),
        ("FILE:///a/b%20c", "/a/b c"),
        ("file://localhost/a/%2e%2e/b", "/b"),
        ("s3://bucket/a/", "s3://bucket/a"),
        ("S3A://bucket//a/./x/../b", "s3://bucket/a/b"),
        ("s3://bucket/t%61bles/a b", "s3://bucket/tables/a%20b"),
        ("s3://bucket/100%25", "s3://bucket/100%25"),
        ("s3://bucket/%2e%2e/%2E/a%2Fb", "s3://bucket/a/b"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("gs://bucket/day=2026-01-01/x+y", "gs://bucket/day=2026-01-01/x+y"),
        (f"{AZURE}/a//b", f"{AZURE}/a/b"),
        ("ABFS://lake@Account.blob.core.windows.net/a", f"{AZURE}/a"),
    ],
)
def test_a_place_has_one_canonical_form(text, place):
    assert is_place(text)
    assert table_place(text) == place
    assert table_place(place) == place


@pytest.mark.parametrize(
    "text",
    [
        *("hdfs://name/a", "webhdfs://name/a", "sftp://host/a", "webdav://host/a", "memory:///a", "fs:///a", "http://host/a"),
        *("opendal+fs:///a", "az://lake/a", "adl://lake/a", "dbfs:/a://b", "dbfs:/a", "s3:/bucket/a", "s3n://bucket/a"),
        *("file://elsewhere/a", "file://", "file:///a%00b", "/a\0b", "file:///a\nb"),
        *("s3:///a", "s3://user@bucket/a", "s3://bucket:80/a", "s3://buck%65t/a", "s3://bucket/a?x=1", "s3://bucket/a#x", "s3://buc\tket/a"),
        *("abfss://lake/a", "abfss://lake@evil.example.com/a", "abfss://lake@account.dfs.core.windows.net.evil.example.com/a"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_with_what_to_write(text):
    with pytest.raises(
        ArgumentError, match=r"not supported|not the URI|not a folder|name a place|zero byte"
    ) as refused:
        table_place(text)
    assert refused.value.hint


@pytest.mark.parametrize(
    "own",
    ["/data/tables", "s3://lake/tables", f"{AZURE}/tables"],
)
def test_names_beside_the_own_tables_are_not_confused_with_them(own):
    places = TablePlaces(own=(own,))
    assert places.of(f"{own}2/orders") == f"{own}2/orders"
    for inside in (own, f"{own}/", f"{own}/tasks", f"{own}//tasks/", f"{own}/x/../tasks"):
        with pytest.raises(ArgumentError, match="one of the deployment's own"):
            places.of(inside)


@pytest.mark.parametrize(
    "table",
    [
        *("FILE:///data/tables/tasks", "fs:///data/tables/tasks", "opendal+fs:///data/tables/tasks"),
        *("file://localhost/data/tables/tasks", "s3a://lake/tables/tasks", "s3://lake//tables/tasks"),
        *(
            "s3://lake/x/../tables/tasks",
            "S3://lake/tables/tasks",
            "s3://lake/t%61bles/tasks",
            "ours",
            "az://lake/tables",
        ),
    ],
)
def test_own_tables_are_refused_under_every_name(table):
    places = TablePlaces({"ours": "/data/tables/fires"}, own=("/data/tables", "s3://lake/tables"))
    with pytest.raises(ArgumentError, match=r"one of the deployment's own|not supported"):
        places.of(table)


def test_triggers_name_tables_in_allowed_places_and_by_name_only():
    places = TablePlaces({"orders": "/elsewhere/orders"}, allowed=("/lake", "s3://lake/shared"))
    assert places.of("/lake/a") == "/lake/a"
    assert places.of("s3a://lake/shared/a") == "s3://lake/shared/a"
    assert places.of("orders") == "/elsewhere/orders"
    assert places.of("unknown") is None
    for table in ("/lake2/a", "/lake/../etc", "s3://lake/sharedx", "s3://other/shared", "/elsewhere/orders"):
        with pytest.raises(ArgumentError, match=r"not in a place that triggers may watch"):
            places.of(table)


@pytest.mark.parametrize(
    "sections",
    [
        {"tables": {"path": "hdfs://name/a"}},
        {"plan": {"tables": {"orders": "sftp://host/a"}}},
        {"plan": {"tables": {"orders": "lake/orders"}}},
        {"plan": {"allowed_places": ["memory:///a"]}},
        {"plan": {"allowed_places": [""]}},
    ],
)
def test_settings_name_supported_places_only(sections):
    with pytest.raises(ConfigError, match=r"not supported|absolute path"):
        Settings.load(None, **sections)


def test_settings_hold_places_in_their_canonical_form():
    settings = Settings.load(
        None,
        tables={"path": "s3a://lake//tables/"},
        plan={"tables": {"a": "FILE:///x/../y"}, "allowed_places": ["S3://l/"]},
    )
    assert (settings.tables_path, settings.tables_folder) == ("s3://lake/tables", None)
    assert (settings.plan.tables, settings.plan.allowed_places) == ({"a": "/y"}, ("s3://l",))
