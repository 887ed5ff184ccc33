"""`python tools/measure_code.py [FOLDER]`: how much code a checkout has, as one JSON object.

The measure is tokens, because lines can be joined: those of Python's `tokenize` without comments, docstrings, line ends and indents.
Templates and files of data are counted in words.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_LAYOUT: Final = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_WITH_DOCSTRING: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_OF_TOOLS: Final = ("scylla_spark/bench/", "scylla_spark/demo/", "tools/")  # the first two: where they were once
_WORDS_OF: Final = (".html", ".css", ".js", ".json", ".toml", ".xml", ".yaml")
_NAMES: Final = ("traceparent", "progress_note")


def count_tokens(source: str) -> int:
    """Returns how many tokens of code a module has."""
    doc_lines = set(_docstring_starts(ast.parse(source)))
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(
        token.type not in _LAYOUT and not (token.type == tokenize.STRING and token.start in doc_lines)
        for token in found
    )


def _docstring_starts(tree: ast.Module) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING):
            for first in node.body[:1]:
                if (
                    isinstance(first, ast.Expr)
                    and isinstance(first.value, ast.Constant)
                    and type(first.value.value) is str
                ):
                    yield first.lineno, first.col_offset


def measures(root: Path) -> dict[str, int]:
    """The numbers of a checkout: tokens, files and words, of the core and of the tools.

    Args:
        root: folder of the checkout.
    """
    texts = {
        str(path.relative_to(root)): path.read_text()
        for folder in ("scylla_spark", "tools")
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in (".py", *_WORDS_OF) and path.is_file()
    }
    code = {name: text for name, text in texts.items() if name.endswith(".py")}
    tokens = {name: count_tokens(text) for name, text in code.items()}
    core = [name for name in code if not name.startswith(_OF_TOOLS)]
    return {
        "tokens": sum(tokens.values()),
        "tokens_of_core": sum(tokens[name] for name in core),
        "files_of_core": len(core),
        "fmt_skip": sum(text.count("# fmt: skip") for text in code.values()),
        **{f"files_with_{word}": sum(word in text for text in code.values()) for word in _NAMES},
        "words_of_data": sum(len(text.split()) for name, text in texts.items() if name not in code),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measures(Path(sys.argv[1] if len(sys.argv) > 1 else ".")), indent=2) + "\n")
