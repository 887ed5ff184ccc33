"""The images of deploy/docker are built, have the sizes that docs/docker.md names, and run a task on a read-only root file system."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator

import pytest

from tests.acceptance.http_api import Wire, joined
from tests.acceptance.place import JAVA, PATIENCE, Process
from tests.support.image_site import HARDENED, HERE, ImageSite, image_site_or_skip
from tests.support.waiting import eventually

USER = 10001
MB = 1_000_000
HANDLERS = """
import os

from scylla_spark import handler


@handler("greet")
def greet(task):
    return {"hello": task.payload["name"], "user": os.getuid()}
"""


@pytest.fixture(scope="module")
def site() -> Iterator[ImageSite]:
    with image_site_or_skip() as found:
        yield found


@pytest.fixture(scope="module")
def images(site) -> dict[str, str]:
    return {target: site.build(target) for target in ("worker", "full")}


@pytest.fixture
def metrics() -> str:
    """An address on loopback whose port is free: containers share the network of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def start(site, images, tmp_path):
    """Starts containers in the foreground, and stops them after the test."""
    handlers = tmp_path / "handlers"
    handlers.mkdir()
    (handlers / "greetings.py").write_text(HANDLERS)
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, USER, USER)
    started = []

    def run(target: str, name: str, *words: str, options: tuple[str, ...] = ()) -> Process:
        ours = (f"--name={name}", f"--volume={handlers}:/handlers:ro", "--env=PYTHONPATH=/handlers")
        command = [*site.podman, "run", *HARDENED, *HERE, *ours, *options, images[target], *words]
        started.append(Process(name, command, tmp_path, dict(os.environ)))
        return started[-1]

    yield run
    for process in reversed(started):
        if process.running:
            process.stop()


def test_images_are_no_larger_than_the_docs_say(site, images):
    sizes = {target: site.compressed_bytes(image) / MB for target, image in images.items()}
    print(f"compressed, in MB: {sizes}")
    assert sizes["worker"] < 150
    assert sizes["full"] < 1_000  # the aim is 700: see docs/docker.md


def test_a_worker_image_runs_a_task_of_the_full_image_and_both_end_well(site, start, metrics, tmp_path):
    data = tmp_path / "data"
    java = json.dumps({"spark.driver.extraJavaOptions": JAVA})
    port = metrics.partition(":")[2]
    full = start(
        "full", "full", "--set", "api.port=0", "--set", "ingest.trigger=2s", "up", "-o", "json",
        options=(f"--volume={data}:/var/lib/scylla-spark", f"--env=SCYLLASPARK_SPARK__OPTIONS={java}",
                 f"--env=SCYLLASPARK_METRICS__PORT={port}", f"--env=METRICS_ADDRESS={metrics}"),
    )  # fmt: skip
    wire = Wire(full.ready()["api"])
    wire("PUT", "/v1/queues/far", {"mode": "pull"})
    lease = ("--url", wire.url, "--queue", "far", "--handlers", "greetings", "--name", "worker")
    worker = start("worker", "worker", "worker", "run", *lease)
    joined(wire, worker)
    task = wire.put("far", handler="greet", payload={"name": "world"})
    wire.becomes(task, "succeeded")
    assert wire("GET", f"/v1/tasks/{task}/result")["result"] == {"hello": "world", "user": USER}
    completions = data / "scyllaspark-data" / "tables" / "completions"
    eventually(lambda: list(completions.rglob("*.parquet")), PATIENCE, "the outcome is in the tables", full.told)
    site.ask("healthcheck", "run", "full")
    assert worker.stop() == 0, worker.told()[-3000:]
    assert full.stop() == 0, full.told()[-3000:]


def test_the_full_image_has_classes_prepared_for_its_own_java(site, images):
    program = "from scylla_spark.io.host import class_archive; print(class_archive.flags())"
    words = (*HARDENED, *HERE, "--entrypoint=python", images["full"], "-c", program)
    assert "-XX:SharedArchiveFile=/opt/jars/" in site.ask("run", *words)
