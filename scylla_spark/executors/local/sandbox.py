"""The sandbox of a handler: what bubblewrap is told, and what can be seen in there.

All that is not named here is not there: no network, no other process, no home, no data folder, no settings. Files can be
written in two places, both in memory and bounded. Where bubblewrap is missing, or the kernel refuses, nothing runs.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from scylla_spark.errors import ConfigError
from scylla_spark.executors.local import system_call_filter
from scylla_spark.handlers.call import EXECUTOR_VARIABLE
from scylla_spark.handlers.isolation import Isolation

TMP_BYTES: Final = 64 * 1024 * 1024
SHM_BYTES: Final = 32 * 1024 * 1024
FIRST_USER: Final = 2_000_000_000
"""Where the dispatcher is root, each sandbox has a user of its own, with a number that no system gives out."""
_USERS: Final = 65_536
_PROGRAM: Final = "bwrap"
_NEEDED_BY_SETPRIV: Final = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP")
_SYSTEM: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC: Final = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "group", "host.conf", "hosts", "ld.so.cache", "ld.so.conf",
    "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "os-release", "passwd", "pki/ca-trust", "pki/tls/certs",
    "protocols", "services", "ssl/certs", "ssl/openssl.cnf", "timezone",
)  # fmt: skip
_VARIABLES: Final = (
    "PATH", "LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR", "PYTHONPATH", "PYTHONHOME", "PYTHONUTF8", "PYTHONIOENCODING",
    "PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE", "PYTHONTZPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "JAVA_HOME", "SPARK_HOME", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
    "MALLOC_*", EXECUTOR_VARIABLE,
)  # fmt: skip
_IMPORTED: Final = (".py", ".so", ".pth", ".zip")
_DESCRIBED: Final = (".dist-info", ".egg-info")
_MOST_ENTRIES: Final = 2_000


class Sandboxed(NamedTuple):
    """One handler that asks for a sandbox, and what is known of its surroundings.

    Attributes:
        handler: its name.
        isolation: what it asks for.
        modules: those of handlers; see `handler_registry.load`.
        hidden: files and folders that must not be seen, wherever they lie.
        readable: further files and folders that can be read.
    """

    handler: str
    isolation: Isolation
    modules: Sequence[str] = ()
    hidden: Sequence[Path] = ()
    readable: Sequence[Path] = ()


class Cage(NamedTuple):
    """How a command is started in a sandbox.

    Attributes:
        command: what stands before it.
        descriptors: that it must inherit; the caller closes them.
    """

    command: list[str]
    descriptors: tuple[int, ...]


def environment(given: Mapping[str, str], isolation: Isolation) -> dict[str, str]:
    """The variables of a sandbox: few of those that other handlers get, and what the handler asks for.

    Args:
        given: what other handlers get.
        isolation: what the handler asks for.
    """
    kept = {name: value for name, value in given.items() if any(fnmatchcase(name, each) for each in _VARIABLES)}
    own = {"HOME": "/tmp", "TMPDIR": "/tmp", "USER": "sandbox", "LOGNAME": "sandbox"}
    return kept | own | dict(isolation.environment)


def cage(asked: Sandboxed) -> Cage:
    """Returns what to put before a command so that it runs in the sandbox of a handler.

    Raises:
        ConfigError: there can be no sandbox on this machine, or it would show what it must not.
    """
    program = shutil.which(_PROGRAM)
    if program is None:
        raise ConfigError(
            "There is no bubblewrap (bwrap) on this machine.", hint="Install it: apt-get install bubblewrap."
        )
    rules = system_call_filter.program()
    if rules is None:
        raise ConfigError("This processor is none for which sandboxes are made.", hint="Use x86_64 or aarch64.")
    descriptor = _file_of(rules)
    inside = _as_nobody(asked.handler) if os.geteuid() == 0 else []
    return Cage([program, *_arguments(asked), "--seccomp", str(descriptor), "--", *inside], (descriptor,))


def _file_of(data: bytes) -> int:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return os.dup(file.fileno())


def _as_nobody(handler: str) -> list[str]:
    """Root gives up being root inside: without a namespace of users, and with files of root in sight, it must not be."""
    program = shutil.which("setpriv")
    if program is None:
        raise ConfigError("There is no setpriv on this machine.", hint="Install it: apt-get install util-linux.")
    user = str(FIRST_USER + zlib.crc32(handler.encode()) % _USERS)
    nothing = ["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"]
    return [program, "--reuid", user, "--regid", user, "--clear-groups", *nothing, "--"]


def _arguments(asked: Sandboxed) -> list[str]:
    found = ["--die-with-parent", "--new-session", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    found += ["--unshare-cgroup-try", "--hostname", "sandbox", "--cap-drop", "ALL"]
    found += _NEEDED_BY_SETPRIV if os.geteuid() == 0 else ["--unshare-user"]
    found += ["--proc", "/proc", "--dev", "/dev", *_bounded("/dev/shm", SHM_BYTES), *_bounded("/tmp", TMP_BYTES)]
    found += ["--ro-bind", "/usr", "/usr"]
    for folder in map(Path, _SYSTEM):
        if folder.is_symlink():
            found += ["--symlink", os.readlink(folder), str(folder)]
        elif folder.is_dir():
            found += ["--ro-bind", str(folder), str(folder)]
    for name in _ETC:
        found += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    shown = _shown(asked)
    for folder in _on_the_way(shown):
        found += ["--perms", "0755", "--dir", str(folder)]  # bubblewrap makes them for their owner alone
    for path in shown:
        found += ["--ro-bind", str(path), str(path)]
    for path in _to_be_covered(asked.hidden, shown):
        covered = ["--perms", "0555", "--size", "4096", "--tmpfs"] if path.is_dir() else ["--ro-bind", os.devnull]
        found += [*covered, str(path)]
    return [*found, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp"]


def _bounded(place: str, size: int) -> list[str]:
    return ["--perms", "1777", "--size", str(size), "--tmpfs", place]


def _shown(asked: Sandboxed) -> list[Path]:
    """Returns what of this machine can be read beside the system, outer folders first."""
    prefixes = {Path(one) for one in (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)}
    prefixes |= {one.resolve() for one in prefixes}
    found = {one for one in prefixes if not _is_system(one)}
    for path in found:
        if _holds(path, [Path.home(), *asked.hidden]):
            raise ConfigError(
                f"Python stands in {path}, and so do files that a sandbox must not show.",
                hint="Use an environment in a folder of its own (python -m venv).",
            )
    found.add(Path(__file__).parents[2])
    for folder in _import_path(asked.modules):
        if not _is_system(folder) and not any(folder.is_relative_to(one) for one in prefixes):
            found |= set(_importable(folder, asked.hidden))
    found |= {path for path in asked.readable if path.exists()}
    return sorted(found, key=lambda path: (len(path.parts), path))


def _on_the_way(shown: Sequence[Path]) -> list[Path]:
    """The folders that lead to what is shown and are not shown themselves, outer ones first."""
    found = {folder for path in shown for folder in path.parents if not _is_system(folder)}
    there = {Path("/"), Path("/tmp"), Path("/etc")}
    inside = {one for one in found for each in shown if one.is_relative_to(each)}
    return sorted(found - there - inside, key=lambda path: (len(path.parts), path))


def _import_path(modules: Sequence[str]) -> set[Path]:
    named = {Path(one).resolve().parent for one in modules if one.endswith(".py") or "/" in one}
    return named | {Path(entry or ".").absolute() for entry in sys.path}


def _importable(folder: Path, hidden: Sequence[Path]) -> Iterator[Path]:
    """Yields what Python can import from a folder, and nothing else that lies there; where it is a file, the file."""
    if folder.is_file():
        yield folder
        return
    try:
        entries = sorted(folder.iterdir())[:_MOST_ENTRIES]
    except OSError:
        return
    secret = [Path.home(), *hidden]
    for entry in entries:
        if entry.name.startswith(".") or _holds(entry, secret):
            continue
        package = entry.is_dir() and (entry.suffix in _DESCRIBED or _is_package(entry))
        if package or (entry.suffix in _IMPORTED and entry.is_file()):
            yield entry


def _is_package(folder: Path) -> bool:
    return folder.name.isidentifier() and any(folder.glob("*.py"))


def _to_be_covered(hidden: Sequence[Path], shown: Sequence[Path]) -> list[Path]:
    """Returns what must not be seen and lies in what can be."""
    real = {one.absolute() for one in hidden} | {one.resolve() for one in hidden}
    return sorted(one for one in real if one.exists() and any(one.is_relative_to(each) for each in shown))


def _holds(path: Path, others: Sequence[Path]) -> bool:
    """Returns True if one of the others is this path or lies below it."""
    return any(one.absolute().is_relative_to(path) or one.resolve().is_relative_to(path.resolve()) for one in others)


def _is_system(path: Path) -> bool:
    return path.is_relative_to("/usr") or any(path.is_relative_to(one) for one in _SYSTEM)
