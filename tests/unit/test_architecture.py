"""The shape of the package, read from its imports: they go one way, and importing it loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "scylla_spark"

_LEAVES = {"errors", "clock", "schemas", "failpoint", "fingerprint", "visible", "duration", "name", "defaults"}
_LOW = _LEAVES | {"config", "core"}
_MIDDLE = _LOW | {"transforms", "io", "executors", "log"}

# Who may import whom: a part is a sub-package or a module directly in the package.
ALLOWED: dict[str, set[str]] = {
    **{name: {"errors"} for name in sorted(_LEAVES - {"errors"})},
    "errors": set(),
    "config": _LEAVES | {"config"},
    "core": _LEAVES | {"core"},
    "log": {"config", "visible"},
    "transforms": _LOW | {"transforms"},
    "io": _LOW | {"io", "transforms"},
    "executors": _LOW | {"executors", "io"},  # of io only what starts processes
    "doctor": _LOW | {"io"},
    "services": _MIDDLE | {"services"},
    "client": _MIDDLE | {"services", "client"},
    "__init__": _MIDDLE | {"client"},
    "cli": _MIDDLE | {"client", "services", "cli", "demo", "bench", "doctor", "__init__"},
    "demo": _MIDDLE | {"client", "services", "demo", "__init__"},
    "bench": _MIDDLE | {"client", "services", "bench", "demo", "__init__"},
    "jobs": _MIDDLE | {"services"},
}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "manager", "base", "models", "misc"}


def imports(source: str) -> Iterator[str]:
    """Dotted names of everything imported anywhere in a module, `from a import b` as a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules() -> list[Path]:
    return sorted([*PACKAGE.rglob("*.py"), *(ROOT / "jobs").glob("*.py")])


def part_of(path: Path) -> str:
    if PACKAGE not in path.parents:
        return "jobs"
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def own_part(name: str) -> str | None:
    """The part that an imported name belongs to; None for names that are not ours."""
    head, _, rest = name.partition(".")
    if head != "scylla_spark":
        return None
    first = rest.partition(".")[0]
    inside = (PACKAGE / first).is_dir() or (PACKAGE / f"{first}.py").is_file()
    return first if first and inside else "__init__"


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
        if part_of(path) == part
        for name in imports(path.read_text())
    ]


def test_every_part_has_its_place():
    assert {part_of(path) for path in modules()} <= ALLOWED.keys()


def test_imports_go_one_way():
    found = [
        breach
        for path in modules()
        for breach in breaches(str(path.relative_to(ROOT)), part_of(path), path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("core", "from scylla_spark.io.kafka.topics import located"),
        ("io", "from scylla_spark.services.process import serve"),
        ("transforms", "def f():\n    import scylla_spark.io.delta.spark_tables"),
        ("services", "from scylla_spark.client.scheduler import Scheduler"),
        ("services", "from scylla_spark import Scheduler"),
        ("executors", "from scylla_spark import services"),
        ("errors", "from scylla_spark.clock import now_us"),
        ("jobs", "from scylla_spark.cli import main"),
    ],
)
def test_an_import_against_the_direction_is_found(part, line):
    assert len(breaches("x.py", part, line)) == 1


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
    found = [
        (str(path.relative_to(ROOT)), name)
        for path in modules()
        for name in imports(path.read_text())
        if name.startswith("kafka.") and part_of(path) not in ("io", "services", "demo", "bench", "doctor")
    ]
    assert found == []


def test_modules_have_names_that_say_what_they_do():
    assert [
        str(path) for path in modules() if path.stem in FORBIDDEN_NAMES or path.parent.name in FORBIDDEN_NAMES
    ] == []


@pytest.mark.parametrize(
    "statement", ["import scylla_spark", "from scylla_spark import Scheduler, Settings, Task, handler"]
)
def test_importing_the_package_loads_no_pyspark_and_starts_nothing(statement):
    code = f"{statement}\nimport sys, threading\nprint('pyspark' in sys.modules, threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "1"]


def test_jobs_are_small():
    assert [path.name for path in (ROOT / "jobs").glob("*.py") if len(path.read_text().splitlines()) > 40] == []
