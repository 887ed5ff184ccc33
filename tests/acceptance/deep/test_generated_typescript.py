"""A client in TypeScript that others generate from the description of the API compiles under strict rules, and works."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.missing_package import absent
from tests.support.openapi_file import FILE

PACKAGES = ("openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9.3")
STRICT = (
    "--strict",
    "--target",
    "es2022",
    "--lib",
    "es2022,dom",
    "--module",
    "nodenext",
    "--moduleResolution",
    "nodenext",
)
PROGRAM = """
import createClient from "openapi-fetch";
import type { paths } from "./schema.d.ts";
declare const process: { argv: string[] };

const api = createClient<paths>({ baseUrl: process.argv[2] });
const sent = await api.POST("/v1/tasks", {
  params: { query: { wait: "done", wait_ms: 60_000 } },
  body: { handler: "work", payload: { mark: "typescript" } },
});
if (!sent.data) throw new Error(sent.error.title);
const task = await api.GET("/v1/tasks/{key}", { params: { path: { key: sent.data.id } } });
const nobody = await api.GET("/v1/tasks/{key}", { params: { path: { key: "2026-01-01T00:00:00Z,none,none" } } });
const stats = await api.GET("/v1/queues/{name}/stats", { params: { path: { name: "nobody" } } });
const completed: number | undefined = stats.data?.completed;
const result = "result" in sent.data ? sent.data.result : null;
console.log(JSON.stringify({ state: task.data?.state, result, problem: nobody.error?.type, completed }));
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the compiler, what generates clients, and what it generated; skipped where they cannot be had, but not in CI."""
    folder = tmp_path_factory.mktemp("typescript")
    (folder / "package.json").write_text('{"type": "module", "private": true}')
    if shutil.which("npm") is None:
        absent("npm is not installed here")
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-save", *PACKAGES]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        absent(f"npm cannot install {', '.join(PACKAGES)}: {done.stderr[-500:]}")
    program = str(folder / "node_modules/.bin/openapi-typescript")
    generate = [
        program,
        str(FILE),
        "--default-non-nullable",
        "false",
        "-o",
        "schema.d.ts",
    ]  # what has a default may be left out
    subprocess.run(generate, cwd=folder, check=True, capture_output=True, timeout=120)
    return folder


def compiled(project: Path, name: str, text: str) -> subprocess.CompletedProcess[str]:
    (project / name).write_text(text)
    command = [str(project / "node_modules/.bin/tsc"), *STRICT, name]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120, check=False)


def test_a_generated_client_in_typescript_works(deployment, project):
    made = compiled(project, "client.mts", PROGRAM)
    assert made.returncode == 0, made.stdout
    ran = subprocess.run(
        ["node", "client.mjs", deployment.api], cwd=project, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert json.loads(ran.stdout) == {
        "state": "succeeded", "result": {"mark": "typescript"}, "problem": "/problems/not-found", "completed": 0,
    }  # fmt: skip


def test_the_generated_types_know_what_there_is(project):
    made = compiled(project, "wrong.mts", PROGRAM.replace("stats.data?.completed", "stats.data?.complted"))
    assert made.returncode != 0
    assert "relesed" in made.stdout
