"""Which Java runs our child processes, and whether it is new enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from scylla_spark.errors import SetupError

MINIMUM = 17
INSTALL_HINT = (
    "Install Java 17 or 21 (Debian: apt-get install openjdk-17-jre-headless), "
    "or set JAVA_HOME to where it is installed."
)


def jvm_environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a JVM that we start: a given one, with a locale whose file names are UTF-8, as Python's are.

    In the locale C a JVM refuses paths beyond ASCII, which Python writes as UTF-8. In other languages the operating system's
    errors, such as those of a full disk, are not the texts that we look for. What Spark's JVM starts, PySpark's workers, is not to
    fail by warnings.
    """
    return {name: value for name, value in given.items() if name != "PYTHONWARNINGS"} | {"LC_ALL": "C.UTF-8"}


def find_java() -> Path:
    """The `java` binary that Spark would use too: the one of `JAVA_HOME` if that is set, else the one on `PATH`.

    Raises:
        SetupError: there is none, or `JAVA_HOME` points to a folder without one.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise SetupError(f"JAVA_HOME is {home}, but {java} is not there.", hint=INSTALL_HINT, java_home=home)
        return java
    found = shutil.which("java")
    if found is None:
        raise SetupError("Java was not found: JAVA_HOME is not set and there is no java on PATH.", hint=INSTALL_HINT)
    return Path(found)


def parse_version(text: str) -> int | None:
    """The major version in the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_412", None without one."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None


def java_version(java: Path) -> int | None:
    """The major version of a `java` binary, or None when it does not run or does not say."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(done.stderr + done.stdout)


def require_java() -> Path:
    """The `java` binary, after a look at its version.

    Raises:
        SetupError: there is no Java, it does not run, or it is older than 17.
    """
    java = find_java()
    version = java_version(java)
    if version is None:
        raise SetupError(f"{java} does not run or does not tell its version.", hint=INSTALL_HINT, java=str(java))
    if version < MINIMUM:
        raise SetupError(f"{java} is Java {version}; 17 or newer is needed.", hint=INSTALL_HINT, java=str(java))
    return java
