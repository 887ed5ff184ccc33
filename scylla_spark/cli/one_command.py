"""Runs one command of the command line. Heavy imports wait until a command needs them."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from scylla_spark.errors import ExitCode

_GLOBAL_WITH_VALUE: Final = ("-o", "--output", "--columns", "--profile", "--config", "--data", "--set")
_GLOBAL_FLAGS: Final = ("--no-color", "-q", "--quiet", "--debug")
_PASSED_ON: Final = ("bench",)  # what follows belongs to somebody else


def run(arguments: Sequence[str]) -> int:
    """Runs one command, and writes what is buffered; returns its exit code."""
    os.environ.setdefault(
        "PYDANTIC_DISABLE_PLUGINS", "__all__"
    )  # we use none, and looking for them costs time at every start
    try:
        code = _run(arguments)
    except Exception as error:  # only with --debug; not left to Python, which would print the error's text as it is
        sys.stderr.write(_traceback())
        code = _exit_code(error)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _mute()
    return code


def _run(arguments: Sequence[str]) -> int:
    gc.disable()  # the many objects of imports are no garbage; looking at them again and again costs time
    import typer

    from scylla_spark.cli.output import ReaderGone, error
    from scylla_spark.io.host.foreign_errors import outage_in

    command = _command()
    gc.enable()
    given = hoist(arguments)
    debug = "--debug" in given
    try:
        result = command(args=given, prog_name="scylla-spark", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except typer.TyperException as problem:
        told = getattr(problem, "format_message", problem.__str__)()
        place = getattr(problem, "ctx", None)
        if "\n" in told:  # a group without a command: its help
            sys.stderr.write(told + "\n")
        else:
            error(told, f"See: {place.command_path if place is not None else 'scylla-spark'} --help")
        return ExitCode.USAGE
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted\n")
        return ExitCode.INTERRUPTED
    except (ReaderGone, BrokenPipeError):  # it has seen enough
        _mute()
        return 0
    except Exception as problem:
        if debug:
            raise
        known = outage_in(problem)
        if known is not None:
            error(known.message, known.hint)
            return known.exit_code
        error(
            f"{type(problem).__name__}: {problem}",
            "This is a defect of scylla-spark, or of what it was given; --debug shows where.",
        )
        return ExitCode.DEFECT


@cache
def _command() -> Callable[..., object]:
    """All commands, put together once: typer would do it, and compile every annotation, for each call."""
    from typer.main import get_command

    from scylla_spark.cli.app import app
    from scylla_spark.cli.strict_texts import strict

    strict(app)
    command: Callable[..., object] = get_command(app)
    return command


def hoist(arguments: Sequence[str]) -> list[str]:
    """Puts global options first, so that they may stand anywhere before "--"."""
    front: list[str] = []
    rest: list[str] = []
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        name, equals, _ = word.partition("=")
        if word == "--" or (word in _PASSED_ON and not rest):
            rest += [word, *waiting]
            break
        if word in _GLOBAL_FLAGS or (equals and name in _GLOBAL_WITH_VALUE):
            front.append(word)
        elif word in _GLOBAL_WITH_VALUE and waiting:
            front += [word, waiting.pop(0)]
        else:
            rest.append(word)
    return front + rest


def _exit_code(error: Exception) -> int:
    from scylla_spark.io.host.foreign_errors import outage_in

    known = outage_in(error)
    return ExitCode.DEFECT if known is None else known.exit_code


def _traceback() -> str:
    import traceback

    from scylla_spark.visible import visible

    return "".join(visible(line) + "\n" for line in traceback.format_exc().splitlines())


def _mute() -> None:
    """Nobody reads stdout any more: what is buffered must not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
