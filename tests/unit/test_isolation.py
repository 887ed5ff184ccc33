"""What handlers ask of isolation: how it is read, what is shown to a sandbox, what stands in a fact."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.core.records.fact import Fact, Fence, decode, encode_facts
from scylla_spark.core.tasks.attempt_note import WorkNote
from scylla_spark.core.tasks.key import TaskKey
from scylla_spark.errors import ArgumentError, ConfigError
from scylla_spark.executors.local import sandbox, system_call_filter
from scylla_spark.executors.local.forkserver import describe_handler
from scylla_spark.executors.local.forkserver_handle import parse_handler
from scylla_spark.executors.local.resource_limits import Confinement, tidy
from scylla_spark.handlers import registry as handler_registry
from scylla_spark.handlers.call import EXECUTOR_VARIABLE
from scylla_spark.handlers.description import HandlerInfo
from scylla_spark.handlers.isolation import Isolation, Wishes, asked_by, size_bytes
from scylla_spark.handlers.messages import Verdict
from scylla_spark.handlers.registry import handler, load
from scylla_spark.worker.handlers import resolved


@pytest.fixture(autouse=True)
def _empty_registry(monkeypatch):
    monkeypatch.setattr(handler_registry, "_registered", {})


def of(**wishes: object) -> Isolation | None:
    return asked_by("h", Wishes(**wishes))


def test_handler_that_asks_for_nothing_runs_where_all_do():
    assert of() is None
    assert HandlerInfo("h").executor == "local"


def test_handler_that_asks_for_something_has_an_executor_of_its_own():
    handler("h", memory="64MB")(lambda task: None)
    info = load([])["h"].info
    assert (info.executor, info.isolation) == ("own/h", Isolation(memory=64_000_000))


def test_sandbox_has_limits_where_none_are_named():
    assert of(isolation="sandbox") == Isolation("sandbox", 1_000_000_000, None, 64, 256)
    assert of(isolation="sandbox", processes=0, cpu="1500ms") == Isolation("sandbox", 1_000_000_000, 2, 0, 256)


@pytest.mark.parametrize(
    ("text", "size"), [("512MB", 512_000_000), ("1.5 GiB", 3 << 29), ("64KiB", 65_536), (7, 7), ("1kB", 1000)]
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    "wishes",
    [
        {"isolation": "vm"},
        {"isolation": ["sandbox"]},
        {"memory": "512"},
        {"memory": "-1MB"},
        {"memory": "1MB"},
        {"memory": "9" * 30 + "GB"},
        {"memory": True},
        {"cpu": "10ms"},
        {"cpu": "fast"},
        {"processes": 3},
        {"isolation": "sandbox", "processes": -1},
        {"open_files": 3},
        {"open_files": "64"},
        {"environment": ["A=1"]},
        {"environment": {"A": 1}},
        {"environment": {"A=B": "1"}},
        {"environment": {"A": "\0"}},
        {"environment": {"LD_PRELOAD": "x.so"}},
        {"environment": {"scyllaspark_x": "1"}},
        {"environment": {f"V{number}": "" for number in range(65)}},
        {"environment": {"A": "x" * 20_000}},
    ],
)
def test_what_cannot_be_asked_for_is_refused_when_the_handler_is_registered(wishes):
    with pytest.raises(ArgumentError):
        handler("h", **wishes)(lambda task: None)


def test_only_plain_handlers_without_a_session_have_children_of_their_own_kind():
    async def waits(task):
        pass

    with pytest.raises(ArgumentError, match="async def"):
        handler("h", memory="64MB")(waits)
    with pytest.raises(ArgumentError, match="runs_on='connect'"):
        handler("h", isolation="sandbox", runs_on="connect")(lambda task, ctx: None)
    handler("s", isolation="sandbox", runs_on="spark")(lambda task: None)
    assert load([])["s"].info.executor == "own/s"


def test_what_a_handler_asks_for_reaches_the_pool_unchanged():
    handler("h", isolation="sandbox", environment={"A": "ü"})(lambda task: None)
    entry = load([])["h"]
    name, info = parse_handler(json.loads(json.dumps(describe_handler("h", entry))))
    assert (name, replace(info, form=None)) == ("h", entry.info)


@pytest.mark.parametrize("told", [["vm", None, None, None, None, []], [], ["process", None, None, None, None, [["a"]]]])
def test_what_no_forkserver_says_of_isolation_is_refused(told):
    with pytest.raises(ConfigError):
        parse_handler(["handler", "h", "h", "local", None, None, None, None, told, ["", "", "", None, None]])


def test_workers_that_lease_do_not_offer_handlers_that_ask_for_isolation():
    handler("h", isolation="sandbox")(lambda task: None)
    handler("plain")(lambda task: None)
    assert set(resolved(())) == {"plain"}


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (("MemoryError", "", ""), "memory_exceeded"),
        (("_ArrayMemoryError", "Unable to allocate 1 GiB", ""), "memory_exceeded"),
        (("OSError", "[Errno 12] Cannot allocate memory", ""), "memory_exceeded"),
        (("OSError", "[Errno 24] Too many open files: 'x'", ""), "open_files_exceeded"),
        (("BlockingIOError", "[Errno 11] Resource temporarily unavailable", ""), "processes_exceeded"),
        (("RuntimeError", "can't start new thread", ""), "processes_exceeded"),
        (("OSError", "[Errno 28] No space left on device", ""), "disk_exceeded"),
        (("OSError", "[Errno 2] No such file", ""), "OSError"),
        (("ValueError", "not a MemoryError", ""), "ValueError"),
    ],
)
def test_a_limit_that_was_reached_is_the_kind_of_the_failure(failure, kind):
    isolation = of(isolation="sandbox")
    assert isolation is not None
    verdict, spoilt = Confinement(isolation, 2).judged(Verdict("failed", None, failure))
    assert verdict.failure is not None
    assert (verdict.failure[0], spoilt) == (kind, kind.endswith("_exceeded"))
    unlimited = Confinement(Isolation(), 2).judged(Verdict("failed", None, failure))
    assert unlimited.verdict.failure == failure


def test_rows_of_a_batch_are_judged_one_by_one():
    rows = [["succeeded", None, None, 0], ["failed", None, ["MemoryError", "", ""], 0]]
    verdict, spoilt = Confinement(Isolation(memory=1), 2).judged(("batch", rows, None, 0))
    assert spoilt
    assert [row.failure and row.failure[0] for row in verdict.result] == [None, "memory_exceeded"]


def test_tidying_up_does_nothing_outside_a_sandbox(tmp_path):
    mine = Path("/tmp") / f"mine-{os.getpid()}"
    mine.touch()
    try:
        tidy()
        assert mine.exists()
    finally:
        mine.unlink()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_of_system_calls_is_a_program_whose_jumps_end_inside(machine):
    program = system_call_filter.program(machine)
    assert program is not None
    steps = list(struct.iter_unpack("=HBBI", program))
    assert 50 < len(steps) < 4096
    for at, (code, yes, no, _) in enumerate(steps):
        assert code == 0x20 or code == 0x06 or at + 1 + max(yes, no) < len(steps)
    assert steps[-1] == (0x06, 0, 0, 0x7FFF0000)


def test_machine_whose_numbers_nobody_knows_has_no_filter():
    assert system_call_filter.program("vax") is None


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """Source paths that a sandbox gets to see, and those that are covered in there."""

    def of(*modules: Path, hidden: tuple[Path, ...] = ()) -> tuple[set[str], set[str]]:
        isolation = asked_by("h", Wishes("sandbox"))
        assert isolation is not None
        given = sandbox._arguments(sandbox.Sandboxed("h", isolation, [str(one) for one in modules], hidden))
        pairs = [(given[at + 1], given[at + 2]) for at, one in enumerate(given) if one == "--ro-bind"]
        empty = {given[at + 1] for at, one in enumerate(given) if one == "--tmpfs"}
        covered = {target for source, target in pairs if source == os.devnull} | empty
        return {source for source, _ in pairs if source != os.devnull}, covered

    return of


def test_of_a_folder_of_handlers_only_what_can_be_imported_is_shown(shown, tmp_path):
    for name in ("handlers.py", "secrets.toml", ".env", "package/__init__.py", "data/part.parquet", "notes/readme.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    seen, _ = shown(tmp_path / "handlers.py")
    assert {one for one in seen if one.startswith(str(tmp_path))} == {
        str(tmp_path / "handlers.py"), str(tmp_path / "package"),
    }  # fmt: skip


def test_folder_that_holds_home_or_data_is_never_shown(shown, tmp_path, monkeypatch):
    for name in ("handlers.py", "work/__init__.py", "work/data/x", "people/__init__.py", "people/me/.ssh"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    monkeypatch.setenv("HOME", str(tmp_path / "people" / "me"))
    seen, _ = shown(tmp_path / "handlers.py", hidden=(tmp_path / "work" / "data",))
    assert {one for one in seen if one.startswith(str(tmp_path))} == {str(tmp_path / "handlers.py")}


def test_secret_within_what_is_asked_to_be_readable_is_covered(tmp_path):
    (tmp_path / "models" / "data").mkdir(parents=True)
    (tmp_path / "models" / "key.pem").touch()
    hidden = [tmp_path / "models" / "data", tmp_path / "models" / "key.pem", tmp_path / "elsewhere"]
    assert sandbox._to_be_covered(hidden, [tmp_path / "models"]) == hidden[:2]


def test_variables_of_a_sandbox_are_few():
    given = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "HTTPS_PROXY": "http://u:p@x",
        "AWS_KEY": "k",
        "HOME": "/root",
        "SSH_AUTH_SOCK": "/x",
        EXECUTOR_VARIABLE: "7",
    }
    isolation = asked_by("h", Wishes("sandbox", environment={"REGION": "eu"}))
    assert isolation is not None
    assert sandbox.environment(given, isolation) == {
        "PATH": "/bin", "LC_ALL": "C", "HOME": "/tmp", "TMPDIR": "/tmp", "USER": "sandbox", "LOGNAME": "sandbox", "REGION": "eu",
        EXECUTOR_VARIABLE: "7",
    }  # fmt: skip


def test_key_files_of_the_settings_aresecret_paths(tmp_path):
    from scylla_spark.executors.local.local_executors import secret_paths

    (tmp_path / "key.pem").touch()
    kafka = {
        "client_key_file": tmp_path / "key.pem",
        "client_cert_file": tmp_path / "key.pem",
        "tls": True,
        "bootstrap_servers": "kafka.invalid:9092",
    }
    found = secret_paths(Settings(kafka=kafka, data_dir=tmp_path / "data", _env_file=None))
    assert {tmp_path / "key.pem", tmp_path / "data"} <= set(found)


def test_level_travels_in_facts_and_what_cannot_be_a_level_is_left_out():
    key = TaskKey(1_790_000_000_000_000, "lane", "u")
    facts = [Fact(key, 1, "succeeded", work=WorkNote(isolation=text)) for text in ("sandbox", "x" * 100, "")]
    (record,) = encode_facts(Fence(1, "n"), facts)
    found = [fact.work and fact.work.isolation for fact in decode(record).facts]  # type: ignore[union-attr]
    assert found == ["sandbox", "x" * 64, None]
