"""Settings: where they come from, which source wins, what is refused; and the example file that shows all of them."""

from __future__ import annotations

import os
import re
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from scylla_spark.config.settings import Settings, flatten, origins
from scylla_spark.definitions.queue import Queue
from scylla_spark.duration import duration, duration_ms, duration_us
from scylla_spark.errors import ConfigError

EXAMPLE = Path(__file__).parents[2] / "conf" / "scyllaspark.example.toml"


@pytest.fixture(autouse=True)
def _empty_place(tmp_path, monkeypatch):
    """A working directory without files of ours, and no variables of ours."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.upper().startswith("SCYLLASPARK_"):
            monkeypatch.delenv(name)


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.write_text(text)
    return path


# -- the example file ---------------------------------------------------------------------------------------------------


def uncommented(text: str) -> str:
    """The example with its settings switched on: a line "# name = value" becomes "name = value"."""
    return re.sub(r"^# (?=[a-z_]+ = |\[)", "", text, flags=re.MULTILINE)


def with_access(text: str, *names: str) -> str:
    """The example switched on, of the settings of access only those named: not all of them fit together."""
    optional = re.findall(r"^# ([a-z0-9_]+) = ", text.partition("[broker]")[0], flags=re.MULTILINE)
    for name in set(optional) - set(names):
        text = text.replace(f"# {name} = ", f"## {name} = ")
    return uncommented(text).replace('bootstrap_servers = ""', 'bootstrap_servers = "kafka:9093"')


def names(model: type[BaseModel] | BaseModel, prefix: str = "") -> list[str]:
    """Dotted names of all fields, in the order of their declaration."""
    found = []
    for name, field in type(model).model_fields.items() if isinstance(model, BaseModel) else model.model_fields.items():
        kind = field.annotation
        if name == "queues":
            found += [f"queues.mail.{one}" for one in Queue.model_fields if one != "name"]
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            found += names(kind, f"{prefix}{name}.")
        else:
            found.append(prefix + name)
    return found


def dotted(tree: dict, prefix: str = "") -> dict:
    flat = {}
    for name, value in tree.items():
        flat |= dotted(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {prefix + name: value}
    return flat


def test_the_example_shows_every_setting_that_a_file_can_name():
    shown = dotted(tomllib.loads(uncommented(EXAMPLE.read_text())))
    assert sorted(shown) == sorted(names(Settings))


def test_the_example_as_it_stands_changes_nothing():
    assert Settings.load(EXAMPLE).model_dump() == Settings.load().model_dump()


def test_the_values_in_the_example_are_the_defaults():
    defaults = flatten(Settings.load(queues={"mail": {}}))
    shown = dotted(tomllib.loads(uncommented(EXAMPLE.read_text())))
    for name, value in shown.items():
        if defaults.get(name) is None:
            continue  # TOML has no null: an example value stands behind the comment sign
        assert value == _plain(defaults[name]), name


def test_a_setting_without_default_is_commented_out_and_would_be_accepted():
    active = dotted(tomllib.loads(EXAMPLE.read_text()))
    unset = {name for name, value in flatten(Settings.load(queues={"mail": {}})).items() if value is None}
    assert active.keys() & unset == set()


@pytest.mark.parametrize(
    ("auth", "names"),
    [
        ("plain", ["username", "password"]),
        ("scram", ["username", "password_file"]),
        ("oauth", ["username", "password", "oauth_token_url", "oauth_scope", "ca_file"]),
        ("mtls", ["client_cert_file", "client_key_file", "ca_file"]),
    ],
)
def test_every_way_of_access_in_the_example_is_accepted(auth, names):
    text = with_access(EXAMPLE.read_text(), *names)
    text = text.replace('auth = "none"', f'auth = "{auth}"').replace("tls = false", "tls = true")
    kafka = Settings.load(write("all.toml", text)).kafka
    assert kafka.auth == auth
    assert {name for name in names if getattr(kafka, name) is None} == set()


def test_every_setting_in_the_example_has_a_comment():
    bare = []
    commented = False
    for line in EXAMPLE.read_text().splitlines():
        if re.match(r"^(# )?[a-z_]+ = ", line):
            bare += [line] if not commented and "  # " not in line else []
            commented = False
        else:
            commented = line.startswith("#")
    assert bare == []


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


# -- precedence ---------------------------------------------------------------------------------------------------------


def test_flags_win_over_environment_over_dotenv_over_file_over_defaults(monkeypatch):
    assert Settings.load().partitions == 8
    write(
        "scyllaspark.toml",
        "partitions = 1\n[kafka]\nbootstrap_servers = 'file:1'\n[topics]\ntasks = 'file'\noutcomes = 'file-2'",
    )
    assert Settings.load().partitions == 1
    write(
        ".env",
        "SCYLLASPARK_PARTITIONS=2\nSCYLLASPARK_KAFKA__BOOTSTRAP_SERVERS=dotenv:1\nSCYLLASPARK_TOPICS__TASKS=dotenv",
    )
    assert Settings.load().partitions == 2
    monkeypatch.setenv("SCYLLASPARK_PARTITIONS", "3")
    monkeypatch.setenv("SCYLLASPARK_KAFKA__BOOTSTRAP_SERVERS", "environment:1")
    assert Settings.load().partitions == 3
    settings = Settings.load(partitions=4)
    assert settings.partitions == 4
    assert settings.kafka.bootstrap_servers == "environment:1"
    assert (settings.topics.tasks, settings.topics.outcomes) == ("dotenv", "file-2"), "sections are merged key by key"
    assert origins(None, {"partitions": 4}) == {
        "partitions": "flag",
        "kafka.bootstrap_servers": "environment",
        "topics.tasks": ".env",
        "topics.outcomes": "scyllaspark.toml",
    }


def test_a_named_file_replaces_the_default_one():
    write("scyllaspark.toml", "partitions = 1\n[topics]\ntasks = 'default'")
    settings = Settings.load(write("other.toml", "partitions = 2"))
    assert (settings.partitions, settings.topics.tasks) == (2, "tasks")


# -- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("partition = 1", "partition"),
        ("[dispatch]\nlookahead = '5m'", "dispatch.lookahead"),
        ("[nothing]\na = 1", "nothing"),
        ("partitions = 0", "partitions"),
        ("partitions = 'many'", "partitions"),
        ("[dispatch]\ndrain = 'soon'", "dispatch.drain"),
        ("[dispatch]\ndrain = -1", "dispatch.drain"),
        ("[dispatch]\nmin_children = 9\nmax_children = 2", "max_children"),
        ("[kafka]\nauth = 'kerberos'", "kafka.auth"),
        ("partitions = ", "TOML"),
    ],
)
def test_a_wrong_file_is_refused_and_the_message_names_the_setting(text, told):
    with pytest.raises(ConfigError, match=told):
        Settings.load(write("wrong.toml", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[dispatch]\nlookahead = '5m'",
            "dispatch.lookahead (in wrong.toml): there is no such setting (did you mean look_ahead?).",
        ),
        (
            '[queues."a.b"]\nconcurency = 1',
            'queues."a.b".concurency (in wrong.toml): there is no such setting (did you mean concurrency?).',
        ),
        ("xyzzy = 'hunter2'", "xyzzy (in wrong.toml): there is no such setting."),
        ("[queues.mail]\nrate = 'x'", "queues.mail.rate (in wrong.toml): Input should be a valid number (got 'x')."),
        (
            "dispatch = 'hunter2'",
            "dispatch (in wrong.toml): Input should be a valid dictionary or instance of Dispatch.",
        ),
    ],
)
def test_a_message_names_file_setting_and_what_was_probably_meant(text, message):
    with pytest.raises(ConfigError) as error:
        Settings.load(Path(write("wrong.toml", text).name))
    assert error.value.message == f"Settings are not valid: {message}"


def test_a_message_names_the_environment(monkeypatch):
    monkeypatch.setenv("SCYLLASPARK_PARTITIONS", "many")
    with pytest.raises(ConfigError, match=r"partitions \(in the environment\): Input should be"):
        Settings.load()


def test_an_unknown_variable_of_a_section_is_refused(monkeypatch):
    monkeypatch.setenv("SCYLLASPARK_DISPATCH__LOOKAHEAD", "5m")
    with pytest.raises(ConfigError, match=r"dispatch\.lookahead"):
        Settings.load()


def test_an_unknown_top_level_variable_is_refused(monkeypatch):
    monkeypatch.setenv("SCYLLASPARK_PARTITION", "4")
    with pytest.raises(ConfigError, match="partition"):
        Settings.load()


def test_an_unknown_name_in_dotenv_or_flags_is_refused():
    with pytest.raises(ConfigError, match="partition"):
        Settings.load(partition=1)
    write(".env", "SCYLLASPARK_PARTITION=4\nOTHER_PROGRAM=1")
    with pytest.raises(ConfigError, match="partition"):
        Settings.load()


def test_variables_of_other_programs_in_dotenv_do_no_harm():
    write(".env", "OTHER_PROGRAM=1\nSCYLLASPARK_PARTITIONS=4")
    assert Settings.load().partitions == 4


def test_a_named_file_that_is_missing_is_refused():
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        Settings.load(Path("nowhere.toml"))


# -- durations ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'250ms'", timedelta(milliseconds=250)),
        ("'1h30m'", timedelta(minutes=90)),
        ("'2 m'", timedelta(minutes=2)),
        ("45", timedelta(seconds=45)),
        ("1.5", timedelta(seconds=1.5)),
        ("'0s'", timedelta(0)),
    ],
)
def test_durations_are_typed(text, expected):
    assert Settings.load(write("d.toml", f"[dispatch]\ndrain = {text}")).dispatch.drain == expected


def test_a_duration_from_the_environment_is_typed(monkeypatch):
    monkeypatch.setenv("SCYLLASPARK_DISPATCH__DRAIN", "90s")
    assert Settings.load().dispatch.drain == timedelta(seconds=90)


def test_retries_for_ever_can_be_set_from_the_environment(monkeypatch):
    monkeypatch.setenv("SCYLLASPARK_DISPATCH__MAX_RETRIES", "null")
    assert Settings.load().dispatch.max_retries is None


def test_every_unit_of_a_duration_agrees():
    for value in ("1h30m", 1.5, timedelta(milliseconds=250), 0):
        assert duration_us(value) == duration_ms(value) * 1000 == duration(value) // timedelta(microseconds=1)


def test_fewer_spark_workers_at_most_than_at_least_are_refused():
    with pytest.raises(ConfigError, match=r"spark_workers\.min is 3, and spark_workers\.max only 2"):
        Settings.load(spark_workers={"min": 3, "max": 2})
    assert Settings.load(dispatch={"scan": "reader"}).spark_workers.max == 8


def test_queues_of_the_settings_mean_the_same_in_a_process_that_was_handed_all_of_them():
    for queue in ({"concurrency": 5}, {"max_retries": "deployment"}, {"max_retries": "forever"}, {"retention": "1d"}):
        settings = Settings(queues={"mail": queue})
        handed = Settings(**settings.model_dump())
        assert handed.queues == settings.queues
