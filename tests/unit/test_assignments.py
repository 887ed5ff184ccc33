"""Settings given as flags: what a text says, what is refused, and that what is written is read the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scylla_spark.config.assignments import nested, quoted, written
from scylla_spark.config.settings import Settings, flatten, origins
from scylla_spark.errors import ArgumentError


@pytest.fixture(autouse=True)
def _empty_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dispatch.look_ahead=10m", {"dispatch": {"look_ahead": "10m"}}),
        ("partitions=4", {"partitions": "4"}),
        ("kafka.password=a=b.c", {"kafka": {"password": "a=b.c"}}),
        ("queues.fast.order=replay", {"queues": {"fast": {"order": "replay"}}}),
        ('queues."mail.fast".order=replay', {"queues": {"mail.fast": {"order": "replay"}}}),
        ("kafka.java_options.ssl.protocol=x", {"kafka": {"java_options": {"ssl.protocol": "x"}}}),
        ('kafka.java_options."ssl.protocol"=x', {"kafka": {"java_options": {"ssl.protocol": "x"}}}),
        ("dispatch.max_retries=null", {"dispatch": {"max_retries": None}}),
        ('dispatch.pass_environment=["AWS_*"]', {"dispatch": {"pass_environment": ["AWS_*"]}}),
        ('queues={"Fast": {"order": "replay"}}', {"queues": {"Fast": {"order": "replay"}}}),
        ("kafka.password={x", {"kafka": {"password": "{x"}}),
    ],
)
def test_a_text_says_one_setting(text, said):
    assert nested([text]) == said


@pytest.mark.parametrize(
    "text", ["", "=", "a", "=1", ".a=1", "a.=1", "a..b=1", 'queues."a.order=1', 'a"b"=1', 'queues."".order=replay']
)
def test_another_form_is_refused_without_telling_it(text):
    with pytest.raises(ArgumentError, match=r"--set number 1 is not section\.key=value"):
        nested([text])


def test_a_setting_below_a_value_is_refused():
    with pytest.raises(ArgumentError, match=r"--set number 2 puts dispatch\.drain\.x below a value"):
        nested(["dispatch.drain=1s", "dispatch.drain.x=1"])


names = st.text("abc.", min_size=1, max_size=5)
values = st.text(max_size=5).filter(lambda text: text[:1] not in ("[", "{") and text != "null")
trees = st.dictionaries(
    names, values | st.none() | st.lists(st.text(max_size=3)) | st.dictionaries(names, values, min_size=1)
)


@given(trees)
@pytest.mark.slow
def test_what_is_written_is_read_the_same(tree):
    assert nested(written(tree)) == tree


def test_a_queue_is_named_by_a_flag_the_environment_or_both(monkeypatch):
    assert Settings.load(**nested(["queues.fast.order=replay"])).queues["fast"].order == "replay"
    monkeypatch.setenv("SCYLLASPARK_QUEUES__FAST__ORDER", "replay")
    assert Settings.load().queues["fast"].order == "replay"
    both = Settings.load(**nested(["queues.fast.rate=2", 'queues."mail.fast".paused=true'])).queues
    assert (both["fast"].order, both["fast"].rate, both["mail.fast"].paused) == ("replay", 2.0, True)


def test_all_queues_are_named_by_one_variable_with_their_own_letters(monkeypatch):
    monkeypatch.setenv("SCYLLASPARK_QUEUES", '{"Mail.Fast": {"concurrency": 3}}')
    assert Settings.load().queues["Mail.Fast"].concurrency == 3


def test_a_setting_is_shown_under_the_name_by_which_it_can_be_set():
    overrides = nested(['queues."mail.fast".paused=true'])
    (shown,) = origins(None, overrides)
    assert shown == f"queues.{quoted('mail.fast')}.paused"
    assert flatten(Settings.load(**overrides))[shown] is True
