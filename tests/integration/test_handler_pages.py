"""The examples of handlers in the pages run: in children, with what `enqueue` would send."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from scylla_spark.client.tasks import enqueue_arguments
from scylla_spark.clock import now_us
from scylla_spark.executors.local.pool import LocalPool
from scylla_spark.handlers import registry as handler_registry
from tests.support.executor_conformance import Running, invocation

ROOT = Path(__file__).parents[2]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


class Scheduler:
    """Sends what the real one would send to a pool of this process, at once."""

    def __init__(self, pool: Running) -> None:
        self.pool = pool

    @classmethod
    def connect(cls) -> Scheduler:
        return cls.here

    def enqueue(self, handler, payload=None, **options):
        command = enqueue_arguments.command(now_us(), handler, payload, **options)
        call = invocation(command.handler)._replace(payload=command.payload, key=command.key)
        return Handle(self.pool.run(call)[0], enqueue_arguments.returned_by(handler))


class Handle:
    """How a task of `Scheduler` ended."""

    def __init__(self, outcome, returns) -> None:
        self.outcome, self.returns = outcome, returns

    def result(self, timeout: object = None):
        assert self.outcome.outcome == "succeeded", self.outcome
        return self.returns.read(self.outcome.result)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module of handlers of the first block of a page."""
    monkeypatch.setattr(handler_registry, "_registered", {})
    monkeypatch.syspath_prepend(tmp_path)

    def make(page: str):
        name = f"handlers_of_{Path(page).stem.lower()}"
        (tmp_path / f"{name}.py").write_text(blocks(page)[0])
        monkeypatch.delitem(sys.modules, name, raising=False)
        return import_module(name)

    return make


@pytest.mark.parametrize("page", ["docs/handlers.md"])  # the README is pasted in acceptance/alone/test_readme.py
def test_first_example_of_a_page_runs_and_returns_what_it_declares(module, page, monkeypatch):
    handlers = module(page)
    pool = LocalPool([handlers.__file__])
    Scheduler.here = Scheduler(Running(pool))
    try:
        names = {"sched": Scheduler.here} | vars(handlers)
        code = blocks(page)[1].replace("from scylla_spark import Scheduler\n", "") + "\nfound = handle.result()"
        exec(code, names | {"Scheduler": Scheduler}, names)
        assert isinstance(names["found"], handlers.Receipt)
        assert names["found"].sent_to == "a@example.org"
    finally:
        pool.stop(drain_s=0)


def test_every_other_example_of_the_page_is_a_handler_that_runs(tmp_path):
    payloads = {"copy": {"rows": 2500}, "import": {}, "ping": {"seconds": 0}, "count": {}, "train": {"steps": 3}}
    payloads |= {"remind": {"email": "a@b.example"}, "charge": {}}
    for number, block in enumerate(block for block in blocks("docs/handlers.md")[2:] if "@handler(" in block):
        (tmp_path / f"page_{number}.py").write_text(block)
        (name,) = re.findall(r'@handler\("(\w+)"', block)
        pool = LocalPool([str(tmp_path / f"page_{number}.py")])
        try:
            outcome = Running(pool).one(name, payloads.pop(name))
            expected = "yielded" if name == "charge" else "succeeded"  # the API of that example asks it to wait
            assert outcome.outcome == expected, outcome
        finally:
            pool.stop(drain_s=0)
    assert payloads == {}
