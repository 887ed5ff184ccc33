"""The jar cache: complete or not at all, checked by hash, mended once, offline when filled. A script plays Ivy."""

import hashlib
import json
import os
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from scylla_spark.errors import SetupError
from scylla_spark.io.host import jars

GOOD = {"spark": {"a-1.jar": b"first", "b-2.jar": b"second"}, "broker": {"c-3.jar": b"third"}}

# Stands in for `java -jar ivy`: writes what <calls>/plan says for this run, and notes that it ran.
FAKE_JAVA = """\
#!{python}
import json, os, sys
from pathlib import Path
if "-version" in sys.argv:
    sys.exit(sys.stderr.write('openjdk version "17.0.1"') and 0)
arguments = sys.argv
pattern = arguments[arguments.index("-retrieve") + 1]
jar_set = Path(arguments[arguments.index("-ivy") + 1]).stem.removeprefix("jars-")
calls = Path({calls!r})
number = len(list(calls.glob(jar_set + "-*")))
(calls / f"{{jar_set}}-{{number}}").touch()
runs = json.loads((calls / "plan").read_text())[jar_set]
target = Path(pattern.split("/[conf]")[0]) / jar_set
target.mkdir()
for name, text in runs[min(number, len(runs) - 1)].items():
    (target / name).write_text(text)
"""


class Repository:
    """A list of jars, an empty cache, and a pretended Maven Central whose answers a test chooses."""

    def __init__(self, root: Path) -> None:
        self.conf, self.cache, self.calls = root / "conf", root / "cache", root / "calls"
        for folder in (self.conf, self.calls, root / "jdk" / "bin"):
            folder.mkdir(parents=True)
        rows = [
            f"{hashlib.sha256(content).hexdigest()}  {jar_set}/{name}"
            for jar_set, entries in GOOD.items()
            for name, content in entries.items()
        ]
        (self.conf / "jars.sha256").write_text("# a comment\n" + "\n".join(rows) + "\n")
        java = root / "jdk" / "bin" / "java"
        java.write_text(FAKE_JAVA.format(python=sys.executable, calls=str(self.calls)))
        java.chmod(0o755)
        self.serve()

    def serve(self, *spark_runs: dict[str, str]) -> None:
        good = {jar_set: {name: content.decode() for name, content in jar.items()} for jar_set, jar in GOOD.items()}
        plan = {"spark": list(spark_runs) or [good["spark"]], "broker": [good["broker"]]}
        (self.calls / "plan").write_text(json.dumps(plan))

    def fetches(self, jar_set: str = "spark") -> int:
        return len(list(self.calls.glob(f"{jar_set}-*")))

    def ensure(self, *sets: str) -> dict[str, list[Path]]:
        return jars.ensure(*sets, cache=self.cache, conf=self.conf)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return Repository(tmp_path)


def test_jars_are_fetched_once_and_then_used_without_java(repository, monkeypatch):
    first = repository.ensure("spark")["spark"]
    assert [path.read_bytes() for path in first] == [b"first", b"second"]
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert repository.ensure("spark")["spark"] == first
    assert repository.fetches() == 1


@pytest.mark.slow
def test_all_sets_are_fetched_by_default(repository):
    assert set(repository.ensure()) == set(jars.SETS)
    assert repository.fetches("broker") == 1


@pytest.mark.slow
def test_a_truncated_jar_in_the_cache_is_fetched_again(repository):
    jar = repository.ensure("spark")["spark"][0]
    jar.write_bytes(b"fir")
    repository.ensure("spark")
    assert jar.read_bytes() == b"first"
    assert repository.fetches() == 2


@pytest.mark.slow
def test_a_missing_jar_in_the_cache_is_fetched_again(repository):
    jar = repository.ensure("spark")["spark"][1]
    jar.unlink()
    repository.ensure("spark")
    assert jar.read_bytes() == b"second"


@pytest.mark.slow
def test_a_wrong_download_is_tried_a_second_time(repository):
    repository.serve({"a-1.jar": "fi", "b-2.jar": "second"}, {"a-1.jar": "first", "b-2.jar": "second"})
    assert repository.ensure("spark")["spark"][0].read_bytes() == b"first"
    assert repository.fetches() == 2


@pytest.mark.slow
def test_a_download_that_stays_wrong_is_an_error_that_names_the_jar(repository):
    repository.serve({"a-1.jar": "evil", "b-2.jar": "second"})
    with pytest.raises(SetupError, match=r"a-1\.jar has SHA-256") as caught:
        repository.ensure("spark")
    assert repository.fetches() == 2
    assert "SCYLLASPARK_JARS_DIR" in caught.value.hint
    assert not jars.folder("spark", repository.cache, repository.conf).exists(), "a wrong set must not be installed"


@pytest.mark.slow
def test_a_jar_that_ivy_does_not_deliver_is_an_error(repository):
    repository.serve({"a-1.jar": "first"})
    with pytest.raises(SetupError, match=r"b-2\.jar is missing"):
        repository.ensure("spark")


@pytest.mark.slow
def test_nothing_but_the_jars_is_left_in_the_cache(repository):
    repository.ensure()
    root = jars.folder("spark", repository.cache, repository.conf).parent
    assert sorted(path.name for path in root.iterdir()) == ["broker", "spark"]


def test_what_a_killed_fetch_left_is_removed(repository):
    leftover = jars.folder("spark", repository.cache, repository.conf).parent / ".fetch-dead" / "ivy"
    leftover.mkdir(parents=True)
    repository.ensure("spark")
    assert not leftover.parent.exists()


@pytest.mark.slow
def test_two_processes_at_once_fetch_only_once(repository):
    code = textwrap.dedent("""
        import sys
        from pathlib import Path
        from scylla_spark.io.host import jars
        jars.ensure("spark", cache=Path(sys.argv[1]), conf=Path(sys.argv[2]))
    """)
    command = [sys.executable, "-c", code, str(repository.cache), str(repository.conf)]
    both = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert repository.fetches() == 1


def test_another_list_means_another_folder_and_a_comment_does_not(repository):
    listing = repository.conf / "jars.sha256"
    before = jars.folder("spark", repository.cache, repository.conf)
    listing.write_text("# another comment\n" + listing.read_text())
    assert jars.folder("spark", repository.cache, repository.conf) == before
    listing.write_text(listing.read_text() + "0" * 64 + "  spark/d-4.jar\n")
    assert jars.folder("spark", repository.cache, repository.conf) != before


def test_a_cache_that_cannot_be_written_is_a_clear_error(repository):
    repository.cache.write_text("a file, not a folder")
    with pytest.raises(SetupError, match="cannot be written"):
        repository.ensure("spark")


def test_the_environment_chooses_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SCYLLASPARK_JARS_DIR", raising=False)
    assert jars.cache_dir() == tmp_path / "scylla-spark" / "jars"
    monkeypatch.setenv("SCYLLASPARK_JARS_DIR", str(tmp_path / "mine"))
    assert jars.cache_dir() == tmp_path / "mine"


@pytest.mark.parametrize("jar_set", jars.SETS)
def test_the_shipped_ivy_list_and_the_shipped_hashes_name_the_same_jars(jar_set):
    tree = ElementTree.parse(jars.conf_dir() / f"jars-{jar_set}.xml")
    wanted = {f"{jar.get('name')}-{jar.get('rev')}.jar" for jar in tree.iter("dependency")}
    assert set(jars.pinned(jar_set)) == wanted
    assert all(jar.get("transitive") == "false" for jar in tree.iter("dependency"))


@pytest.mark.slow
def test_the_entry_point_prints_one_line_when_java_is_missing(tmp_path):
    environment = {**os.environ, "SCYLLASPARK_JARS_DIR": str(tmp_path), "JAVA_HOME": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-m", "scylla_spark.io.host.prepare", "spark"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: JAVA_HOME is /nowhere")
    assert "Traceback" not in done.stderr
