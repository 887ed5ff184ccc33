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
