"""What handlers of a process share: who may make it, when it is made, and that it is torn down."""

import os

import pytest

from scylla_spark import handler, setup
from scylla_spark.errors import ArgumentError
from scylla_spark.handlers import shared_resources
from scylla_spark.testing import call, world


@pytest.fixture(autouse=True)
def _nothing_else(monkeypatch):
    monkeypatch.setattr(shared_resources, "_declared", [])
    monkeypatch.setattr(shared_resources, "_open", [])


@pytest.fixture
def said():
    return []


def test_it_is_made_by_the_first_call_and_torn_down_once_the_newest_first(said):
    @setup
    def server():
        said.append("server begins")
        yield "server"
        said.append("server ends")

    @setup
    def client():
        yield f"client of {server()}"
        said.append("client ends")

    assert said == []
    assert (client(), client(), server()) == ("client of server", "client of server", "server")
    shared_resources.end_all()
    shared_resources.end_all()
    assert said == ["server begins", "client ends", "server ends"]


def test_what_cannot_be_made_is_tried_again_and_what_cannot_be_torn_down_keeps_nothing_else_from_it(said, caplog):
    tries = iter([OSError("not yet"), None])

    @setup
    def late():
        error = next(tries)
        if error is not None:
            raise error
        yield "there"
        said.append("late ends")

    @setup
    def broken():
        yield 1
        raise RuntimeError("stuck")

    with pytest.raises(OSError, match="not yet"):
        late()
    assert (late(), broken()) == ("there", 1)
    shared_resources.end_all()
    assert said == ["late ends"]
    assert "broken cannot be torn down" in caplog.text


def test_a_fork_has_none_of_its_own_and_makes_one_if_it_asks(said):
    @setup
    def mine():
        yield os.getpid()

    assert mine() == os.getpid()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, str(mine() == os.getpid()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 10) == b"True"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("function", [lambda: 1, lambda x: (yield x), 7])
def test_what_does_not_yield_or_wants_something_is_refused(function):
    with pytest.raises(ArgumentError, match="cannot be set up"):
        setup(function)


def test_a_world_tears_down_at_its_end_and_handlers_are_called_as_elsewhere(said):
    @setup
    def connection():
        yield {"open": True}
        said.append("closed")

    @handler("shares")
    def shares(task):
        return connection()

    assert call(shares).result == {"open": True}
    shared_resources.end_all()
    with world([shares]) as w:
        task = w.enqueue("shares")
        w.advance()
        assert task.result() == {"open": True}
        assert said == ["closed"]
    assert said == ["closed", "closed"]
