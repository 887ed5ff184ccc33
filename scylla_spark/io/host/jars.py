"""The jars that Spark and the embedded broker need: resolved once, checked by SHA-256, then used offline.

The lists stand in `conf/jars-spark.xml`, `conf/jars-broker.xml` and `conf/jars-s3.xml` (Ivy module files), the hashes in
`conf/jars.sha256`. The Ivy that PySpark ships fetches them, so nothing but Java is needed. They land in
`<cache>/<hash of the list>/{spark,broker,s3}`, where `<cache>` is `SCYLLASPARK_JARS_DIR`, else `scylla-spark/jars` below
`XDG_CACHE_HOME` or `~/.cache`: another list means another folder, so versions live side by side and a complete folder
never changes. A folder copied from another machine works without any network.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scylla_spark.errors import SetupError
from scylla_spark.io.host.java import jvm_environment, require_java

SETS = ("spark", "broker", "s3")
_FETCH_LIMIT_S = 900
_FETCH_ATTEMPTS = 2
_NETWORK_HINT = (
    "Maven Central must be reachable once; behind a mirror set SCYLLASPARK_IVY_SETTINGS to an Ivy settings file, "
    "or copy a filled jar cache here and point SCYLLASPARK_JARS_DIR at it. Then: make setup"
)


def conf_dir() -> Path:
    """The folder of the shipped configuration files: inside an installed wheel, else `conf/` of the checkout.

    Raises:
        SetupError: neither is there (an incomplete installation).
    """
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "_conf", package.parent / "conf"):
        if (folder / "jars-spark.xml").is_file():
            return folder
    raise SetupError(f"the configuration files of scylla-spark are missing beside {package}.", hint="Install it again.")


def cache_dir() -> Path:
    """The root of all jar folders: `SCYLLASPARK_JARS_DIR`, else below `XDG_CACHE_HOME`, else below `~/.cache`."""
    override = os.environ.get("SCYLLASPARK_JARS_DIR")
    if override:
        return Path(override).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "scylla-spark" / "jars"


def pinned(jar_set: str, conf: Path | None = None) -> dict[str, str]:
    """File name → SHA-256 of every jar of a set, in the order of `jars.sha256`.

    Args:
        jar_set: one of `SETS`.
        conf: the folder of the lists; default: the shipped one.
    """
    entries = (line.split() for line in _list_file(conf).read_text().splitlines() if not line.startswith("#"))
    named = ((path.removeprefix(f"{jar_set}/"), digest) for digest, path in entries if path.startswith(f"{jar_set}/"))
    return dict(named)


def folder(jar_set: str, cache: Path | None = None, conf: Path | None = None) -> Path:
    """Returns where the jars of a set are, or would be once resolved; the name depends on the whole list of hashes.

    Args:
        jar_set: one of `SETS`.
        cache: folder of all sets; default: the user's.
        conf: folder of lists and hashes; default: the one that is shipped.
    """
    return _root(cache, conf) / jar_set


def faults(jar_set: str, cache: Path | None = None, conf: Path | None = None) -> list[str]:
    """Returns what is wrong with a set in the cache, one line per jar; empty means complete and every SHA-256 right.

    Args:
        jar_set: one of `SETS`.
        cache: folder of all sets; default: the user's.
        conf: folder of lists and hashes; default: the one that is shipped.
    """
    return _faults(folder(jar_set, cache, conf), pinned(jar_set, conf))


def spark_jars(cache: Path | None = None) -> list[Path]:
    """The jars for `spark.jars`, fetched on first use.

    Args:
        cache: root of the jar folders; default: `cache_dir()`.

    Returns:
        Existing files whose SHA-256 was just checked.

    Raises:
        SetupError: they are not in the cache and cannot be fetched, or what was fetched has a wrong hash.
    """
    return ensure("spark", cache=cache)["spark"]


def broker_jars(cache: Path | None = None) -> list[Path]:
    """The class path of the embedded broker, fetched on first use; arguments and errors as in `spark_jars`."""
    return ensure("broker", cache=cache)["broker"]


def s3_jars(cache: Path | None = None) -> list[Path]:
    """Returns what a session needs besides, where the tables lie in S3; arguments and errors as in `spark_jars`."""
    return ensure("s3", cache=cache)["s3"]


def ensure(*sets: str, cache: Path | None = None, conf: Path | None = None) -> dict[str, list[Path]]:
    """Make sure that jar sets are in the cache and intact; several are fetched at the same time.

    Idempotent; safe for two processes at once (a lock file makes the second wait and find the work done). A set is
    put in place by a rename, complete or not at all. Needs neither network nor Java nor write access when everything
    is there.

    Args:
        sets: of `SETS`; default: all.
        cache: root of the jar folders; default: `cache_dir()`.
        conf: the folder of the lists; default: the shipped one.

    Raises:
        SetupError: Java, PySpark or Maven Central is missing, or a jar has a wrong hash after a second try.
    """
    wanted = sets or SETS
    missing = [name for name in wanted if faults(name, cache, conf)]
    if missing:
        root = _root(cache, conf)
        with _locked(root.with_suffix(".lock")):
            missing = [name for name in missing if faults(name, cache, conf)]
            for leftover in root.glob(".fetch-*"):  # of a process that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            with ThreadPoolExecutor(max_workers=len(SETS)) as pool:
                list(pool.map(lambda name: _install(name, root, conf or conf_dir()), missing))
    return {name: [folder(name, cache, conf) / jar for jar in pinned(name, conf)] for name in wanted}


def _list_file(conf: Path | None) -> Path:
    return (conf or conf_dir()) / "jars.sha256"


def _root(cache: Path | None, conf: Path | None) -> Path:
    entries = sorted((jar_set, *jar) for jar_set in SETS for jar in pinned(jar_set, conf).items())
    return (cache or cache_dir()) / hashlib.sha256(repr(entries).encode()).hexdigest()[:12]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _faults(where: Path, hashes: dict[str, str]) -> list[str]:
    found = []
    for name, expected in hashes.items():
        jar = where / name
        if not jar.is_file():
            found.append(f"{name} is missing")
        elif (actual := _sha256(jar)) != expected:
            found.append(f"{name} has SHA-256 {actual[:12]}… instead of {expected[:12]}… ({jar.stat().st_size} bytes)")
    return found


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("w")
    except OSError as error:
        raise SetupError(
            f"the jar cache {path.parent} cannot be written: {error.strerror}.",
            hint="Point SCYLLASPARK_JARS_DIR at a writable folder.",
        ) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _install(jar_set: str, root: Path, conf: Path) -> None:
    """Fetch one set into a temporary folder, check it, and rename it into place; one more try if anything is wrong."""
    hashes = pinned(jar_set, conf)
    problem = ""
    for attempt in range(1, _FETCH_ATTEMPTS + 1):
        say(f"jars: fetching {len(hashes)} for {jar_set}" + (f" again: {problem}" if attempt > 1 else ""))
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".fetch-") as scratch:
            problem = _resolve(jar_set, Path(scratch), conf)
            fetched = Path(scratch) / jar_set
            problem = problem or "; ".join(_faults(fetched, hashes))
            if not problem:
                _swap_in(fetched, root / jar_set)
                say(f"jars: {jar_set} complete in {root / jar_set}")
                return
    raise SetupError(f"the jars for {jar_set} could not be fetched: {problem}.", hint=_NETWORK_HINT, jar_set=jar_set)


def _swap_in(fresh: Path, target: Path) -> None:
    # What stands there is incomplete or damaged; a process that has it open keeps its files until it ends.
    if target.exists():
        target.rename(fresh.with_name("replaced"))
    fresh.rename(target)


def _resolve(jar_set: str, scratch: Path, conf: Path) -> str:
    """Run Ivy with a cache of its own, so that a damaged download cannot come back; returns what went wrong, or ""."""
    settings = os.environ.get("SCYLLASPARK_IVY_SETTINGS") or str(conf / "ivysettings.xml")
    pattern = f"{scratch}/[conf]/[artifact]-[revision].[ext]"
    command: list[str] = [str(require_java()), "-Xmx256m", "-jar", str(_ivy_jar())]
    command += ["-settings", settings, "-cache", str(scratch / "ivy"), "-ivy", str(conf / f"jars-{jar_set}.xml")]
    command += ["-retrieve", pattern, "-types", "jar"]
    lines: list[str] = []
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env=jvm_environment(), text=True, **pipes) as ivy:
        limit = threading.Timer(_FETCH_LIMIT_S, ivy.kill)
        limit.start()
        try:
            for line in ivy.stdout or ():
                lines.append(line.strip())
                if "[SUCCESSFUL ]" in line:
                    say(f"jars: {jar_set}: {line.split('!')[0].split(']')[1].strip()}")
        finally:
            limit.cancel()
    # Ivy ends with 0 even when a jar is missing; the check of the hashes that follows would find that as well.
    failures = [line for line in lines if "UNRESOLVED" in line or "[FAILED" in line or "Connection" in line]
    if ivy.returncode or failures:
        return "Ivy: " + " | ".join((failures or lines or ["no output"])[-3:])
    return ""


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    folders: Sequence[str] = (spec.submodule_search_locations if spec else None) or ()
    for ivy in (jar for place in folders for jar in sorted(Path(place, "jars").glob("ivy-*.jar"))):
        return ivy
    raise SetupError(
        "PySpark is not installed, and its Ivy is what fetches jars.", hint="Run: pip install 'scylla-spark[spark]'"
    )


def say(text: str) -> None:
    """A line of progress, on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def pin(conf: Path) -> None:
    """Write `jars.sha256` anew from what the Ivy files name now (for maintainers, after a change of the lists).

    Raises:
        SetupError: a set cannot be resolved.
    """
    rows = ["# SHA-256 of every jar; written by `make lock`, checked at every start"]
    with tempfile.TemporaryDirectory() as scratch:
        for jar_set in SETS:
            if problem := _resolve(jar_set, Path(scratch), conf):
                raise SetupError(problem, hint=_NETWORK_HINT)
            rows += [f"{_sha256(jar)}  {jar_set}/{jar.name}" for jar in sorted(Path(scratch, jar_set).glob("*.jar"))]
    (conf / "jars.sha256").write_text("\n".join(rows) + "\n")
