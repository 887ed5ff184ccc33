"""Fetches what sessions and the embedded broker need, and prepares it for this machine: `python -m scylla_spark.io.host.prepare`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scylla_spark.config.assignments import nested
from scylla_spark.config.settings import Settings
from scylla_spark.errors import SchedulerError
from scylla_spark.io.host import class_archive, class_archive_maker, jars
from scylla_spark.io.host.session import session_jars


def _archive_classes() -> None:
    """Keeps what Spark's JVM loads ready parsed, which may fail: nothing but speed depends on it."""
    archive = class_archive.place()
    if archive is not None and not archive.is_file():
        jars.say("jars: preparing Spark's classes, which makes every start quicker (once, about half a minute)")
        class_archive_maker.make()


def _settings(arguments: Sequence[str]) -> Settings:
    """The settings that a job would take from the same words, as far as they say where the tables lie."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--set", action="append", default=[])
    named, _ = parser.parse_known_args(arguments)
    return Settings.load(named.config, **nested(named.set))


def main(arguments: Sequence[str] = ()) -> int:
    """Entry of `python -m scylla_spark.io.host.prepare`.

    Args:
        arguments: names of sets to make sure of (default: all, and Spark's class archive); `--lock` writes the pinned list; `--spark-jars`
            and the words of a job print the jars of its session on stdout, separated by commas, for `spark-submit --jars`.

    Returns:
        0 when done, the exit code of the error otherwise, after one line on stderr.
    """
    try:
        if "--lock" in arguments:
            jars.pin(jars.conf_dir())
        elif "--spark-jars" in arguments:
            sys.stdout.write(session_jars(_settings(arguments)) + "\n")
        else:
            jars.ensure(*arguments)
            if not arguments:
                _archive_classes()
    except SchedulerError as error:
        jars.say(f"error: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
