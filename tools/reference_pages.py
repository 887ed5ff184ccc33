"""`python tools/reference_pages.py`: the pages of reference that are made from the code, as one JSON object, page → Markdown.

The hooks of the documentation site run it (`docs/site_hooks.py`); the tools of the site do not have the packages that the code needs.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
_PACKAGE: Final = ROOT / "scylla_spark"
_METHODS: Final = ("get", "put", "patch", "post", "delete")


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table of Markdown; `|` and line ends in cells are made harmless."""
    lines = [list(head), ["---"] * len(list(head)), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;" if "`" not in text else "<").split())


def settings_page() -> str:
    """Every setting with its type, default and meaning, from the models in `scylla_spark/config`."""
    from pydantic import BaseModel

    from scylla_spark.config.settings import Settings
    from scylla_spark.definitions.queue import Queue

    parts = [
        "# Settings",
        "Settings come from flags, the environment, `.env` and `scyllaspark.toml`, in this order. Unknown keys are errors.",
        "`dispatch.look_ahead` is `look_ahead` in the section `[dispatch]` of the file, "
        "`SCYLLASPARK_DISPATCH__LOOK_AHEAD` in the environment, and `--set dispatch.look_ahead=10m` on the command line.",
        "Durations are texts such as `30s`, `1h30m`, or numbers of seconds. "
        "The file [settings with comments](settings-file.md) shows how the settings are used.",
    ]
    sections: dict[str, tuple[str, type[BaseModel]]] = {}
    own = {}
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            sections[name] = (name, field.annotation)
        else:
            own[name] = field
    sections["queues"] = ("queues.NAME", Queue)
    parts += ["## Without a section", _settings_table("", own)]
    for name, (shown, model) in sorted(sections.items()):
        parts += [f"## {name}", _sentence(model.__doc__), _settings_table(f"{shown}.", model.model_fields)]
    return "\n\n".join(parts) + "\n"


def _settings_table(prefix: str, fields: dict[str, Any]) -> str:
    rows = [
        (f"`{prefix}{name}`", f"`{_default(field)}`", _type(field.annotation), _bounds(field), field.description or "")
        for name, field in fields.items()
        if not field.is_required()  # the name of a queue is that of its section
    ]
    return table(("setting", "default", "type", "bounds", "meaning"), rows)


def _default(field: Any) -> str:
    from scylla_spark.duration import duration_text

    value = field.get_default(call_default_factory=True)
    if isinstance(value, timedelta):
        return duration_text(value)
    return (
        json.dumps(value) if isinstance(value, bool | int | float | str | dict | list | tuple) else str(value).lower()
    )


def _bounds(field: Any) -> str:
    names = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    every = [*field.metadata, *_metadata(field.annotation)]
    found = (f"{sign} {getattr(one, name)}" for one in every for name, sign in names.items() if hasattr(one, name))
    return ", ".join(dict.fromkeys(found))


def _metadata(annotation: Any) -> Iterator[Any]:
    """Yields the metadata of an annotation, also inside of unions and fields."""
    for one in getattr(annotation, "__metadata__", ()):
        yield from getattr(one, "metadata", (one,))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        for one in typing.get_args(annotation):
            yield from _metadata(one)


def _type(annotation: Any) -> str:
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{one}`" for one in typing.get_args(annotation))
    if origin is typing.Annotated:
        return _type(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        kinds = list(dict.fromkeys(_type(one) for one in typing.get_args(annotation)))
        return " or ".join(one for one in kinds if "duration" not in kinds or one not in ("text", "number"))
    if origin in (tuple, list):
        return f"list of {_type(typing.get_args(annotation)[0])}"
    if origin is dict:
        return f"table of {_type(typing.get_args(annotation)[1])}"
    plain = {timedelta: "duration", str: "text", bool: "yes or no", int: "whole number", float: "number", Path: "path"}
    return plain.get(annotation, {"NoneType": "nothing"}.get(getattr(annotation, "__name__", ""), "text"))


def _sentence(doc: str | None) -> str:
    """The first paragraph of a docstring in one line."""
    return " ".join(inspect.cleandoc(doc or "").partition("\n\n")[0].split())


def commands_page() -> str:
    """Every command with its arguments and options, from the command tree."""
    from typer.main import get_command

    from scylla_spark.cli.app import app

    root = get_command(app)
    parts = [
        "# Command line",
        _text(getattr(root, "epilog", "")),
        "## Global options",
        _options(root),
    ]
    for path, command in _leaves(root, ()):
        parts += [f"## scylla-spark {' '.join(path)}", _text(command.help), f"```\n{_usage(path, command)}\n```"]
        parts += [shown] if (shown := _options(command)) else []
    return "\n\n".join(parts) + "\n"


def _text(text: str | None) -> str:
    return _cell(inspect.cleandoc(text or "").replace("\b", ""))


def _leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, one in sorted(getattr(command, "commands", {}).items()):
        if not one.hidden:
            yield from _leaves(one, (*path, name)) if getattr(one, "commands", None) else [((*path, name), one)]


def _usage(path: tuple[str, ...], command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    names = [
        (one.metavar or one.name or "").upper().rstrip("….") + ("..." if one.nargs == -1 else "") for one in arguments
    ]
    needed = [name if one.required else f"[{name}]" for one, name in zip(arguments, names, strict=True)]
    return " ".join(["scylla-spark", *path, "[OPTIONS]", *needed])


def _options(command: Any) -> str:
    rows = []
    for one in command.get_params(command.context_class(command)):
        if getattr(one, "hidden", False) or one.name == "help":
            continue
        names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
        if one.param_type_name == "argument":
            names = f"`{(one.metavar or one.name).upper()}`"
        default = one.default if isinstance(one.default, str | int | float) and one.default is not False else ""
        rows.append((names, getattr(one, "help", None) or "", f"`{default}`" if default != "" else ""))
    return table(("option", "meaning", "default"), rows) if rows else ""


def tables_page() -> str:
    """Every table with its columns, from `scylla_spark/schemas.py`."""
    from scylla_spark import schemas

    parts = [
        "# Tables",
        f"The columns of all Delta tables, version {schemas.VERSION}. Instants are UTC timestamps in microseconds. "
        "`hour` is the scheduled time in hours since the Unix epoch. "
        "A new version only adds columns: ingest adds them at its start, and readers take any version.",
    ]
    for one in sorted(
        (one for one in vars(schemas).values() if isinstance(one, schemas.Table)), key=lambda one: one.name
    ):
        by = f"Partitioned by {_names(one.partitioned_by)}." if one.partitioned_by else "Not partitioned."
        also = f"Clustered by {_names(one.clustered_by)}." if one.clustered_by else ""
        rows = [(f"`{column.name}`", f"`{column.type}`", column.comment) for column in one.columns]
        parts += [f"## {one.name}", f"{_full(one.comment)} {by} {also}", table(("column", "type", "meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _full(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def metric_families() -> dict[str, list[Any]]:
    """Title → the families of metrics that such processes show, from their collectors."""
    from prometheus_client import CollectorRegistry

    from scylla_spark.api.http.metrics import ApiMetrics
    from scylla_spark.processes.process_metrics import ProcessMetrics
    from scylla_spark.services.ingest.metrics import IngestMetrics
    from scylla_spark.services.interpreter_pauses import InterpreterPauses
    from scylla_spark.services.plan.metrics import PlanMetrics

    every, ingest = CollectorRegistry(), CollectorRegistry()
    InterpreterPauses(every)
    every.register(ProcessMetrics({}, {}))
    ingest.register(IngestMetrics())
    return {
        "Every process": list(every.collect()),
        "Dispatch": _of_dispatch(),
        "Ingest": list(ingest.collect()),
        "Planner": list(PlanMetrics().registry.collect()),
        "HTTP API": list(ApiMetrics().registry.collect()),
    }


def metrics_page() -> str:
    """Every metric with its labels."""
    parts = [
        "# Metrics",
        "Each process serves these at `/metrics`, for Prometheus. "
        "[Operations](../operations.md#what-to-watch) names the ports, and what to watch.",
    ]
    for title, families in metric_families().items():
        rows = [
            (f"`{one.name}{'_total' if one.type == 'counter' else ''}`", one.type, one.documentation)
            for one in sorted(families, key=lambda one: one.name)
        ]
        parts += [f"## {title}", table(("metric", "type", "meaning"), rows)]
    return "\n\n".join(parts) + "\n"


def _of_dispatch() -> list[Any]:
    """The metrics of a dispatcher that owns nothing and has Spark workers."""
    from scylla_spark.executors.interface import SparkFigures
    from scylla_spark.services.dispatch import attempt_logs, describe
    from scylla_spark.services.dispatch.metrics import DispatchMetrics

    metrics = DispatchMetrics(tags=("*",))
    status, due = {"partitions": [], "counts": {}}, dict.fromkeys(describe._DUE, 0)  # noqa: SLF001 - what it shows
    looks = types.SimpleNamespace(look=lambda *_: (status, due))
    pool = types.SimpleNamespace(figures=lambda: SparkFigures(states={}, without_core=0, starts=0, ends={}, events={}))
    dispatcher = types.SimpleNamespace(engine=None, measures=metrics, on_workers=lambda: [pool])
    engine = describe._EngineCollector(dispatcher, looks)  # noqa: SLF001 - of a dispatcher that does not exist
    return [*metrics.registry.collect(), *engine.collect(), *attempt_logs.counters(0, 0)]


def errors_page() -> str:
    """Every exit code, problem of the API and class of errors, each from where it is defined."""
    from scylla_spark import errors
    from scylla_spark.api.problems import KINDS

    classes = [
        one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, Exception) and one.__module__ == errors.__name__
    ]
    return "\n\n".join(
        [
            "# Errors",
            "## Exit codes",
            "[Operations](../operations.md#exit-codes) says when each occurs, and whether a restart helps.",
            table(("code", "meaning"), [(one.value, one.meaning) for one in errors.ExitCode]),
            "## Problems of the HTTP API",
            "The field `type` of a [problem document](../http.md#problems).",
            table(
                ("type", "status", "title"),
                [(f"`{one.type}`", one.status, one.title) for one in sorted(KINDS, key=lambda one: one.status)],
            ),
            "## Kinds of failures",
            "The kind of a failed or aborted attempt, beside the names of exception classes.",
            _explained(FAILURES, ("handlers", "operations", "workers", "isolation", "containers")),
            "## Reasons of refused records",
            "The column `reason` of the table `rejected`.",
            _explained(REFUSALS, ("wire",)),
            "## Exceptions in Python",
            table(
                ("class", "meaning", "exit code"),
                [
                    (
                        f"`{one.__name__}`",
                        _sentence(one.__doc__),
                        one.exit_code.value if issubclass(one, errors.SchedulerError) else "",
                    )
                    for one in classes
                ],
            ),
        ]
    )


FAILURES: Final = (
    *(
        "child_died",
        "connect_unavailable",
        "container_exit",
        "container_killed",
        "container_lost",
        "container_not_started",
    ),
    *(
        "cpu_exceeded",
        "disk_exceeded",
        "executor_lost",
        "follow_up_refused",
        "handler_unknown",
        "isolation_unavailable",
    ),
    *(
        "lease_expired",
        "lease_unconfirmed",
        "memory_exceeded",
        "open_files_exceeded",
        "outputs_not_kept",
        "payload_invalid",
    ),
    *("processes_exceeded", "rate_limited", "result_invalid", "result_not_serialisable", "result_too_large"),
    *("report_refused", "worker_fault"),
)
REFUSALS: Final = (
    *(
        "defect",
        "empty",
        "missing_field",
        "no_time_zone",
        "not_finite",
        "not_json",
        "payload_too_large",
        "time_out_of_range",
    ),
    *(
        "too_large",
        "too_late",
        "too_old",
        "unknown_version",
        "unreadable",
        "wrong_key",
        "wrong_partition",
        "wrong_value",
    ),
)


def _explained(codes: Iterable[str], first: tuple[str, ...]) -> str:
    """A table of codes, each with the pages that explain it: those named first, then all others."""
    pages = {path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
    order = [*first, *(name for name in pages if name not in first)]
    rows = []
    for code in codes:
        found = [name for name in order if f"`{code}`" in pages[name]]
        rows.append((f"`{code}`", ", ".join(f"[{name}](../{name}.md)" for name in found)))
    return table(("code", "explained in"), rows)


def operations_page() -> str:
    """Every operation of the HTTP API, from its OpenAPI description."""
    described = json.loads((ROOT / "docs" / "openapi.json").read_text())
    parts = [
        "# HTTP operations",
        "Every operation of the [HTTP API](../http.md). [openapi.json](../openapi.json) has the schemas of requests and answers; "
        "`$API` is the address of the API.",
    ]
    rows = []
    for path, methods in described["paths"].items():
        for method in _METHODS:
            if (operation := methods.get(method)) is not None:
                rows.append(
                    (
                        f"`{method.upper()} {path}`",
                        f"[`{operation['operationId']}`](#{_anchor(method, path)})",
                        operation["summary"],
                    )
                )
                parts.append(_operation(method, path, operation, described))
    parts.insert(2, table(("operation", "operation id", "summary"), rows))
    return "\n\n".join(parts) + "\n"


def _anchor(method: str, path: str) -> str:
    return f"{method}-{re.sub(r'[^a-z0-9]+', '-', path.lower()).strip('-')}"


def _operation(method: str, path: str, operation: dict[str, Any], described: dict[str, Any]) -> str:
    rows = []
    for one in operation.get("parameters", ()):
        one = _resolved(one, described)
        kind = one.get("schema", {})
        rows.append((f"`{one['name']}`", one["in"], one.get("description") or kind.get("description", "")))
    body = " --json @body.json" if "requestBody" in operation else ""
    verb = "" if method == "get" else f" -X {method.upper()}"
    parts = [
        f"## {method.upper()} {path} {{ #{_anchor(method, path)} }}",
        f"{_text(operation.get('description') or operation['summary'])}",
        f'```\ncurl{verb} "$API{path}"{body}\n```',
    ]
    parts += [table(("parameter", "in", "meaning"), rows)] if rows else []
    answers = [(code, _resolved(one, described).get("description", "")) for code, one in operation["responses"].items()]
    return "\n\n".join([*parts, table(("status", "answer"), answers)])


def _resolved(one: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    for part in one.get("$ref", "#").split("/")[1:]:
        described = described[part]
    return described if "$ref" in one else one


def python_page() -> str:
    """The public Python API, from its docstrings."""
    import scylla_spark

    parts = ["# Python API", "All names are imported from `scylla_spark`."]
    for name in sorted(scylla_spark.__all__, key=str.lower):
        thing = getattr(scylla_spark, name)
        parts += [f"## {name}", f"```python\n{name}{_signature(thing)}\n```", _docstring(thing)]
        if inspect.isclass(thing) and name != "Settings":
            parts += [part for method, one in _methods(thing) for part in _method(name, method, one)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _methods(thing: type) -> Iterator[tuple[str, Any]]:
    for name, one in vars(thing).items():
        one = one.__func__ if isinstance(one, classmethod | staticmethod) else one
        if not name.startswith("_") and (inspect.isfunction(one) or isinstance(one, property)):
            yield name, one


def _method(owner: str, name: str, one: Any) -> list[str]:
    signature = "" if isinstance(one, property) else _signature(one)
    return [f"### {owner}.{name}", f"```python\n{name}{signature}\n```", _docstring(one)]


def _signature(thing: Any) -> str:
    try:
        return re.sub(r"\bscylla_spark\.[\w.]+\.(\w+)", r"\1", str(inspect.signature(thing)).replace("'", ""))
    except (TypeError, ValueError):
        return "()"


def _docstring(thing: Any) -> str:
    """A docstring as Markdown: the sections `Args:` and so on become lists."""
    if inspect.isclass(thing) and "__doc__" not in vars(thing):
        return ""
    lines, found = inspect.cleandoc(thing.__doc__ or "").splitlines(), []
    section = False
    for line in lines:
        if re.fullmatch(r"(Args|Returns|Raises|Attributes|Yields):", line):
            section = True
            found += ["", f"**{line[:-1]}**", ""]
        elif section and re.match(r"    [\w*, ]+: ", line):
            found.append(re.sub(r"^    ([\w*, ]+): ", r"- `\1`: ", line))
        else:
            found.append(line.strip() if section else line)
    return "\n".join(found)


def modules_page() -> str:
    """Every module with the first sentence of its docstring."""
    parts = [
        "# Modules",
        "Every module of the package with the first sentence of its docstring. "
        "[Architecture](../architecture.md) says how they work together.",
    ]
    folders: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(_PACKAGE.rglob("*.py")):
        doc = ast.get_docstring(ast.parse(path.read_text()))
        if doc:
            folder = str(path.parent.relative_to(ROOT))
            folders.setdefault(folder, []).append((f"`{path.name}`", _text(re.split(r"(?<=\.)\s", doc)[0])))
    for folder, rows in folders.items():
        parts += [f"## {folder}", table(("module", "purpose"), rows)]
    return "\n\n".join(parts) + "\n"


PAGES: Final = {
    "reference/settings.md": settings_page,
    "reference/cli.md": commands_page,
    "reference/http.md": operations_page,
    "reference/python.md": python_page,
    "reference/tables.md": tables_page,
    "reference/metrics.md": metrics_page,
    "reference/errors.md": errors_page,
    "reference/modules.md": modules_page,
}


if __name__ == "__main__":
    sys.stdout.write(json.dumps({page: make() for page, make in PAGES.items()}))
