"""Commands whose arguments may begin with a minus and a digit, such as -7d or the version -1, which are no options then."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, Final

from typer.core import TyperCommand

_NEGATIVE: Final = re.compile("-[0-9]")


class TakesNegativeArguments(TyperCommand):
    """A command that takes words such as -7d as arguments; other words with a minus are options as ever, and refused if there are none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the words behind the name of the command, see `TyperCommand`."""
        options = [param for param in self.params if param.param_type_name == "option"]
        flags = {name for one in options if getattr(one, "is_flag", False) for name in (*one.opts, *one.secondary_opts)}
        with_value = {name for one in options for name in one.opts} - flags
        return super().parse_args(ctx, arguments_last(args, with_value))


def arguments_last(words: Sequence[str], with_value: Collection[str]) -> list[str]:
    """The words of a command with its arguments behind "--", if any word begins with a minus and a digit; else as they are.

    Args:
        words: as they were typed.
        with_value: options that take the word behind them.
    """
    if not any(map(_NEGATIVE.match, words)):
        return list(words)
    options: list[str] = []
    arguments: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            arguments += waiting
            break
        if word == "-" or word[:1] != "-" or _NEGATIVE.match(word):
            arguments.append(word)
        else:
            options += [word, waiting.pop(0)] if word in with_value and waiting else [word]
    return [*options, "--", *arguments]
