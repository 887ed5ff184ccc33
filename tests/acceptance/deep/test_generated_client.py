"""A client that others generate from the description of the API compiles, and works."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.openapi_file import FILE

PROGRAM = """
import importlib, json, pkgutil, sys
import client
from client.api.default import count_tasks, enqueue_task, get_task, put_queue, sync_worker, get_task_result
from client.models import EnqueueTaskWait, NewTask, NewTaskPayloadType0, Problem

found = [importlib.import_module(module.name) for module in pkgutil.walk_packages(client.__path__, "client.")]
api = client.Client(sys.argv[1])
task = NewTask(handler="work", payload=NewTaskPayloadType0.from_dict({"mark": "generated"}))
done = enqueue_task.sync(client=api, body=task, wait=EnqueueTaskWait.DONE, wait_ms=60_000)
again = get_task.sync(done.id, client=api)
nobody = get_task.sync("2026-01-01T00:00:00Z,none,none", client=api)
print(json.dumps({
    "modules": len(found), "state": again.state, "result": done.result, "count": count_tasks.sync(client=api).matched >= 0,
    "problem": isinstance(nobody, Problem) and nobody.type_,
}))
"""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    config = folder / "config.yaml"
    config.write_text("post_hooks: []\n")
    command = [
        f"{Path(sys.executable).parent}/openapi-python-client",
        "generate",
        "--path",
        str(FILE),
        "--meta",
        "none",
    ]
    subprocess.run(
        [*command, "--config", str(config), "--output-path", str(folder / "client")],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return folder


def test_a_generated_client_in_python_works(deployment, generated):
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, deployment.api], cwd=generated, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout)
    assert found.pop("modules") > 150
    assert found == {
        "state": "succeeded", "result": {"mark": "generated"}, "count": True, "problem": "/problems/not-found",
    }  # fmt: skip
