"""What is told of handlers: from the process that imports them, by a dispatcher, over HTTP, to the API, Python and the command line."""

from __future__ import annotations

import json
from contextlib import nullcontext
from html import unescape
from textwrap import dedent
from types import SimpleNamespace

import pytest

from scylla_spark.api.schedules import actions as schedule_actions
from scylla_spark.api.tasks import known_handlers
from scylla_spark.cli import one_command as cli
from scylla_spark.cli.context import Context
from scylla_spark.client import handlers
from scylla_spark.client.handlers import Catalogue, catalogue, gathered, missing_words
from scylla_spark.client.schedules.handle import ScheduleHandle
from scylla_spark.config.settings import Metrics
from scylla_spark.core.plan.state.plan_state import PlanState
from scylla_spark.errors import ArgumentError, ConfigError
from scylla_spark.executors.local.forkserver_handle import ForkserverHandle
from scylla_spark.handlers.description import MOST_SCHEMA, HandlerForm, HandlerInfo, heard_form
from scylla_spark.services.dispatch.describe import describe_handlers
from scylla_spark.services.metrics_server import MetricsServer
from scylla_spark.services.read_only_http_server import JSON, Reply, Route
from tests.api.test_api_access import give
from tests.support.api_site import Site, kind
from tests.support.dashboard_site import sent
from tests.support.delta_tables import make
from tests.support.waiting import holds

MODULE = dedent('''
    from typing import Literal
    from pydantic import BaseModel
    from scylla_spark import Retry, Task, handler

    class Remind(BaseModel):
        email: str
        invoice: int = 7
        by: Literal["mail", "post"] = "mail"

    class Receipt(BaseModel):
        sent: bool

    @handler("remind@2", retry=Retry(max_retries=5, base="20s"), timeout="30s")
    def remind(p: Remind) -> Receipt:
        """Reminds somebody.

        More than once."""
        return Receipt(sent=True)

    @handler("plain", isolation="process", memory="64MB")
    def plain(task: Task):
        return None
''')


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Handlers as a real process that imports them tells of them."""
    path = tmp_path_factory.mktemp("handlers") / "some_handlers.py"
    path.write_text(MODULE)
    handle = ForkserverHandle([str(path)])
    handle.close()
    return handle.handlers


@pytest.fixture
def dispatcher(known):
    """The address of what answers as a dispatcher does."""
    channels = {"channels": {"ops": True, "desk": False}}
    told = json.dumps(describe_handlers(known, 1_767_225_600_000_000) | channels).encode()
    server = MetricsServer(Metrics())
    server.answer({"/handlers": Route(lambda _query: Reply(JSON, told))})
    server.start()
    yield server.address
    server.stop()


@pytest.fixture
def site(tmp_path, dispatcher):
    make(f"{tmp_path}/tables")
    site = Site(str(tmp_path))
    site.connection.owner_address = lambda partition: dispatcher if partition else ""
    return site


@pytest.fixture
def client(site):
    with site.client() as client:
        yield client


def test_what_a_function_says_of_itself_reaches_the_dispatcher(known):
    assert set(known) == {"remind", "remind@2", "plain"}
    form = known["remind"].form
    assert (form.module, form.function, form.about) == ("some_handlers", "remind", "Reminds somebody.")
    assert json.loads(form.payload)["required"] == ["email"]
    assert json.loads(form.result)["properties"]["sent"]["type"] == "boolean"
    assert (known["plain"].form.payload, known["plain"].form.result) == (None, None)


def test_handlers_are_listed_with_what_a_form_needs(client, dispatcher):
    found = client.get("/v1/handlers").json()
    assert [one["name"] for one in found["handlers"]] == ["plain", "remind", "remind@2"]
    plain, remind, _ = found["handlers"]
    assert (plain["isolation"], plain["payload"], plain["about"]) == ("process", None, "")
    assert (remind["registered_as"], remind["runs_on"], remind["timeout_ms"]) == ("remind@2", "local", 30_000)
    assert remind["retry"] == {"max_retries": 5, "base_ms": 20_000, "cap_ms": remind["retry"]["cap_ms"]}
    assert remind["payload"]["properties"]["by"]["enum"] == ["mail", "post"]
    address = dispatcher.removeprefix("http://")
    assert remind["dispatchers"] == [{"address": address, "since": "2026-01-01T00:00:00Z"}]
    assert client.get("/v1/handlers/remind%402").json()["name"] == "remind@2"
    assert kind(client.get("/v1/handlers/none")) == "/problems/not-found"


def test_handlers_that_schedules_run_and_nobody_has_are_listed_with_schedules_that_one_may_see(site):
    admin, own = give(site, "admin"), give(site, "read", namespaces=["mail/"])
    with site.client() as client:
        for name, handler, queue in (
            ("a", "gone", "mail/a"),
            ("b", "gone", "other"),
            ("c", "lost", "other"),
            ("d", "plain", "other"),
        ):
            body = {"handler": handler, "queue": queue, "trigger": {"kind": "manual"}}
            assert client.put(f"/v1/schedules/{name}", json=body, headers=admin).status_code == 201
        assert client.get("/v1/handlers", headers=admin).json()["missing"] == {"gone": ["a", "b"], "lost": ["c"]}
        assert client.get("/v1/handlers", headers=own).json()["missing"] == {"gone": ["a"]}


def test_the_payload_of_a_run_by_hand_is_checked_by_the_schema_of_the_handler(client, site, monkeypatch):
    monkeypatch.setattr(schedule_actions, "_LOOKS_FOR_RUN", 0)  # no broker here would ever show the task
    client.put(
        "/v1/schedules/ask", json={"handler": "remind", "trigger": {"kind": "manual"}, "payload": {"email": "a@b.c"}}
    )
    refused = client.post("/v1/schedules/ask:run", json={"payload": {"email": 5}})
    assert (refused.status_code, kind(refused)) == (422, "/problems/invalid")
    assert "email: 5 is not of type 'string'" in refused.json()["detail"]
    with pytest.raises(ArgumentError, match="'email' is a required property"):
        ScheduleHandle(site.connection, "ask").run_now({})
    assert client.post("/v1/schedules/ask:run", json={"payload": {"email": "x@y.z"}}).status_code == 201
    assert client.post("/v1/schedules/ask:run").status_code == 201
    assert kind(client.post("/v1/schedules/none:run", json={"payload": {}})) == "/problems/not-found"

    page = client.get("/ui/schedules/ask")
    assert "Run with another payload" in page.text
    act = "/ui/schedules/ask/run"
    assert "is not of type" in unescape(sent(client, act, page, payload='{"email": 5}').text)
    assert "The payload is no JSON" in unescape(sent(client, act, page, payload="{").text)
    done = sent(client, act, client.get("/ui/schedules/ask"), payload='{"email": "p@q.r"}')
    assert done.status_code == 303
    assert site.connection.plan.planner.sent[-1]["taskData"] == {"email": "p@q.r"}


def test_of_many_schedules_of_a_missing_handler_some_are_named():
    assert missing_words({"gone": [f"s{n}" for n in range(12)]})[0].endswith("s8, s9 and 2 more.")
    assert "which this schedule runs: a." in missing_words({"gone": ["a"]})[0]


def test_a_handler_names_the_queues_that_fall_back_on_it_as_far_as_one_may_see_them(site):
    admin, own = give(site, "admin"), give(site, "read", namespaces=["mail/"])
    with site.client() as client:
        for queue in ("mail%2Fa", "foreign"):
            made = client.put(f"/v1/queues/{queue}", json={"default_handler": "plain"}, headers=admin)
            assert made.status_code == 201, made.text
        for path in ("/v1/handlers/plain", "/v1/handlers"):
            told = client.get(path, headers=own)
            assert "foreign" not in told.text
            assert '"queues":["mail/a"]' in told.text
        assert client.get("/v1/handlers/plain", headers=admin).json()["queues"] == ["foreign", "mail/a"]


def test_whoever_enqueues_for_a_handler_that_nobody_has_is_warned(client, site):
    told = [client.post("/v1/tasks", json={"handler": name}).json()["warning"] for name in ("remind", "remnd")]
    assert told[0] is None
    assert "'remnd'" in told[1]
    assert len(site.connection.sent) == 2, "it is sent all the same: a worker may have it, or a dispatcher of tomorrow"


def test_an_enqueue_is_warned_of_a_channel_that_is_unknown_or_closed_to_tasks(client):
    told = {
        name: client.post("/v1/tasks", json={"handler": "remind", "notify": name}).json()["warning"]
        for name in ("ops", "desk", "opz", "x")
    }
    assert told["ops"] is None
    assert told["desk"].endswith("Set notify.channels.desk.tasks to true.")
    assert told["opz"] == "There is no channel 'opz': no message is sent at the end of the task. Did you mean 'ops'?"
    assert told["x"].endswith("Set notify.channels.x, with tasks = true.")
    both = client.post("/v1/tasks", json={"handler": "remnd", "tags": ["notify:desk"]}).json()["warning"]
    assert "Did you mean 'remind'? The channel 'desk' is not open to tasks" in both
    lines = "".join(json.dumps({"handler": "remind", "notify": name}) + "\n" for name in ("opz", "ops", "opz"))
    bulk = client.post("/v1/tasks:bulk", content=lines, headers={"content-type": "application/x-ndjson"})
    assert len(json.loads(bulk.text.splitlines()[-1])["warnings"]) == 1


@pytest.mark.parametrize(
    "answers",
    [[None], [{}], [{"channels": 7}], [{"channels": {"ops": 1}}], [{"channels": {"ops": True}}, {"channels": {}}],
     [{"channels": {}}, None], []],
)  # fmt: skip
def test_no_channel_is_judged_unless_all_dispatchers_report_the_same(answers):
    found = gathered((f"http://a:{number}", answer) for number, answer in enumerate(answers))
    assert handlers.warnings_of(found, [], ["opz"]) == []
    agreed = gathered((f"http://a:{number}", {"channels": {"ops": True}}) for number in range(2))
    assert len(handlers.warnings_of(agreed, [], ["opz", "opz", "ops"])) == 1


def test_whoever_enqueues_many_is_warned_once_of_each_handler_that_nobody_has(client):
    lines = "".join(json.dumps({"handler": name}) + "\n" for name in ("remnd", "remind", "remnd"))
    last = client.post(
        "/v1/tasks:bulk", content=lines, headers={"content-type": "application/x-ndjson"}
    ).text.splitlines()[-1]
    told = json.loads(last)
    assert (told["accepted"], len(told["warnings"])) == (3, 1)
    assert "Did you mean 'remind'?" in told["warnings"][0]


def test_whoever_puts_a_schedule_is_warned_of_a_handler_or_a_calendar_that_is_not_there(client):
    plain = {"cron": "0 2 * * *"}
    assert client.put("/v1/schedules/a", json=plain | {"handler": "remind"}).json()["warnings"] == []
    told = client.put("/v1/schedules/b", json=plain | {"handler": "remnd", "calendar": "de"})
    assert told.status_code == 201
    assert [("'de'" in one, "'remnd'" in one) for one in told.json()["warnings"]] == [(True, False), (False, True)]
    assert (
        client.request("PATCH", "/v1/schedules/a", json={"handler": "remnd"}).json()["warnings"]
        == told.json()["warnings"][1:]
    )


def test_whoever_stores_a_set_of_schedules_is_warned_once_of_each_handler_that_is_not_there(client):
    names = {"a": "remind", "b": "remnd", "c": "remnd"}
    wanted = {"schedules": [{"name": name, "every": "1h", "handler": handler} for name, handler in names.items()]}
    for dry in (True, False):
        told = client.post("/v1/schedules:apply", json=wanted | {"dry_run": dry}).json()
        assert (told["changes"], len(told["warnings"])) == (dict.fromkeys("abc", "added"), 1)
        assert "'remnd'" in told["warnings"][0]


def told_by(monkeypatch, *rows):
    """Warnings where a dispatcher tells of these handlers, and of the open channel "ops"."""
    told = {"handlers": list(rows), "channels": {"ops": True}}
    monkeypatch.setattr(handlers, "catalogue", lambda connection: gathered([("http://a:1", told)]))
    return handlers.HandlerWarnings(None)


def test_a_name_that_is_nearly_that_of_a_handler_is_told_which_one_is_meant(monkeypatch):
    (warning,) = told_by(monkeypatch, row(name="sum_file")).of(["sum_flie", "sum_file"])
    assert warning == (
        "No dispatcher that runs has a handler 'sum_flie': unless workers run it, its tasks wait until one has. Did you mean 'sum_file'?"
    )


def test_the_command_that_enqueues_warns_of_an_unknown_handler_and_of_a_repeat(monkeypatch, capsys):
    sent = []
    scheduler = SimpleNamespace(
        handler_warnings=told_by(monkeypatch, row(name="sum_file")),
        enqueue=lambda handler, *_, **__: sent.append(handler) or SimpleNamespace(key="k", repeated=True),
    )
    monkeypatch.setattr(Context, "scheduler", lambda self: nullcontext(scheduler))
    assert cli.run(["task", "enqueue", "sum_flie", "--notify", "opz"]) == 0
    told = capsys.readouterr().err
    assert (sent, "Did you mean 'sum_file'?" in told, "Nothing was sent: " in told) == (["sum_flie"], True, True)
    assert "Did you mean 'ops'?" in told


def test_python_is_warned_once_of_each_name_and_waits_for_no_dispatcher(monkeypatch):
    warnings, logged = told_by(monkeypatch, row(name="sum_file")), []
    monkeypatch.setattr(handlers, "_log", SimpleNamespace(warning=logged.append))
    for _ in range(3):
        warnings.log(["sum_flie", None], ["opz"])
    assert holds(lambda: len(logged) == 2)
    assert [one.rpartition("Did you mean ")[2] for one in logged] == ["'sum_file'?", "'ops'?"]


def test_the_command_that_stores_schedules_warns_of_a_handler_that_no_dispatcher_has(monkeypatch, capsys, tmp_path):
    made = told_by(monkeypatch, row())
    plan = SimpleNamespace(state=PlanState)
    scheduler = SimpleNamespace(handler_warnings=made, connection=SimpleNamespace(plan=plan))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Context, "scheduler", lambda self: nullcontext(scheduler))
    names = ("h", "nosuch")
    text = "".join(f'[[schedule]]\nname = "{name}"\nhandler = "{name}"\nevery = "1h"\n' for name in names)
    (tmp_path / "a.toml").write_text(text)
    assert cli.run(["schedule", "apply", "a.toml", "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert "has a handler 'nosuch'" in said
    assert "has a handler 'h'" not in said


def test_nobody_is_warned_while_a_dispatcher_does_not_answer_and_it_is_not_asked_again_and_again(
    client, site, monkeypatch
):
    asked = []
    monkeypatch.setattr(handlers, "ask", lambda address, path: asked.append(address))
    assert [client.post("/v1/tasks", json={"handler": "remnd"}).json()["warning"] for _ in range(3)] == [None] * 3
    assert len(asked) == 1
    moment = known_handlers.boot_us() + 11_000_000
    monkeypatch.setattr(known_handlers, "boot_us", lambda: moment)
    client.get("/v1/handlers")
    assert len(asked) == 2


def row(**changed):
    nothing = ("max_batch", "concurrency", "timeout_ms", "isolation", "retry", "payload", "result")
    texts = {"name": "h", "registered_as": "h", "runs_on": "local", "module": "m", "function": "f", "about": ""}
    return dict.fromkeys(nothing) | texts | changed


@pytest.mark.parametrize(
    "answer",
    [{}, {"handlers": 7}, {"handlers": [None, 7, [], {}]}, {"handlers": [row(name="")]}, {"handlers": [row(name="x" * 301)]},
     {"handlers": [row(payload="{}")]}, {"handlers": [row(timeout_ms="1")]}, {"handlers": [row(retry={"max_retries": 1})]}],
)  # fmt: skip
def test_what_is_no_handler_is_passed_over_whoever_says_so(answer):
    found = gathered([("http://a:1", answer), ("http://b:1", {"handlers": [row(name="fine")], "since": 7})])
    assert list(found.handlers) == ["fine"]
    assert found.handlers["fine"][1] == [("b:1", "")]


def test_dispatchers_that_tell_different_things_of_a_handler_are_shown_to_differ():
    told = [
        ("http://a:1", {"handlers": [row(), row(name="i")]}),
        ("http://b:1", {"handlers": [row(about="new"), row(name="i")]}),
    ]
    found = gathered([*told, ("http://c:1", None)])
    assert found.differs == {"h"}
    assert [holder.address for holder in found.handlers["i"][1]] == ["a:1", "b:1"]
    assert (found.asked[-1], found.silent) == ("http://c:1", ["http://c:1"])


def test_schemas_are_told_of_up_to_a_bound_and_handlers_of_ours_not_at_all():
    form = HandlerForm("m", "f", "", json.dumps({"title": "x" * (MOST_SCHEMA - 13)}))
    assert len(form.payload) == MOST_SCHEMA
    many = {f"h{number:03}": HandlerInfo(f"h{number:03}", form=form) for number in range(300)}
    rows = describe_handlers(many | {"notify": HandlerInfo("notify", "notify")}, 0)["handlers"]
    assert len(rows) == 300
    assert 0 < sum(one["payload"] is not None for one in rows) < 200
    assert len(json.dumps(rows)) < 4 * 1024 * 1024


@pytest.mark.parametrize("told", [None, [], ["", "", "", None], ["", "", 1, None, None], ["", "", "", "[]", None],
                                  ["", "", "", None, "x"], ["", "", "", "[" * 100_000, None]])  # fmt: skip
def test_what_is_no_form_of_a_handler_is_refused(told):
    with pytest.raises(ValueError, match="form of a handler"):
        heard_form(told)


def test_a_forkserver_that_tells_nonsense_of_a_form_is_a_clear_error():
    from scylla_spark.executors.local.forkserver_handle import parse_handler

    with pytest.raises(ConfigError, match="leave them alone"):
        parse_handler(["handler", "h", "h", "local", None, None, None, None, None, 7])


def test_without_a_dispatcher_nothing_is_listed_and_nobody_is_asked():
    connection = SimpleNamespace(owner_address=lambda partition: "", rules=SimpleNamespace(partitions=4))
    assert catalogue(connection) == Catalogue({}, frozenset(), [], [])


def test_the_command_line_lists_and_shows_them(monkeypatch, capsys, tmp_path):
    told = gathered(
        [
            ("http://a:1", {"handlers": [row(payload={"title": "Remind"}, about="\x1b[2J")], "since": "then"}),
            ("http://b:1", None),
        ]
    )
    monkeypatch.chdir(tmp_path)
    missing = SimpleNamespace(of_schedules=lambda: missing_words({"gone": ["nightly", "weekly"]}))
    scheduler = SimpleNamespace(handlers=lambda: told, handler_warnings=missing)
    monkeypatch.setattr(Context, "scheduler", lambda self: nullcontext(scheduler))

    def run(*arguments):
        code = cli.run([*arguments])
        return code, *capsys.readouterr()

    code, out, err = run("handler", "list")
    assert (code, "Remind" in out, "\x1b" in out, "http://b:1" in err) == (0, True, False, True)
    assert "No dispatcher that runs has the handler 'gone', which these schedules run: nightly, weekly." in err
    code, out, _ = run("handler", "show", "h", "-o", "json")
    assert (code, json.loads(out)["payload"], json.loads(out)["dispatchers"]) == (
        0,
        {"title": "Remind"},
        ["a:1 since then"],
    )
    code, _, err = run("handler", "show", "none")
    assert code != 0
    assert "handler list" in err


def test_a_list_says_what_due_tasks_wait_for(client, site, monkeypatch):
    api = site.app.state.api
    told = {"handlers": [], "waiting": [{"queue": "mail", "handler": "sum_flie", "lanes": 2}, {"queue": 7}]}
    told |= {"waiting_for_workers": [{"queue": "train", "handler": "sum_flie", "lanes": 1, "seconds": 0}]}
    monkeypatch.setattr(api.handlers, "_look", lambda: gathered([("http://a:1", told)]))
    plain = dict.fromkeys(
        ("name", "enqueued_by", "priority", "error_class", "next_attempt_at", "enqueued_at", "ended_at", "tags")
    )
    plain |= {"scheduled_time": 0, "ordering_id": "l", "uniqueness_key": "u", "attempts": 0, "cancel_requested": False}
    rows = [
        plain | {"state": state, "queue": queue, "handler": "sum_flie"}
        for state, queue in (("ready", "mail"), ("scheduled", "mail"), ("ready", "gpu"), ("ready", "train"))
    ]
    monkeypatch.setattr(api.pages, "page", lambda *_, **__: rows)
    assert [one["reason"] for one in client.get("/v1/tasks").json()["tasks"]] == [
        "no_handler", None, None, "no_worker",
    ]  # fmt: skip
