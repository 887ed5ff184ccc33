"""Which functions become handlers, under which names, with which settings."""

from __future__ import annotations

import importlib
import re
import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest

from scylla_spark.core.tasks.task import Retry
from scylla_spark.errors import ArgumentError, ConfigError
from scylla_spark.executors.local import forkserver_handle
from scylla_spark.executors.local.forkserver_handle import ForkserverHandle
from scylla_spark.handlers import registry as handler_registry
from scylla_spark.handlers.registry import handler, load, look_in_current_folder
from scylla_spark.processes import process_main


@pytest.fixture(autouse=True)
def _empty_registry(monkeypatch):
    monkeypatch.setattr(handler_registry, "_registered", {})


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current folder, with a module of handlers that is not installed, as a console script finds it."""
    (tmp_path / "my_errands.py").write_text(
        "from scylla_spark import handler\n\n\n@handler('errand')\ndef errand(task):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(tmp_path))])
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("my_errands", None)


@pytest.mark.slow
def test_modules_of_the_current_folder_are_found_here_and_in_child_processes(project):
    look_in_current_folder()
    look_in_current_folder()
    assert sys.path.count(str(project)) == 1
    assert "errand" in load(["my_errands"])
    forkserver = ForkserverHandle(["my_errands"])
    forkserver.close()
    assert set(forkserver.handlers) == {"errand"}


def test_whatever_serves_finds_modules_of_the_current_folder(project, monkeypatch):
    monkeypatch.setattr(process_main, "StopSignals", lambda _stop: SimpleNamespace(leave=lambda _code: None))
    monkeypatch.setattr(process_main, "_serve", lambda *_: None)
    process_main.serve(None, lambda _: None)
    assert sys.path[0] == str(project)


@pytest.mark.slow
def test_a_module_that_is_nowhere_is_an_error_of_the_settings_that_says_where_was_looked(project):
    with pytest.raises(ConfigError, match="no_such_module") as refused:
        ForkserverHandle(["no_such_module"])
    assert "the current folder" in refused.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("first", ["", "os.closerange(3, 100)"])
def test_a_module_that_takes_too_long_is_an_error_also_if_it_closes_the_socket_to_the_pool(
    tmp_path, monkeypatch, first
):
    monkeypatch.setattr(forkserver_handle, "_CLOSE_S", 0.1)
    module = tmp_path / "slow_handlers.py"
    module.write_text(f"import os, time\n{first}\ntime.sleep(30)\n")
    with pytest.raises(ConfigError, match="take too long to import"):
        ForkserverHandle([str(module)], import_timeout_s=3)


def test_decorated_function_is_returned_unchanged():
    def double(task):
        return task * 2

    assert handler("double")(double) is double
    assert double(4) == 8


def test_settings_are_in_the_handler_info():
    retry = Retry(max_retries=5)

    @handler("charge", retry=retry, timeout="1m30s", runs_on="spark", max_batch=10)
    def charge(tasks):
        pass

    info = load([])["charge"].info
    assert (info.name, info.runs_on, info.max_batch, info.timeout_ms, info.retry) == (
        "charge",
        "spark",
        10,
        90_000,
        retry,
    )


def test_timeout_may_be_a_timedelta():
    handler("h", timeout=timedelta(milliseconds=5))(lambda task: None)
    assert load([])["h"].info.timeout_ms == 5


def test_plain_name_means_highest_version():
    for version in (2, 10, 9):
        handler(f"mail@{version}")(lambda task: None)
    handlers = load([])
    assert handlers["mail"].info.name == "mail@10"
    assert set(handlers) == {"mail", "mail@2", "mail@9", "mail@10"}


def test_plain_registration_wins_over_versions():
    handler("mail@2")(lambda task: None)
    handler("mail")(lambda task: None)
    assert load([])["mail"].info.name == "mail"


def test_two_functions_of_one_name_are_refused():
    def first(task): ...
    def second(task): ...

    handler("same")(first)
    with pytest.raises(ArgumentError, match=r"(?s)'same'.*first.*second"):
        handler("same")(second)


def test_same_function_may_be_registered_again_as_a_reloaded_module_does():
    for _ in range(2):

        @handler("again")
        def again(task): ...

    assert load([])["again"].function is again


@pytest.mark.parametrize("name", ["", "two words", "mail@", "mail@x", "ü!"])
def test_bad_name_is_refused(name):
    with pytest.raises(ArgumentError, match="handler name"):
        handler(name)


@pytest.mark.parametrize("settings", [{"runs_on": "moon"}, {"max_batch": 0}, {"timeout": 0}, {"timeout": "soon"}])
def test_bad_setting_is_refused(settings):
    with pytest.raises(ArgumentError, match=re.escape(repr(next(iter(settings.values()))))):
        handler("h", **settings)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (lambda task: None, 1),
        (lambda task, ctx: None, 2),
        (lambda task, ctx=None: None, 2),
        (lambda task, verbose=False: None, 1),
        (lambda *args: None, 2),
        (lambda task, *, x=1: None, 1),
    ],
)
def test_number_of_arguments_follows_the_signature(function, parameters):
    handler("h")(function)
    assert load([])["h"].signature.parameters == parameters


def test_signature_that_cannot_be_called_is_refused():
    async def stream(task):
        yield

    def generator(task):
        yield

    for function in (lambda: None, lambda a, b, c: None, lambda task, *, x: None, stream, generator):
        with pytest.raises(ArgumentError, match="Handler 'h'"):
            handler("h")(function)
    with pytest.raises(ArgumentError, match=r"\(tasks\)"):
        handler("h", max_batch=5)(lambda tasks, ctx: None)


def test_async_function_has_a_concurrency_and_an_executor_of_its_own():
    async def one(task): ...

    handler("some")(one)
    handler("many", concurrency=10_000)(one)
    found = load([])
    assert [(found[name].info.concurrency, found[name].info.executor) for name in ("some", "many")] == [
        (100, "async/some"),
        (10_000, "async/many"),
    ]
    handler("plain", runs_on="local")(lambda task: None)
    assert (load([])["plain"].info.concurrency, load([])["plain"].info.executor) == (None, "local")


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"runs_on": "connect"}, "runs_on='connect'"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"concurrency": 10_001}, "concurrency=10001"),
        ({"concurrency": True}, "concurrency=True"),
        ({"max_batch": 5}, "max_batch"),
    ],
)
def test_setting_that_an_async_function_cannot_have_is_refused(settings, what):
    async def one(task): ...

    with pytest.raises(ArgumentError, match=re.escape(what)):
        handler("h", **settings)(one)


def test_concurrency_of_a_plain_function_is_refused():
    with pytest.raises(ArgumentError, match="no `async def`"):
        handler("h", concurrency=5)(lambda task: None)


def test_annotation_decides_between_arrow_and_pandas():
    def arrow(tasks: pa.Table): ...  # noqa: F821 - stays text
    def text(tasks: pd.DataFrame): ...  # noqa: F821 - stays text
    def bare(tasks): ...

    for function in (arrow, text, bare):
        handler(function.__name__, max_batch=5)(function)
    assert {name: entry.signature.pandas for name, entry in load([]).items()} == {
        "arrow": False,
        "text": True,
        "bare": False,
    }


def test_module_files_are_imported_once_and_see_their_neighbours(tmp_path):
    (tmp_path / "neighbour_of_handlers.py").write_text("NAME = 'from.file'\n")
    file = tmp_path / "handlers_in_a_file.py"
    file.write_text(
        "from neighbour_of_handlers import NAME\nfrom scylla_spark.handlers.registry import handler\n"
        "@handler(NAME)\ndef h(task): return 1\n"
    )
    first = load([str(file)])["from.file"].function
    assert load([str(file)])["from.file"].function is first


def test_missing_file_is_refused():
    with pytest.raises(ArgumentError, match=r"/nowhere/h\.py"):
        load(["/nowhere/h.py"])


@pytest.mark.parametrize(
    ("settings", "function"),
    [({}, lambda task: None), ({"max_batch": 2}, lambda tasks: None), ({"memory": "64MB"}, lambda task, ctx: None)],
)
def test_a_handler_with_a_session_of_spark_takes_one_task_and_its_context_and_has_no_limits(settings, function):
    with pytest.raises(ArgumentError, match="connect"):
        handler("h", runs_on="connect", **settings)(function)
