"""The shape of the package, read from its imports: they go one way, and importing it loads nothing heavy."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from scylla_spark import __version__

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "scylla_spark"
TOOLS = ROOT / "tools" / "scylla_spark_tools"
ROOTS = {"scylla_spark": PACKAGE, "scylla_spark_tools": TOOLS}

_LEAVES = {
    "errors",
    "clock",
    "schemas",
    "failpoint",
    "name_fingerprint",
    "visible",
    "duration",
    "name",
    "defaults",
    "signed_text",
    "table_place",
    "topic_names",
    "task_states",
    "json_text",
    "log",
    "definitions",
}
_CORE = _LEAVES | {"core"}
_ENGINE = _CORE | {"core.engine"}
_PLAN = _CORE | {"core.plan"}
_IO = _PLAN | {"config", "transforms", "io.host", "io.kafka", "io.delta"}
_HANDLERS = _CORE | {"handlers", "io.host"}
_POOLS = _HANDLERS | {"config", "executors", "executors.local"}
_EXECUTORS = {
    "executors", "executors.local", "executors.notify", "executors.spark", "executors.connect",
    "executors.remote",
}  # fmt: skip
_SERVICES = {"services", "services.ingest", "services.dispatch", "services.plan", "services.simulate"}
_CLIENT = _IO | {"client", "handlers"}
_API = _CLIENT | {"api", "dashboard", "log", "services", "services.simulate"}
_PROCESSES = _API | _EXECUTORS | _SERVICES | {"processes"}
_FACES = _PROCESSES | {"testing", "worker", "__init__"}

# Floors, from the bottom: who may import whom. A part is a folder of the package, or a module directly in the package;
# folders of the tools begin with "tools".
ALLOWED: dict[str, set[str]] = {
    **{name: {"errors"} for name in sorted(_LEAVES - {"errors"})},
    "errors": set(),
    "config": _LEAVES | {"config"},
    "log": {"clock", "config", "errors", "visible"},
    "definitions": {"defaults", "definitions", "duration", "errors", "name"},
    "core": _CORE,  # words and rules know nothing of the engine
    "core.engine": _ENGINE,  # engine and planner never meet
    "core.plan": _CORE | {"core.plan"},
    "transforms": _PLAN | {"transforms"},
    "io": set(),
    "io.host": _LEAVES | {"config", "io.host"},
    "io.kafka": _PLAN | {"config", "io.host", "io.kafka"},
    "io.delta": _PLAN | {"config", "transforms", "io.delta"},
    "handlers": _HANDLERS,  # of io only what stores files and what dies with its parent
    "executors": _HANDLERS | {"config", "executors"},
    "executors.local": _POOLS,
    "executors.spark": _POOLS | {"executors.remote", "executors.spark"},
    "executors.remote": _POOLS | {"executors.remote"},
    "executors.connect": _POOLS | {"executors.connect"},
    "executors.notify": _HANDLERS | {"config", "executors", "executors.notify", "io.host"},
    "services": _LEAVES | {"config", "io.host", "io.kafka", "services"},
    "services.ingest": (_IO - {"core.plan"}) | {"services", "services.ingest"},
    "services.dispatch": _IO | _EXECUTORS | {"core.engine", "handlers", "log", "services", "services.dispatch"},
    "services.plan": (_IO - {"transforms"}) | {"services", "services.plan"},
    "services.simulate": _ENGINE | {"config", "io.delta", "io.host", "services.dispatch", "services.simulate"},
    "client": _CLIENT,
    "worker": _HANDLERS | {"worker"},  # nothing that needs a package
    "worker.containers": _HANDLERS | {"worker", "worker.containers"},
    # the world of a test stands where a deployment would
    "testing": _CLIENT | {"core.engine", "executors", "executors.local", "services.dispatch", "testing", "worker"},
    "api": _API - {"transforms"},
    "dashboard": _LEAVES | {"dashboard"},  # a client of the API: it is handed the rest
    "doctor": _LEAVES | {"config", "io.host", "io.kafka", "executors.spark"},
    "processes": _PROCESSES,
    "__init__": {"client", "config", "core", "definitions", "errors", "handlers", "processes", "worker"},
    "tools": set(),
    "tools.demo": _FACES | {"tools.demo"},
    "tools.bench": _FACES | {"tools.bench"},
    "cli": _FACES | {"cli", "doctor", "worker.containers", "tools.demo", "tools.bench"},
    "jobs": {"config", "processes"},
}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "manager", "base", "models", "misc"}


@cache
def imports(source: str) -> list[str]:
    """Dotted names of everything imported anywhere in a module, `from a import b` as a.b; modules named in a text are loaded by it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and is_module(node.value):
            found.append(node.value)
    return found


def is_module(text: str) -> bool:
    """Returns True if a text is the full name of one of our modules, such as `import_module` is given."""
    head, _, rest = text.partition(".")
    return head in ROOTS and bool(rest) and ROOTS[head].joinpath(*rest.split(".")).with_suffix(".py").is_file()


def packages() -> list[Path]:
    return sorted(path for root in ROOTS.values() for path in root.rglob("*.py"))


def modules() -> list[Path]:
    return [*packages(), *sorted((ROOT / "jobs").glob("*.py"))]


def place_of(module: str) -> Path:
    """Returns where a module or folder is, without ".py"."""
    steps = module.split(".")
    return TOOLS.joinpath(*steps[1:]) if steps[0] == "tools" else PACKAGE.joinpath(*steps)


def part_of(path: Path) -> str:
    if path.parent == ROOT / "jobs":
        return "jobs"
    folder, _, module = module_name(path).rpartition(".") if path.stem != "__init__" else (module_name(path), "", "")
    return with_rights_of(folder) if folder else module or "__init__"


def with_rights_of(folder: str) -> str:
    """The part whose rights a folder has: its own, or those of the folder that it is a room of."""
    while folder not in ALLOWED and "." in folder:
        folder = folder.rpartition(".")[0]
    return folder


def file_of(name: str) -> str | None:
    """The module of ours that an imported name is or stands in, as `module_name` says; None if it is not ours."""
    head, _, rest = name.partition(".")
    if head not in ROOTS:
        return None
    steps = [*(["tools"] if head == "scylla_spark_tools" else []), *rest.split(".")]
    while steps and not ((place := place_of(".".join(steps))).is_dir() or place.with_suffix(".py").is_file()):
        steps.pop()
    return ".".join(steps) or "__init__"


def own_part(name: str) -> str | None:
    """The part that an imported name belongs to; None for names that are not ours."""
    module = file_of(name)
    if module is None:
        return None
    folder = module if place_of(module).is_dir() else module.rpartition(".")[0]
    return with_rights_of(folder) if folder else module


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Modules that import each other, directly or by way of others."""
    reached: dict[str, set[str]] = {}
    for module in graph:
        found, todo = set(), [module]
        while todo:
            new = graph.get(todo.pop(), set()) - found
            found |= new
            todo += new
        reached[module] = found
    together = {frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in graph if a in reached[a]}
    return sorted(map(set, together), key=sorted)


def module_name(path: Path) -> str:
    """The name of a module without the package's; that of a tool begins with "tools"."""
    steps = ("tools", *path.relative_to(TOOLS).parts) if TOOLS in path.parents else path.relative_to(PACKAGE).parts
    return ".".join(steps).removesuffix(".py").removesuffix(".__init__")


def breaches(path: str, part: str, source: str) -> list[str]:
    """Imports of a module that go against the direction."""
    found = []
    for name in imports(source):
        target = own_part(name)
        if target is not None and target not in ALLOWED[part]:
            found.append(f"{path} imports {name}")
    return found


def all_imports(part: str) -> list[tuple[str, str]]:
    return [
        (str(path.relative_to(ROOT)), name)
        for path in modules()
        if part_of(path).partition(".")[0] == part
        for name in imports(path.read_text())
    ]


def test_every_part_has_its_place():
    assert {part_of(path) for path in modules()} <= ALLOWED.keys()


@pytest.mark.slow
def test_imports_go_one_way():
    found = [
        breach
        for path in modules()
        for breach in breaches(str(path.relative_to(ROOT)), part_of(path), path.read_text())
    ]
    assert found == []


@pytest.mark.slow
def test_no_files_import_each_other_in_a_circle_however_late():
    graph = {
        (own := module_name(path)): {
            file for name in imports(path.read_text()) if (file := file_of(name)) not in (None, own)
        }
        for path in packages()
    }
    assert circles(graph) == []


@pytest.mark.slow
def test_no_parts_import_each_other_in_a_circle():
    graph: dict[str, set[str]] = {}
    for path in modules():
        parts = {part for name in imports(path.read_text()) if (part := own_part(name)) is not None}
        graph.setdefault(part_of(path), set()).update(parts - {part_of(path)})
    assert circles(graph) == []


@pytest.mark.slow
def test_imports_in_texts_name_what_is_there():
    """Scripts that tests start, pages and notebooks: nothing else sees a name in them that has moved."""
    found = []
    for path in [
        *ROOT.glob("tests/**/*.py"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("notebooks/*.ipynb"),
        ROOT / "README.md",
    ]:
        for package, module, name in re.findall(r"from (scylla_spark\w*)\.([\w.]+) import (\w+)", path.read_text()):
            place = ROOTS[package].joinpath(*module.split("."))
            homes = [place.with_suffix(".py"), place / "__init__.py"]
            inside = any(home.is_file() and re.search(rf"\b{name}\b", home.read_text()) for home in homes)
            if not inside and not (place / f"{name}.py").is_file() and not (place / name).is_dir():
                found.append(f"{path.relative_to(ROOT)}: {package}.{module}.{name}")
    assert found == []


@pytest.mark.slow
def test_paths_that_pages_name_are_there():
    files = [
        str(path)
        for part in ("scylla_spark", "tools", "tests", "jobs", "examples")
        for path in (ROOT / part).rglob("*.py")
    ]
    found = [
        f"{page.name}: {path}"
        for page in [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
        for path in re.findall(r"(?<![\w/.-])((?:[\w-]+/)+\w+\.py)\b", page.read_text())
        if not any(file.endswith(f"/{path}") for file in files) and path != "jobs/NAME.py"
    ]
    assert found == []


def test_modules_that_docstrings_name_are_there():
    found = []
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(
            r"`((?:core|io|services|executors|worker|client|transforms)(?:\.\w+)+)`", path.read_text()
        ):
            module = file_of(f"scylla_spark.{name}") or ""
            rest, place = name.removeprefix(module).lstrip("."), PACKAGE.joinpath(*module.split("."))
            text = (place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text()
            if rest and not re.search(rf"\b{rest.partition('.')[0]}\b", text):
                found.append(f"{path.relative_to(ROOT)}: {name}")
    assert found == []


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"e2"}, "e2": {"e"}}) == [
        {"a", "b", "c"},
        {"e", "e2"},
    ]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("core", "from scylla_spark.io.kafka.topics import located"),
        ("core", "from scylla_spark.core.engine.partition import Mark"),
        ("io.host", "from scylla_spark.io.kafka.topics import located"),
        ("io.kafka", "from scylla_spark.processes.process_main import serve"),
        ("io.kafka", "from scylla_spark.io.delta import rows"),
        ("services.ingest", "from scylla_spark.services.dispatch.metrics import DispatchMetrics"),
        ("services.dispatch", "from scylla_spark.services.ingest.progress import Progress"),
        ("transforms", "def f():\n    import scylla_spark.io.delta.spark_tables"),
        ("services", "from scylla_spark.client.scheduler import Scheduler"),
        ("services", "from scylla_spark import Scheduler"),
        ("executors", "from scylla_spark import services"),
        ("errors", "from scylla_spark.clock import now_us"),
        ("jobs", "from scylla_spark.cli import main"),
        ("processes", "from scylla_spark_tools.demo import main"),
    ],
)
def test_an_import_against_the_direction_is_found(part, line):
    assert len(breaches("x.py", part, line)) == 1


@pytest.mark.slow
def test_core_knows_neither_spark_nor_kafka_nor_files_nor_the_time():
    banned = {
        "pyspark",
        "kafka",
        "delta",
        "deltalake",
        "polars",
        "time",
        "os",
        "pathlib",
        "socket",
        "subprocess",
    }
    assert [(path, name) for path, name in all_imports("core") if name.partition(".")[0] in banned] == []
    readers = {"scylla_spark.clock.now_us", "scylla_spark.clock.boot_us", "scylla_spark.clock"}
    assert [(path, name) for path, name in all_imports("core") if name in readers] == []


def test_transforms_read_no_clock():
    readers = {"scylla_spark.clock.now_us", "scylla_spark.clock.boot_us"}
    assert [(path, name) for path, name in all_imports("transforms") if name in readers] == []


def test_kafka_and_spark_are_imported_only_where_the_outside_is_touched():
    elsewhere = [
        path
        for path in modules()
        if part_of(path).partition(".")[0] not in ("io", "services", "api", "tools", "doctor")
    ]
    speaking = [path for path in elsewhere if "kafka" in path.read_text()]  # to parse all is a second
    assert speaking, "of its own topics"
    found = [(str(path), name) for path in speaking for name in imports(path.read_text()) if name.startswith("kafka.")]
    assert found == []


def test_the_whole_api_is_asked_in_its_own_folder_so_that_unit_tests_stay_quick():
    whole = {
        "tests.support.api_site",
        "tests.support.dashboard_site",
        "tests.support.served_site",
        "scylla_spark.api.app",
    }
    speaking = [
        path
        for path in (ROOT / "tests" / "unit").glob("*.py")
        if path.name != Path(__file__).name and ("_site" in (text := path.read_text()) or "api.app" in text)
    ]
    found = [
        (path.name, name)
        for path in speaking
        for name in imports(path.read_text())
        if name in whole or name.rpartition(".")[0] in whole
    ]
    assert found == [], "these belong into tests/api"


def test_modules_have_names_that_say_what_they_do():
    assert [
        str(path) for path in modules() if path.stem in FORBIDDEN_NAMES or path.parent.name in FORBIDDEN_NAMES
    ] == []


@pytest.mark.parametrize(
    "statement", ["import scylla_spark", "from scylla_spark import Scheduler, Settings, Task, handler"]
)
@pytest.mark.slow
def test_importing_the_package_loads_no_pyspark_and_starts_nothing(statement):
    code = f"{statement}\nimport sys, threading\nprint('pyspark' in sys.modules, threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "1"]


@pytest.mark.slow
def test_importing_the_package_alone_loads_no_kafka():
    done = subprocess.run(
        [sys.executable, "-c", "import scylla_spark, sys\nprint('kafka' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False"]


def test_rules_of_the_protocol_name_what_their_files_hold():
    """A row says where a rule stands: a file, and often names in it."""
    rows = [
        line.split("|") for line in (ROOT / "docs" / "protocol.md").read_text().splitlines() if line.startswith("| ")
    ]
    named = [row[2] for row in rows if len(row) == 5 and ".py`" in row[2]]
    assert len(named) > 40
    found = []
    for cell in named:
        for path, names in re.findall(r"`([\w/]+\.py)`((?: [\w., ]+)?)", cell):
            text = (PACKAGE / path).read_text() if (PACKAGE / path).is_file() else None
            missing = [name for name in re.findall(r"\w+", names) if text is not None and name not in text]
            found += [f"{path}: {name}" for name in missing if name not in ("and", "or", "through")]
            found += [path] if text is None and "NAME" not in path else []
    assert found == []


def test_package_and_tools_have_one_version_and_require_it_of_each_other():
    core, tools = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in (".", "tools")
    )
    assert core["version"] == tools["version"] == __version__
    assert core["optional-dependencies"]["tools"] == [f"scylla-spark-tools=={__version__}"]
    assert tools["dependencies"] == [f"scylla-spark[api,spark]=={__version__}"]


def test_jobs_are_small():
    assert [path.name for path in (ROOT / "jobs").glob("*.py") if len(path.read_text().splitlines()) > 40] == []


@pytest.mark.slow
def test_settings_of_the_whole_interpreter_belong_to_entries_of_processes():
    """Somebody's notebook that starts a deployment keeps its own garbage collector and thread switches."""
    entries = {
        "processes/process_main.py", "api/__main__.py", "cli/one_command.py", "executors/local/forkserver.py", "executors/spark/worker.py",
        "transforms/records.py",
        "handlers/restore_process.py",  # gives back what a handler has changed
    }  # fmt: skip
    calls = re.compile(r"\bsys\.setswitchinterval\(|\bgc\.(?:freeze|set_threshold|disable)\(")
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if calls.search(path.read_text())}
    assert found == entries
