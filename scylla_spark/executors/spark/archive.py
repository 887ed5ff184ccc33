"""One archive with what executors need beside Spark: this package, the handler modules, and the libraries that both import.

Spark unpacks it in the folder of each executor, and that folder is first on the path of Python there (see `spark-submit.sh`). The archive
holds what is installed here, so it is made without a network. It has no PySpark, no jars, no settings and no keys.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from scylla_spark.clock import now_us
from scylla_spark.config.assignments import nested
from scylla_spark.config.settings import Settings
from scylla_spark.errors import SchedulerError, SetupError
from scylla_spark.executors.spark.worker import FOLDER, is_path
from scylla_spark.io.host.jars import cache_dir

MOST_BYTES: Final = 150_000_000
_KEPT: Final = 3
_UNUSED_S: Final = 86_400  # an application that runs fetches its archive again for each executor that it adds
_MOST_BYTES_OF_DRIVER: Final = 400_000_000  # with polars and deltalake, which no executor needs
_PACKAGE: Final = Path(__file__).resolve().parents[2]
_ENTRIES: Final = (
    "scylla_spark.executors.spark.worker",
    "scylla_spark.executors.local.forkserver",
    "scylla_spark.executors.local.child",
)
_OF_SPARK: Final = ("numpy", "pandas", "pyarrow")  # what PySpark imports in an executor
_OF_DRIVER: Final = ("cryptography", "delta-spark", "deltalake", "obstore", "polars")
_NEVER: Final = frozenset({"delta-spark", "pip", "py4j", "pyspark", "scylla-spark", "setuptools", "wheel"})
_SECRET: Final = re.compile(r"(^|/)(\.[^/]*|scyllaspark[^/]*\.toml|[^/]*\.(pem|key|p12|pfx|jks|keystore|jar))(/|$)")
_UNUSED: Final = re.compile(
    r"(^|/)(__pycache__|_conf)(/|$)|\.pyc$|^scylla_spark/dashboard/|^(numpy|pandas|pyarrow)/(.*/)?(tests|include)/"
)
_REQUIREMENT: Final = re.compile(r"[A-Za-z0-9._-]+")


def archive(
    modules: Sequence[str], include: Collection[str] = (), folder: Path | None = None, most: int = MOST_BYTES
) -> Path:
    """Returns the archive for these handler modules; makes it unless the same one was made before.

    Args:
        modules: handler modules, as `registry.load` takes them.
        include: names of further distributions, such as those that handlers import in their functions only.
        folder: where archives are kept; default: the user's cache.
        most: bytes that it may have.

    Raises:
        SetupError: a module cannot be imported here, a distribution is not installed, or the archive is too large.
    """
    files = contents(modules, include)
    place = folder or cache_dir().parent / "archives"
    found = place / f"executors-{_identity(files)}.tar.gz"
    if not found.is_file():
        place.mkdir(parents=True, exist_ok=True)
        _write(files, found, most)
    found.touch()  # when it was used last
    _forget_unused(place)
    return found


def _forget_unused(place: Path) -> None:
    """Deletes archives of a folder that nothing has used for a day; the newest three stay."""
    with contextlib.suppress(FileNotFoundError):  # another process does the same
        by_use = sorted(place.glob("executors-*.tar.gz"), key=lambda file: -file.stat().st_mtime)
        for file in by_use[_KEPT:]:
            if file.stat().st_mtime < now_us() / 1e6 - _UNUSED_S:
                file.unlink()


def contents(modules: Sequence[str], include: Collection[str] = ()) -> dict[str, Path]:
    """Path in the archive → file here.

    Args:
        modules: see `archive`.
        include: see `archive`.

    Raises:
        SetupError: see `archive`.
    """
    libraries = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    files: dict[str, Path] = dict(_tree(_PACKAGE))
    installed: dict[str, Path] = {}
    paths = _by_path(modules)
    for name, place in _imported(modules).items():
        file = Path(place).resolve()
        if any(file.is_relative_to(root) for root in libraries):
            installed[name] = file
        elif file in paths:
            files[paths[file]] = file
        elif not file.is_relative_to(standard) and not file.is_relative_to(_PACKAGE):
            files |= _own(name, file)
    for distribution in _with_required({*_OF_SPARK, *include, *_owners(installed)}, _NEVER.difference(include)):
        files |= _files_of(distribution)
    return files | dict(_compiled(files))


def shipping(modules: Sequence[str]) -> dict[str, str]:
    """Options of a Spark application that ship the archive for these handler modules, and put it on the path of Python.

    Raises:
        SetupError: see `archive`.
    """
    return options_of(archive(modules))


def options_of(made: Path) -> dict[str, str]:
    """Options of a Spark application that ship an archive, and put it on the path of Python."""
    return {"spark.archives": f"{made}#{FOLDER}", "spark.executorEnv.PYTHONPATH": FOLDER}


def main(arguments: Sequence[str]) -> int:
    """Entry of `python -m scylla_spark.executors.spark.archive`: prints the path of the archive for a job.

    Args:
        arguments: name of the job and its words. Only `dispatch` needs handlers; ingest runs where they may be missing. With
            `--driver` the libraries of this package are in it, too, so that the driver can run on the cluster.

    Returns:
        0, or the exit code of the error after one line on stderr.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("job")
    parser.add_argument("--driver", action="store_true")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--handlers", action="append", default=[])
    named, _ = parser.parse_known_args(arguments)
    try:
        settings = Settings.load(named.config, **nested(named.set))
        modules = (named.handlers or settings.handlers) if named.job == "dispatch" else ()  # as the job chooses
        include, most = (_of_driver(), _MOST_BYTES_OF_DRIVER) if named.driver else (set[str](), MOST_BYTES)
        sys.stdout.write(f"{archive(modules, include, most=most)}\n")
    except SchedulerError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def _of_driver() -> set[str]:
    """The distributions that a driver needs beside those of an executor."""
    texts = [text for text in importlib.metadata.requires("scylla-spark") or () if "extra ==" not in text]
    return {*_OF_DRIVER, *(match[0] for match in map(_REQUIREMENT.match, texts) if match is not None)}


# ---- what is imported ----


def _imported(modules: Sequence[str]) -> dict[str, str]:
    """Name → file of every module that a worker has imported once it has loaded these handlers; in a process of its own."""
    script = (
        "import importlib, json, sys; from scylla_spark.handlers.registry import load; handlers, entries = map(json.loads, sys.argv[1:]);"
        "load(handlers); [importlib.import_module(one) for one in entries];"
        "sys.__stdout__.write('\\n' + json.dumps({name: m.__file__ for name, m in list(sys.modules.items())"
        " if getattr(m, '__file__', None) and name != '__main__'}))"
    )
    command = [sys.executable, "-c", script, json.dumps(list(modules)), json.dumps(_ENTRIES)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise SetupError(
            f"The handlers cannot be imported here: {why[0].rstrip('.')}.", hint="Correct `handlers`, and try again."
        )
    found: dict[str, str] = json.loads(done.stdout.rpartition("\n")[2])
    return found


def _by_path(modules: Sequence[str]) -> dict[Path, str]:
    """File → its name in the archive, of handler modules that are given as files."""
    found = {Path(module).resolve(): Path(module).name for module in modules if is_path(module)}
    if len(set(found.values())) < len(found):
        raise SetupError(
            f"Two files of handlers have the same name: {', '.join(map(str, found))}.", hint="Rename one of them."
        )
    return found


def _own(name: str, file: Path) -> Iterator[tuple[str, Path]]:
    """A module that no distribution has: its file; of a package all that is in its folder."""
    parts = name.split(".")
    is_package = file.name == "__init__.py"
    if is_package and len(parts) == 1:
        yield from _tree(file.parent)
    else:  # those of a package come with its folder, too
        yield "/".join(parts) + (f"/{file.name}" if is_package else file.suffix), file


def _tree(package: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(package.rglob("*")):
        inside = f"{package.name}/{file.relative_to(package)}"
        if file.is_file() and not _SECRET.search(inside) and not _UNUSED.search(inside):
            yield inside, file


# ---- distributions ----


def _owners(modules: Mapping[str, Path]) -> set[str]:
    """The distributions that these modules belong to."""
    found: set[str] = set()
    owners = importlib.metadata.packages_distributions()
    for top in {name.partition(".")[0] for name in modules}:
        found.update(owners.get(top, ()))
    return found


def _with_required(names: Iterable[str], never: Iterable[str]) -> Iterator[importlib.metadata.Distribution]:
    """These distributions and those that they require, as far as they are installed, without some and what only those require."""
    waiting, seen = list(names), set(never)
    wanted = set(waiting)
    while waiting:
        name = waiting.pop()
        plain = re.sub(r"[-_.]+", "-", name).lower()
        if plain in seen:
            continue
        seen.add(plain)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name in wanted:
                raise SetupError(
                    f"The distribution {name} is not installed here.", hint=f"pip install {name}"
                ) from None
            continue  # it is for another platform
        yield found
        texts = (text for text in found.requires or () if "extra ==" not in text)
        waiting += [match[0] for match in map(_REQUIREMENT.match, texts) if match is not None]


def _files_of(distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    for entry in distribution.files or ():
        inside, file = entry.as_posix(), Path(str(entry.locate()))
        if not inside.startswith("..") and not _UNUSED.search(inside) and file.is_file():
            yield inside, file


def _compiled(files: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """Yields what Python has compiled here: without it, the first process of each executor would spend seconds on that."""
    for inside, file in files.items():
        if inside.endswith(".py"):
            compiled = Path(importlib.util.cache_from_source(file))
            if compiled.is_file():
                yield f"{inside.rpartition('/')[0]}/__pycache__/{compiled.name}".lstrip("/"), compiled


# ---- the file ----


def _identity(files: Mapping[str, Path]) -> str:
    """A digest of what the archive would hold; files of libraries count by name, size and time, as hashing them takes seconds."""
    digest = hashlib.sha256(f"1 {sys.version_info[:2]} {os.uname().machine}".encode())
    for inside, file in sorted(files.items()):
        if inside.endswith(".pyc"):
            continue
        if "site-packages" in file.parts:
            state = file.stat()
            digest.update(f"{inside}:{state.st_size}:{state.st_mtime_ns}\n".encode())
        else:
            digest.update(f"{inside}:{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def _write(files: Mapping[str, Path], target: Path, most: int) -> None:
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".", delete=False) as draft:
        try:
            with (
                gzip.GzipFile("", "wb", compresslevel=1, fileobj=draft, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w|") as tar,
            ):
                for inside, file in sorted(files.items()):
                    tar.add(file.resolve(), inside, recursive=False, filter=_plain)
            size = draft.tell()
            if size > most:
                raise SetupError(
                    f"The archive for executors has {size / 1e6:.0f} MB, and {most / 1e6:.0f} MB are the most. {_largest(files)}",
                    hint="Let handlers import less, or install the libraries on the executors and set SCYLLASPARK_ARCHIVE=none.",
                )
            Path(draft.name).chmod(0o644)
            Path(draft.name).replace(target)
        except BaseException:
            Path(draft.name).unlink(missing_ok=True)
            raise


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0  # times stay: compiled files name those of their sources
    member.uname = member.gname = ""
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


def _largest(files: Mapping[str, Path]) -> str:
    sizes: dict[str, int] = {}
    for inside, file in files.items():
        top = inside.partition("/")[0]
        sizes[top] = sizes.get(top, 0) + file.stat().st_size
    most = sorted(sizes, key=lambda top: -sizes[top])[:3]
    return "The largest, unpacked: " + ", ".join(f"{top} {sizes[top] / 1e6:.0f} MB" for top in most) + "."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
