"""A planted password is provoked in every way that settings can be wrong, and must not be told anywhere."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from scylla_spark.cli import one_command as cli
from scylla_spark.config.assignments import nested
from scylla_spark.config.settings import Settings, flatten
from scylla_spark.errors import ConfigError, SchedulerError
from scylla_spark.io.kafka.topics import client_options, spark_options

CANARY = "Canary-7fQ2"
ACCESS = {"bootstrap_servers": "127.0.0.1:1", "auth": "scram", "username": "me", "password": CANARY}

# what a person may write into a file, each with the planted password and one thing that is wrong
FILES = {
    "wrong in another section": f"[kafka]\npassword = '{CANARY}'\n[dispatch]\nmax_children = 1",
    "wrong across sections": (
        f"[kafka]\nbootstrap_servers = 'a:1'\nauth = 'plain'\nusername = 'u'\npassword = '{CANARY}'\n"
        "[ingest]\nnear = '1m'"
    ),
    "useless": f"[kafka]\npassword = '{CANARY}'",
    "not enough": f"[kafka]\nbootstrap_servers = 'a:1'\nauth = 'scram'\npassword = '{CANARY}'",
    "misspelt": f"[kafka]\npasword = '{CANARY}'",
    "wrong section": f"[topics]\npassword = '{CANARY}'",
    "no section": f"password = '{CANARY}'",
    "a list": f"[kafka]\npassword = ['{CANARY}']",
    "a table": f"[kafka.password]\nvalue = '{CANARY}'",
    "the section itself": f"kafka = '{CANARY}'",
    "a queue": f"[queues]\nmail = '{CANARY}'",
    "an option of the wrong type": f"[kafka.python_options]\nssl_password = ['{CANARY}']",
    "an option that is none": f"[kafka.java_options]\n'group.id' = '{CANARY}'",
    "twice": f"[kafka]\npassword = '{CANARY}'\npassword = '{CANARY}'",
    "not TOML": f"[kafka]\npassword = {CANARY}",
    "cut short": f"[kafka]\npassword = '{CANARY}",
}
VARIABLES = {
    "a section that is no JSON": ("SCYLLASPARK_KAFKA", CANARY),
    "a section that is a text": ("SCYLLASPARK_KAFKA", f'"{CANARY}"'),
    "a section cut short": ("SCYLLASPARK_KAFKA", f'{{"password": "{CANARY}"'),
    "a password alone": ("SCYLLASPARK_KAFKA__PASSWORD", CANARY),
    "options that are no JSON": ("SCYLLASPARK_KAFKA__JAVA_OPTIONS", CANARY),
    "a misspelt name": ("SCYLLASPARK_KAFKA__PASWORD", CANARY),
}
FLAGS = {
    "misspelt": [f"kafka.pasword={CANARY}"],
    "no equals sign": [f"kafka.password:{CANARY}"],
    "nothing else": [CANARY],
    "below a value": [f"kafka={CANARY}", "kafka.password=x"],
    "too deep": [f"kafka.password.value={CANARY}"],
    "useless": [f"kafka.password={CANARY}"],
    "the section itself": [f"kafka={CANARY}"],
}


@pytest.fixture(autouse=True)
def _empty_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.upper().startswith("SCYLLASPARK_"):
            monkeypatch.delenv(name)


def all_that_is_told(error: BaseException) -> str:
    """Text, representation and the whole chain of an error, also what `from None` hides from tracebacks."""
    told, todo = "", [error]
    while todo:
        one = todo.pop()
        told += "".join(traceback.format_exception(one)) + repr(one) + str(vars(one))
        todo += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
    return told


@pytest.mark.parametrize("case", FILES)
def test_no_error_about_a_file_tells_a_password(case, capfd):
    path = Path("scyllaspark.toml")
    path.write_text(FILES[case])
    with pytest.raises(ConfigError) as caught:
        Settings.load()
    assert CANARY not in all_that_is_told(caught.value)
    assert cli.run(["config", "validate"]) == 7
    assert cli.run(["config", "show", "--origin"]) == 7
    assert CANARY not in "".join(capfd.readouterr())


@pytest.mark.parametrize("case", VARIABLES)
def test_no_error_about_the_environment_tells_a_password(case, capfd, monkeypatch):
    monkeypatch.setenv(*VARIABLES[case])
    with pytest.raises(ConfigError) as caught:
        Settings.load()
    assert CANARY not in all_that_is_told(caught.value)
    assert cli.run(["config", "validate"]) == 7
    assert CANARY not in "".join(capfd.readouterr())


@pytest.mark.parametrize("case", FLAGS)
def test_no_error_about_flags_tells_a_password(case, capfd):
    with pytest.raises(SchedulerError) as caught:
        Settings.load(**nested(FLAGS[case]))
    assert CANARY not in all_that_is_told(caught.value)
    assert (
        cli.run(["config", "validate", *[word for text in FLAGS[case] for word in ("--set", text)]])
        == caught.value.exit_code
    )
    assert CANARY not in "".join(capfd.readouterr())


SHAPES = st.recursive(
    st.just(CANARY) | st.just(f"a {CANARY} b"),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=2) | st.dictionaries(st.sampled_from(["value", "x"]), inner, min_size=1)
    ),
)
SECTIONS = sorted(name for name, field in Settings.model_fields.items() if hasattr(field.default, "model_dump"))
# where a secret may stand: where it belongs, under a name that does not exist, or in place of a whole section
PLACES = (
    st.sampled_from(
        [("kafka", "password"), ("kafka", "python_options"), ("kafka", "java_options"), ("queues", "mail"), ("queues",)]
    )
    | st.tuples(st.sampled_from(SECTIONS), st.text("abcxyz", min_size=3))
    | st.tuples(
        st.sampled_from(["kafka", "queues"]),
        st.sampled_from(["mail", "python_options", "java_options"]),
        st.text("abcxyz"),
    )
    | st.tuples(st.sampled_from(SECTIONS))
    | st.tuples(st.text("abcxyz", min_size=3))
)
MISTAKES = st.sampled_from(
    [{}, {"partitions": "many"}, {"dispatch": {"max_children": 1}}, {"ingest": {"near": "1m"}}, {"log": 7}]
)


@given(PLACES, SHAPES, MISTAKES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.slow
def test_wherever_a_secret_stands_and_whatever_else_is_wrong_no_error_tells_it(place, value, mistake):
    tree: object = value
    for name in reversed(place):
        tree = {name: tree}
    assert isinstance(tree, dict)
    try:
        shown = repr(Settings.load(**mistake | tree))
    except ConfigError as error:
        shown = all_that_is_told(error)
    assert CANARY not in shown


def test_settings_made_without_the_loader_tell_no_password_either():
    with pytest.raises(ValidationError) as caught:
        Settings(_env_file=None, kafka=ACCESS, dispatch={"max_children": 1})
    assert CANARY not in str(caught.value)


def test_what_is_shown_of_valid_settings_has_no_password(capfd):
    loaded = Settings.load(kafka=ACCESS | {"java_options": {"ssl.key.password": CANARY}})
    shown = repr(loaded) + str(loaded) + str(flatten(loaded)) + loaded.model_dump_json() + f"{loaded.kafka}"
    assert CANARY not in shown
    given = [f"--set=kafka.{name}={value}" for name, value in ACCESS.items()]
    for form in ("table", "json", "csv"):
        assert cli.run([*given, "config", "show", "-o", form]) == 0
    out, err = capfd.readouterr()
    assert CANARY not in out + err
    assert "**********" in out


def test_a_wrong_value_that_cannot_be_secret_is_still_told():
    with pytest.raises(ConfigError, match=r"partitions: .* \(got 'many'\)"):
        Settings.load(partitions="many")
    with pytest.raises(ConfigError, match=r"queues\.mail\.rate: .* \(got 'fast'\)"):
        Settings.load(queues={"mail": {"rate": "fast"}})


@pytest.mark.slow
def test_a_broker_that_does_not_answer_is_told_without_the_password(capfd, caplog, tmp_path):
    given = [f"--set=kafka.{name}={value}" for name, value in (ACCESS | {"request_timeout": "300ms"}).items()]
    arguments = [*given, "--data", str(tmp_path), "init"]
    assert cli.run(arguments) == 5
    assert cli.run(["--debug", *arguments]) == 5
    told = "".join(capfd.readouterr())
    assert "Traceback" in told, "the error was looked at with all its causes"
    assert CANARY not in told + caplog.text
    assert caplog.text, "what kafka-python logs was looked at"


def test_a_missing_file_of_the_password_is_named(tmp_path):
    access = ACCESS | {"password": None, "password_file": tmp_path / "nowhere"}
    loaded = Settings.load(kafka=access)
    for options in (client_options, spark_options):
        with pytest.raises(ConfigError, match=r"kafka\.password_file: .*nowhere cannot be read"):
            options(loaded)
