"""The archive that executors get: what it holds, when it is made, and that it is enough for a Python without packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time

import pytest

from scylla_spark.cli import one_command
from scylla_spark.errors import ExitCode, SetupError
from scylla_spark.executors.spark import archive as archives
from scylla_spark.executors.spark import worker
from scylla_spark.executors.spark.archive import archive, contents
from scylla_spark.executors.spark.worker import FOLDER

HANDLERS = """
import rates.daily
import prices
from scylla_spark import handler

@handler("quote")
def quote(task):
    return prices.of(rates.daily.RATE)
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A file of handlers beside a module and a package, which lie among settings and keys."""
    folder = tmp_path / "shop"
    for name, text in {
        "quotes.py": HANDLERS,
        "prices.py": "def of(rate):\n    return rate * 2\n",
        "unused.py": "",
        "scyllaspark.toml": "",
        "rates/__init__.py": "",
        "rates/daily.py": "RATE = 3\n",
        "rates/table.json": "{}",
        "rates/.env": "PASSWORD=x",
        "rates/scyllaspark.prod.toml": "",
        "rates/client.key": "",
        "rates/client.pem": "",
        "rates/extra.jar": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(archives, "_OF_SPARK", ())  # 90 MB that no test of this file needs
    return folder


@pytest.mark.slow
def test_archive_holds_handlers_and_what_they_import_and_no_spark_settings_or_keys(shop):
    files = contents([str(shop / "quotes.py")])
    own = {name for name, file in files.items() if file.is_relative_to(shop) and not name.endswith(".pyc")}
    assert own == {"quotes.py", "prices.py", "rates/__init__.py", "rates/daily.py", "rates/table.json"}
    assert "scylla_spark/executors/spark/worker.py" in files
    tops = {name.partition("/")[0] for name in files}
    assert {"pydantic", "pydantic_core", "typing_extensions.py"} <= tops
    assert not {top for top in tops if top.startswith(("pyspark", "py4j", "delta", "polars", "pytest"))}
    assert not [name for name in files if name.endswith((".jar", ".key", ".pem", ".toml"))]


def test_handlers_are_found_in_an_archive_whose_folder_is_a_link_as_on_yarn(tmp_path, monkeypatch):
    (tmp_path / "executors.tar.gz").mkdir()
    link = tmp_path / FOLDER
    link.symlink_to("executors.tar.gz")
    monkeypatch.setattr(worker, "__file__", str(link / "scylla_spark/executors/spark/worker.py"))
    assert worker.unpacked(["/home/ann/quotes.py", "shop.prices"]) == (str(link / "quotes.py"), "shop.prices")


@pytest.mark.slow
def test_python_without_packages_runs_handlers_from_the_archive_alone(shop, tmp_path):
    file = str(shop / "quotes.py")
    made = archive([file], folder=tmp_path / "cache")
    with tarfile.open(made) as tar:
        tar.extractall(tmp_path / FOLDER, filter="data")
    shop.rename(tmp_path / "elsewhere")
    script = (
        "import json, sys; from scylla_spark.executors.spark.worker import unpacked; from scylla_spark.handlers.registry import load;"
        "handlers = load(unpacked(json.loads(sys.argv[1]))); print(handlers['quote'].function(None))"
    )
    command = [sys.executable, "-S", "-c", script, json.dumps([file])]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": FOLDER}, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("6\n", "")


@pytest.mark.slow
def test_archive_is_made_again_only_when_a_module_has_changed(shop, tmp_path):
    modules = [str(shop / "quotes.py")]
    first = archive(modules, folder=tmp_path)
    state = first.stat()
    assert archive(modules, folder=tmp_path) == first
    assert first.stat().st_ino == state.st_ino
    (shop / "prices.py").write_text("def of(rate):\n    return rate * 3\n")
    assert archive(modules, folder=tmp_path) != first


def test_of_archives_that_were_not_used_for_a_day_the_newest_three_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "contents", lambda modules, include: {})
    used_h_ago = {"a": 100, "b": 99, "c": 26, "d": 25, "e": 23}
    for name, hours in used_h_ago.items():
        file = tmp_path / f"executors-{name}.tar.gz"
        file.touch()
        os.utime(file, (time.time() - hours * 3600,) * 2)
    made = archive([], folder=tmp_path)
    left = {file.name.removesuffix(".tar.gz").removeprefix("executors-") for file in tmp_path.iterdir()}
    assert left == {"d", "e", made.name.removesuffix(".tar.gz").removeprefix("executors-")}


@pytest.mark.slow
def test_archive_that_is_too_large_is_refused_and_leaves_nothing_behind(shop, tmp_path):
    with pytest.raises(SetupError, match=r"The largest, unpacked: \w+ \d+ MB"):
        archive([str(shop / "quotes.py")], folder=tmp_path / "cache", most=1_000)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
def test_handlers_that_cannot_be_imported_are_one_error(shop):
    (shop / "prices.py").unlink()
    with pytest.raises(SetupError, match=r"cannot be imported here: ModuleNotFoundError: No module named 'prices'"):
        contents([str(shop / "quotes.py")])


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        (["dispatch", "--set", 'handlers=["old"]'], ["old"]),
        (["dispatch", "--set", 'handlers=["old"]', "--handlers", "new", "--handlers", "newer"], ["new", "newer"]),
        (["ingest", "--set", 'handlers=["old"]'], []),
    ],
)
def test_archive_of_a_job_has_the_handlers_that_the_job_runs(words, modules, monkeypatch):
    asked = []
    monkeypatch.setattr(archives, "archive", lambda modules, include, most: asked.append((list(modules), set(include))))
    assert archives.main(words) == 0
    assert archives.main([*words, "--driver"]) == 0
    assert [modules for modules, _ in asked] == [modules, modules]
    assert asked[0][1] == set()
    assert asked[1][1] >= {"delta-spark", "deltalake", "kafka-python"}


def test_two_files_of_the_same_name_are_refused():
    with pytest.raises(SetupError, match="same name"):
        archives._by_path(["one/quotes.py", "two/quotes.py"])


@pytest.mark.parametrize("place", [".", "missing/executors.tar.gz"])
def test_a_place_that_takes_no_file_is_refused_before_the_archive_is_made(tmp_path, monkeypatch, capsys, place):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(archives, "archive", lambda *_: pytest.fail("it was made"))
    assert one_command.run(["package", "--to", place]) == ExitCode.USAGE
    assert f"--to {place} names no file" in capsys.readouterr().err
