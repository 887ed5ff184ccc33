"""Files that handlers in a sandbox leave behind: they come out, within bounds, and nothing else comes out with them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.core.tasks.output import OutputTerms, outputs_place, read_links
from scylla_spark.executors.local.local_executors import KIND
from scylla_spark.io.host.output_files import OutputFiles
from tests.support import boxed_outputs
from tests.support.executor_conformance import Running, invocation

PARTITIONS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(scope="module")
def boxes(folder):
    settings = Settings(
        handlers=(boxed_outputs.__file__,), outputs={"path": str(folder)}, dispatch={"min_children": 1}, _env_file=None
    )
    executor = KIND.make(settings)
    executor.keep_outputs(OutputTerms(str(folder), PARTITIONS, 3_000_000))
    yield Running(executor)
    executor.stop(drain_s=0)


def test_files_come_out_of_a_sandbox_whole_and_within_the_bounds_of_an_attempt(boxes, folder):
    call = invocation("boxed.leave", [["ü.txt", "text"], ["large", 2_000_000], ["more", 1_500_000], ["../x", "x"]])
    (found,) = boxes.run(call)
    told = json.loads(found.result)
    assert told[:2] == ["stored", "stored"]
    assert told[2].startswith("ArgumentError: The outputs of the attempt have more bytes")
    assert told[3].startswith("ArgumentError: '../x' is no name")
    links = read_links(found.work.outputs)
    assert [(link.name, link.bytes) for link in links] == [("ü.txt", 4), ("large", 2_000_000)]
    assert found.work.isolation == "sandbox"
    place = outputs_place(call.key, call.attempt, PARTITIONS)
    with OutputFiles(folder).open(place, "ü.txt", 4) as file:
        assert file.read() == b"text"
    assert sorted(path.name for path in (folder / place).iterdir()) == ["large", "ü.txt"]


def test_a_sandbox_does_not_see_where_its_files_are_kept(boxes, folder):
    call = invocation("boxed.file", {"folder": str(folder)})
    (found,) = boxes.run(call)
    assert found.outcome == "succeeded", found.failure
    place = folder / outputs_place(call.key, call.attempt, PARTITIONS)
    assert {path.name: path.read_text() for path in place.iterdir()} == {"own": "own", "seen": "False"}


def test_the_way_out_takes_files_of_calls_that_run_and_nothing_else(boxes, folder):
    before = {path for path in Path(folder).rglob("*") if path.is_file()}
    gone = invocation("boxed.leave", [])
    boxes.run(gone)
    call = invocation("boxed.forge")
    call = call._replace(payload=json.dumps({"own": call.id, "foreign": gone.id}))
    (found,) = boxes.run(call)
    assert found.outcome == "succeeded", found.failure
    assert set(json.loads(found.result)) <= {"refused", "failed"}
    assert len(json.loads(found.result)) == 10
    assert {path for path in Path(folder).rglob("*") if path.is_file()} == before
    (again,) = boxes.run(invocation("boxed.leave", [["a", "a"]]))
    assert json.loads(again.result) == ["stored"], "others go on"


def test_a_sandbox_neither_uses_up_the_descriptors_outside_nor_keeps_others_from_the_way_out(boxes):
    def flooded(times):
        (found,) = boxes.run(invocation("boxed.flood", {"times": times}))
        assert found.outcome == "succeeded", found.failure
        return len(os.listdir("/proc/self/fd"))

    before = flooded(1)
    assert flooded(300) <= before + 10
