"""What the docstrings of the package say: whoever calls a function of several parameters need not read its body to know what they are."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MANY = 3  # of fewer, names and types mostly say it
EXCEPT = {
    ROOT / "scylla_spark/core/engine",  # its parts hand each other the same few things: partition, entry, now
}
TOLD_ELSEWHERE = {"typer.Context", "Asked"}  # commands tell of their parameters in `--help`, routes in openapi.json


def public(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Public functions, classes and methods, with their dotted names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_") and not only_typed(node):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node, f"{prefix}{node.name}.")


def only_typed(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Returns True if this is one of the types of a function, which stands below with its docstring."""
    return any(ast.unparse(one) == "overload" for one in node.decorator_list)


def parameters(node: ast.FunctionDef | ast.ClassDef) -> list[ast.arg]:
    """Returns what a caller passes: to a function, or to the constructor that a class has written."""
    if isinstance(node, ast.ClassDef):
        made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        return parameters(made[0]) if made else []
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [one for one in every if one.arg not in ("self", "cls")]


def undescribed(source: str) -> list[str]:
    """Public names without a docstring, and those with many parameters that it neither lists nor refers to another for."""
    found = []
    for name, node in public(ast.parse(source)):
        told, passed = ast.get_docstring(node) or "", parameters(node)
        if any(one.annotation and ast.unparse(one.annotation) in TOLD_ELSEWHERE for one in passed):
            continue
        if not told or (len(passed) >= MANY and "Args:\n" not in told and "See `" not in told and "see `" not in told):
            found.append(name)
    return found


@pytest.mark.slow
def test_functions_and_classes_of_three_and_more_parameters_describe_them():
    found = {
        str(path.relative_to(ROOT)): names
        for folder in ("scylla_spark", "tools")
        for path in (ROOT / folder).rglob("*.py")
        if not EXCEPT.intersection(path.parents) and (names := undescribed(path.read_text()))
    }
    assert found == {}


def test_what_is_not_described_is_found():
    assert undescribed("def f():\n    pass") == ["f"]
    assert undescribed("def f(a, b, c):\n    'Adds.'") == ["f"]
    assert undescribed("class C:\n    'Is.'\n    def __init__(self, a, b, *, c):\n        pass") == ["C"]
    assert undescribed("class C:\n    'Is.'\n    def m(self, a, b, c):\n        'Does.'") == ["C.m"]
    assert undescribed("def f(a, b):\n    'Adds.'\ndef _g(a, b, c):\n    pass") == []
    assert undescribed("def f(a, b, c):\n    'Adds.\\n\\nArgs:\\n    a: one.'") == []
