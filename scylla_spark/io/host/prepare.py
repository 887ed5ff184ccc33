"""Fetches what sessions and the embedded broker need, and prepares it for this machine: `python -m scylla_spark.io.host.prepare`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from scylla_spark.errors import SchedulerError
from scylla_spark.io.host import class_archive, class_archive_maker, jars


def _archive_classes() -> None:
    """Keeps what Spark's JVM loads ready parsed, which may fail: nothing but speed depends on it."""
    archive = class_archive.place()
    if archive is not None and not archive.is_file():
        jars.say("jars: preparing Spark's classes, which makes every start quicker (once, about half a minute)")
        class_archive_maker.make()


def main(arguments: Sequence[str] = ()) -> int:
    """Entry of `python -m scylla_spark.io.host.prepare`.

    Args:
        arguments: names of sets to make sure of (default: both, and Spark's class archive); `--lock` writes the pinned list; `--spark-jars`
            prints the Spark set on stdout, separated by commas, for `spark-submit --jars`.

    Returns:
        0 when done, the exit code of the error otherwise, after one line on stderr.
    """
    try:
        if "--lock" in arguments:
            jars.pin(jars.conf_dir())
        elif "--spark-jars" in arguments:
            sys.stdout.write(",".join(map(str, jars.spark_jars())) + "\n")
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
