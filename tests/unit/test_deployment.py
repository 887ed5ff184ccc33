"""A deployment starts, attaches and stops whatever services its roles have, and opens a session only for those that need one."""

import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from scylla_spark.cli import one_command as cli
from scylla_spark.config.settings import Metrics, Settings
from scylla_spark.core.records.command import Rules
from scylla_spark.errors import (
    ArgumentError,
    ClockError,
    ConfigError,
    ConflictError,
    DiskFullError,
    NotFoundError,
    SetupError,
    UnreachableError,
)
from scylla_spark.executors.interface import OnSession
from scylla_spark.io.delta.table_reader import TableReader
from scylla_spark.io.host.http_get import fetch
from scylla_spark.processes import deployment
from scylla_spark.processes import roles as catalog
from scylla_spark.processes.bounded_stop import LIMIT_S
from scylla_spark.processes.deployment import Deployment
from scylla_spark.services.dispatch import executor_catalog as executors
from scylla_spark.services.dispatch.dispatcher import Dispatcher
from scylla_spark.services.dispatch.service import DispatchService
from scylla_spark.services.dispatch.tasks_tail import TasksTail
from scylla_spark.services.service import Role

SESSION = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
READER = {"dispatch": {"scan": "reader"}}


class Recorded:
    """A service that writes down what happens to it; it is ready after some looks."""

    def __init__(self, name, told, *, looks=0, fails_at=""):
        self.name, self.told, self.looks, self.fails_at = name, told, looks, fails_at
        self.lives = True

    def _tell(self, event):
        self.told.append(f"{self.name} {event}")
        if event == self.fails_at:
            raise SetupError(f"{self.name} cannot {event}.")

    def start(self):
        self._tell("start")

    def attach(self, spark):
        assert spark is SESSION
        self._tell("attach")

    def ready(self):
        self.looks -= 1
        return self.looks < 0

    def alive(self):
        return self.lives

    def stop(self):
        self._tell("stop")


class Other(Recorded):
    """Another kind of service."""


@pytest.fixture
def told():
    return []


@pytest.fixture
def roles(monkeypatch, told):
    """Sets the roles that there are: name → (service, whether it needs a session); session and JVM are written down."""

    def use(**wanted):
        found = {
            name: Role(lambda _settings, _server, one=one: one, lambda _settings, n=needs: n, own_port(name))
            for name, (one, needs) in wanted.items()
        }
        monkeypatch.setattr(deployment, "ROLES", found)
        monkeypatch.setattr(deployment, "role_named", found.__getitem__)
        monkeypatch.setattr(deployment, "launch_jvm", lambda *_, **__: told.append("launch"))
        return tuple(found)

    monkeypatch.setattr(deployment, "_PATIENCE_S", 30.0)
    return use


def own_port(name):
    """Ports of these tests: "main" has none of its own."""
    return None if name == "main" else {"left": lambda _metrics: 4_001}.get(name, lambda metrics: metrics.ingest_port)


def settings(folder, **changes):
    return Settings(data_dir=folder, kafka={"bootstrap_servers": "127.0.0.1:1"}, **changes)


def test_what_starts_first_is_attached_and_stopped_last(roles, told, tmp_path):
    names = roles(**{name: (Recorded(name, told), True) for name in ("first", "second", "third")})
    with Deployment(settings(tmp_path), roles=names, spark=SESSION) as running:
        assert told == [
            "first start", "second start", "third start", "third attach", "second attach", "first attach",
        ]  # fmt: skip
        assert running.await_ready(timeout_s=1)
        told.clear()
    assert told == ["third stop", "second stop", "first stop"]


@pytest.mark.slow
def test_a_service_is_attached_once_those_before_it_are_ready(roles, told, tmp_path):
    slow = Recorded("slow", told, looks=3)
    names = roles(patient=(Recorded("patient", told), True), slow=(slow, True))
    with Deployment(settings(tmp_path), roles=names, spark=SESSION):
        assert slow.looks == -1, "it was asked until it was ready, and no more"
        assert told[-2:] == ["slow attach", "patient attach"]


@pytest.mark.slow
def test_a_service_waits_for_one_that_is_not_ready_no_longer_than_a_while(roles, told, tmp_path, monkeypatch):
    monkeypatch.setattr(deployment, "_PATIENCE_S", 0.05)
    names = roles(patient=(Recorded("patient", told), True), never=(Recorded("never", told, looks=10**9), True))
    with Deployment(settings(tmp_path), roles=names, spark=SESSION) as running:
        assert told[-1] == "patient attach"
        assert not running.await_ready(timeout_s=0.05)


def test_no_session_is_begun_where_no_service_needs_one(roles, told, tmp_path):
    names = roles(light=(Recorded("light", told), False))
    with Deployment(settings(tmp_path), roles=names) as running:
        assert told == ["light start"]
        assert running.spark is None


def test_the_jvm_is_launched_before_anything_starts(roles, told, tmp_path, monkeypatch):
    names = roles(light=(Recorded("light", told), False), heavy=(Recorded("heavy", told), True))
    monkeypatch.setattr(Deployment, "_session", lambda _self: SESSION)
    with Deployment(settings(tmp_path), roles=names):
        assert told == ["launch", "light start", "heavy start", "heavy attach"]


def test_only_the_roles_that_are_asked_for_run(roles, told, tmp_path):
    roles(one=(Recorded("one", told), False), two=(Recorded("two", told), False))
    with Deployment(settings(tmp_path), roles=["two"]) as running:
        assert (told, running.roles) == (["two start"], ("two",))


def test_executors_without_the_package_end_the_start_before_anything_is_attached(roles, told, tmp_path):
    def parallelize(*_):
        raise RuntimeError("at stage 0:\nModuleNotFoundError: No module named 'scylla_spark'\n at java")

    names = roles(one=(Recorded("one", told), True))
    session = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://head:7077", parallelize=parallelize))
    with pytest.raises(
        SetupError, match=r"executors of spark://head:7077 .* No module named 'scylla_spark'\. Let spark-submit"
    ):
        Deployment(settings(tmp_path), roles=names, spark=session).start()
    assert told[-2:] == ["one start", "one stop"]


@pytest.mark.parametrize("event", ["start", "attach"])
def test_when_one_cannot_begin_those_that_have_begun_are_stopped(roles, told, tmp_path, event):
    names = roles(one=(Recorded("one", told), True), two=(Recorded("two", told, fails_at=event), True))
    with pytest.raises(SetupError, match=f"two cannot {event}"):
        Deployment(settings(tmp_path), roles=names, spark=SESSION).start()
    assert told[-2:] == ["two stop", "one stop"]


def test_a_dispatcher_without_tables_says_so_and_stops(tmp_path):
    with pytest.raises(NotFoundError):
        Deployment(settings(tmp_path, logs={"enabled": False}, **READER), roles=["dispatch"]).start()


@pytest.mark.slow
@pytest.mark.parametrize("module", ["no_such_module", "./no_such_file.py"])
def test_a_dispatcher_says_which_handlers_it_cannot_import_and_stops(tmp_path, monkeypatch, module):
    monkeypatch.setattr(TableReader, "rules", lambda _self: Rules(8))
    changes = {"logs": {"enabled": False}, "handlers": (module,), **READER}
    with pytest.raises((ConfigError, ArgumentError), match=module.strip("./")):
        Deployment(settings(tmp_path, **changes), roles=["dispatch"]).start()


def test_a_dispatcher_whose_tails_have_not_begun_stops(tmp_path):
    chosen = settings(tmp_path)
    dispatcher = Dispatcher(chosen, {})
    tasks = TasksTail(chosen, Rules(2), dispatcher.mailbox, dispatcher.engine, dispatcher, dict)
    dispatcher.use(None, tasks, dispatcher._outcomes)
    dispatcher.stop()


def test_all_are_stopped_even_if_one_fails_to(roles, told, tmp_path):
    names = roles(one=(Recorded("one", told), False), two=(Recorded("two", told, fails_at="stop"), False))
    running = Deployment(settings(tmp_path), roles=names).start()
    with pytest.raises(SetupError, match="two cannot stop"):
        running.stop()
    assert told[-2:] == ["two stop", "one stop"]


@pytest.mark.slow
def test_the_error_that_ended_it_is_reported_and_not_what_the_stop_says_to_it(roles, told, tmp_path):
    one = Recorded("one", told, fails_at="stop")
    names = roles(one=(one, False))
    one.alive = lambda: (_ for _ in ()).throw(SetupError("the first cause."))
    with pytest.raises(SetupError, match="the first cause"), Deployment(settings(tmp_path), roles=names) as running:
        running.serve(threading.Event())
    assert told[-1] == "one stop"


def test_a_part_that_does_not_stop_is_left_after_its_limit_and_the_others_are_stopped(
    roles, told, tmp_path, monkeypatch
):
    hangs = Recorded("hangs", told)
    forever = threading.Event()
    hangs.stop = forever.wait
    names = roles(one=(Recorded("one", told), False), hangs=(hangs, False))
    monkeypatch.setattr(deployment, "LIMIT_S", 0.05)
    running = Deployment(settings(tmp_path, dispatch={"drain": "0s"}), roles=names).start()
    running.stop()
    assert told[-1] == "one stop"
    forever.set()


def test_a_service_whose_clock_was_set_back_is_started_again_and_the_others_go_on(roles, told, tmp_path):
    clocked, other = Recorded("clocked", told), Recorded("other", told)
    clocked.alive = lambda: clocked.lives or (_ for _ in ()).throw(ClockError("The clock was set back."))
    names = roles(other=(other, False), clocked=(clocked, True))
    with Deployment(settings(tmp_path), roles=names, spark=SESSION) as running:
        told.clear()
        clocked.lives = False
        clocked.start = lambda: setattr(clocked, "lives", True)
        running.check()
        assert told == ["clocked stop", "clocked attach"]
        running.check()
    assert told[2:] == ["clocked stop", "other stop"]


@pytest.mark.parametrize("when", ["start", "later"])
def test_a_full_disk_is_the_first_cause(roles, told, tmp_path, monkeypatch, when):
    one = Recorded("one", told)
    names = roles(one=(one, False))
    full = [tmp_path] if when == "start" else []
    monkeypatch.setattr(deployment, "full_folder", lambda _folders: full[0] if full else None)
    one.alive = lambda: (_ for _ in ()).throw(ValueError("what a full disk leads to"))
    running = Deployment(settings(tmp_path), roles=names)
    if when == "later":
        running.start()
        full.append(tmp_path)
    with pytest.raises(DiskFullError, match=f"^no space left on {tmp_path}"):
        (running.start if when == "start" else running.check)()
    running.stop()


def test_the_fullest_disk_is_named_where_the_error_names_none(roles, told, tmp_path, monkeypatch):
    one = Recorded("one", told)
    one.alive = lambda: (_ for _ in ()).throw(RuntimeError("java.io.IOException: No space left on device"))
    monkeypatch.setattr(deployment, "free_bytes", lambda folder: 20 if folder == tmp_path else 2**30)
    with (
        pytest.raises(DiskFullError, match=f"^no space left on {tmp_path}:"),
        Deployment(settings(tmp_path), roles=roles(one=(one, False))) as running,
    ):
        running.check()


@pytest.mark.parametrize(("most", "least_s"), [(8, 300), (0, 0)])
def test_a_stop_may_take_as_long_as_the_lease_of_a_silent_spark_worker(roles, told, tmp_path, most, least_s):
    given = settings(tmp_path)
    patient = given.dispatch.model_copy(update={"session_timeout": timedelta(minutes=5), "drain": timedelta(0)})
    workers = given.spark_workers.model_copy(update={"max": most})
    given = given.model_copy(update={"dispatch": patient, "spark_workers": workers})
    with Deployment(given, roles=roles(one=(Recorded("one", told), False))) as running:
        limits = {one.part: one.limit_s for one in running._ends}
    assert limits["one"] == LIMIT_S + least_s


def test_a_jvm_that_has_ended_is_the_first_cause(roles, told, tmp_path, monkeypatch):
    one = Recorded("one", told)
    names = roles(one=(one, True))
    with Deployment(settings(tmp_path), roles=names, spark=SESSION) as running:
        one.alive = lambda: (_ for _ in ()).throw(ConnectionRefusedError("what that leads to"))
        ended = [None, None, None, "killed by SIGKILL"]  # it takes a moment to end
        monkeypatch.setattr(deployment, "jvm_ended", lambda: ended.pop(0))
        with pytest.raises(UnreachableError, match=r"JVM has ended \(killed by SIGKILL\)"):
            running.check()


@pytest.mark.slow
def test_a_service_that_ends_ends_the_process(roles, told, tmp_path):
    names = roles(one=(Recorded("one", told), False))
    with Deployment(settings(tmp_path), roles=names) as running:
        running.check()
        running.service(Recorded).lives = False
        with pytest.raises(ConflictError, match="'one' has ended"):
            running.serve(threading.Event())


def test_services_are_found_by_their_kind_and_state_is_shown_as_long_as_they_run(roles, told, tmp_path):
    names = roles(first=(Recorded("first", told), False), second=(Other("second", told), False))
    with Deployment(settings(tmp_path), roles=names) as running:
        assert running.service(Other).name == "second"
        shown = fetch(f"{running.metrics}/metrics", timeout_s=5.0, largest=1 << 20)
        assert b"scyllaspark_interpreter_pause_seconds_count" in shown
        with pytest.raises(NotFoundError, match="No DispatchService runs here"):
            running.service(DispatchService)


@pytest.mark.parametrize(
    ("names", "port"),
    [
        (("main",), 4_000),
        (("left",), 4_001),
        (("right",), 4_002),
        (("left", "right"), 4_001),
        (("left", "main"), 4_000),
        (("left", "right", "main"), 4_000),
        ((), 4_000),
    ],
)
def test_a_process_without_the_main_role_serves_at_the_port_of_its_first(roles, told, tmp_path, names, port):
    roles(**{name: (Recorded(name, told), False) for name in ("left", "right", "main")})
    running = Deployment(settings(tmp_path, metrics={"port": 4_000, "ingest_port": 4_002}), roles=names)
    assert running._shown_at().port == port


def test_every_role_that_runs_alone_has_a_setting_of_its_own_for_the_port():
    metrics = Metrics(**{name: 4_000 + n for n, name in enumerate(Metrics.model_fields) if name.endswith("port")})
    own = [catalog.role_named(name).own_port for name in catalog.ROLES]
    ports = [metrics.port if port is None else port(metrics) for port in own]
    assert len(set(ports)) == len(ports)


def test_every_role_has_a_job_and_its_rows_in_the_tables_of_operations():
    root = Path(__file__).parents[2]
    page = (root / "docs" / "operations.md").read_text()
    processes, metrics = page.split("\n## ")[1], page.partition("| role | setting |")[2].partition("\n\n")[0]
    for name in catalog.ROLES:
        assert f"| {name} |" in processes
        assert f"| `{name}`" in metrics
        assert f'roles=["{name}"]' in (root / "jobs" / f"{name}.py").read_text()


def test_the_help_of_run_names_every_role(capsys):
    assert cli.run(["run", "--help"]) == 0
    assert ", ".join(catalog.ROLES) in " ".join(capsys.readouterr().out.split())


def test_an_unknown_role_is_refused_with_those_that_there_are():
    with pytest.raises(ArgumentError, match="no role \\['cook'\\]") as refused:
        Deployment(Settings(), roles=["cook"])
    assert "ingest, dispatch" in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "needing"),
    [({}, {"ingest", "dispatch"}), ({"spark_workers": {"max": 0}}, {"ingest", "dispatch"}), (READER, {"ingest"})],
)
def test_which_roles_need_a_session_follows_from_the_settings(changes, needing):
    chosen = Settings(**changes)
    assert {name for name in catalog.ROLES if catalog.role_named(name).needs_session(chosen)} == needing


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ["local", "spark", "notify"]), ({"spark_workers": {"max": 0}}, ["local", "notify"]),
        (READER, ["local", "notify"]),
    ],
)  # fmt: skip
def test_the_settings_say_which_executors_there_are(changes, names):
    chosen = Settings(**changes)
    made = executors.executors(chosen)
    assert list(made) == names
    needing = any(isinstance(one, OnSession) for one in made.values())
    assert needing == executors.needs_session(chosen) == ("spark" in names)


def test_ingest_that_ends_shares_its_process_with_nothing(tmp_path):
    settings = Settings(_env_file=None, data_dir=tmp_path, ingest={"available_now": True})
    for roles in (["ingest", "dispatch"], ["api"]):
        with pytest.raises(ConfigError, match=r"ingest\.available_now ends a process"):
            Deployment(settings, roles=roles)
    assert Deployment(settings, roles=["ingest"]).roles == ("ingest",)
