"""The command line: `scylla-spark`. Thin bodies over the client and the readers.

This module and `scylla_spark/__init__.py` import nothing: Ctrl-C before `main` runs would print a traceback.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: "Sequence[str] | None" = None) -> None:
    """Runs one command and ends the process with its exit code."""
    import sys

    try:
        from scylla_spark.cli.one_command import run

        code = run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # while modules were imported
        sys.stderr.write("interrupted\n")
        code = 130  # ExitCode.INTERRUPTED, without an import that another Ctrl-C could interrupt
    sys.exit(code)
