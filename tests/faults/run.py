"""Runs the campaign: `python -m tests.faults.run [CASE…] [--seed N] [--report FILE]`; one JSON line of results per case.

Exit code 1 if any promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scylla_spark.testing import history, judge, measures
from tests.faults.cases import CASES, SHORT, Case, campaign
from tests.faults.site import Site, small_disk

SMALL_MB = {"tables": 64, "checkpoints": 4, "broker": 96, "scratch": 96, "log": 1}
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
Result = dict[str, Any]


def play(name: str, case: Case, seed: int, folder: Path) -> Result:
    """Plays one case on a fresh deployment in `folder` and judges it; the result tells all, also what went wrong in playing."""
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        small = None
        if case.disk:
            where = folder / "data" / "checkpoints" if case.disk == "checkpoints" else folder / "small"
            try:
                small = stack.enter_context(small_disk(where, SMALL_MB[case.disk]))
            except PermissionError as error:
                return {"case": name, "seed": seed, "skipped": str(error)}
        site = Site(folder, seed, case.disk, small)
        stack.callback(site.clear)
        try:
            case.play(site)
            site.calm()
            tables = site.table_breaches(repeats=case.repeats)
            site.end()
        except Exception:
            tables = []
            site.complaints += [traceback.format_exc()[-3000:], site.stacks()]
            with contextlib.suppress(Exception):
                site.load.stop()
        return _result(name, seed, site, tables) | {"seconds": round(time.monotonic() - begun)}


def _result(name: str, seed: int, site: Site, tables: list[str]) -> Result:
    written = site.written()
    breaches = {promise: found for promise, found in judge.judge(written).items() if found}
    if tables:
        breaches["tables"] = tables
    late = measures.lateness(written) or [0]
    return {
        "case": name, "seed": seed, "faults": site.events, "acknowledged": len(written.acknowledged()),
        "unknown": sum(item.outcome == history.UNKNOWN for item in written.enqueues),
        "cancelled": sum(item.answer == "cancelled" for item in written.cancels), "runs": len(written.runs),
        "lost": len(breaches.get("lost", [])), "after_completion": len(breaches.get("after completion", [])),
        "order": len(breaches.get("order", [])) + len(breaches.get("overlap", [])), "reruns": len(judge.reruns(written.runs)),
        "late_p50_ms": late[len(late) // 2] / 1000, "late_p99_ms": late[len(late) * 99 // 100] / 1000, "restarts": site.restarts,
        "broken": {promise: [len(found), *map(str, found[:3])] for promise, found in breaches.items()}, "complaints": site.complaints,
        "ok": not breaches and not site.complaints,
    }  # fmt: skip


def table(results: list[Result]) -> str:
    """The results as a Markdown table."""
    head = (
        "case",
        "seed",
        "faults",
        "acknowledged",
        "lost",
        "after completion",
        "out of order",
        "reruns",
        "lateness p50 / p99",
        "s",
    )
    rows = [head, tuple("---" for _ in head)]
    for r in results:
        if "skipped" in r:
            rows.append((r["case"], str(r["seed"]), f"skipped: {r['skipped']}", *[""] * 7))
        else:
            late = f"{r['late_p50_ms']:.0f} ms / {r['late_p99_ms'] / 1000:.1f} s"
            counts = (len(r["faults"]), r["acknowledged"], r["lost"], r["after_completion"], r["order"], r["reruns"])
            rows.append((r["case"], str(r["seed"]), *map(str, counts), late, str(r["seconds"])))
    done = [r for r in results if "skipped" not in r]
    sums = [str(sum(len(r["faults"]) for r in done))]
    sums += [
        str(sum(r[name] for r in done)) for name in ("acknowledged", "lost", "after_completion", "order", "reruns")
    ]
    rows.append(("**all**", "", *sums, "", str(sum(r["seconds"] for r in done))))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def report(file: Path, results: list[Result]) -> None:
    """Puts the table between the marks of a Markdown file."""
    text = file.read_text()
    fresh = f"{BEGIN}\n{table(results)}\n{END}"
    file.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: fresh, text, flags=re.DOTALL))


def _alone(name: str, case: Case, seed: int, keep: Path | None) -> Result:
    folder = Path(tempfile.mkdtemp(prefix=f"faults-{name}-", dir=keep))
    result = play(name, case, seed, folder)
    print(json.dumps(result), flush=True)
    if not keep and result.get("ok", True):
        shutil.rmtree(folder, ignore_errors=True)
    return result


def _apart(name: str, seed: int, keep: Path | None) -> Result:
    """Plays a case in a process of its own; what that says is passed on."""
    command = [
        sys.executable,
        "-m",
        "tests.faults.run",
        name,
        "--seed",
        str(seed),
        *(["--keep", str(keep)] if keep else []),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.splitlines() or [
        json.dumps({"case": name, "seed": seed, "skipped": f"exit code {done.returncode}", "ok": False})
    ]
    print(lines[-1], flush=True)
    return json.loads(lines[-1])


def main(arguments: list[str] | None = None) -> int:
    """Plays the cases asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: those of the seed among {', '.join(CASES)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="Markdown file whose table is renewed")
    parser.add_argument(
        "--keep", type=Path, help="folder that keeps data and logs of the cases; default: a temporary one"
    )
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time; each keeps two cores busy")
    parser.add_argument("--whole", action="store_true", help="every fail point in every mode, not only in the seed's")
    options = parser.parse_args(arguments)
    known = CASES | {"short": SHORT}
    unknown = set(options.cases) - known.keys()
    if unknown:
        parser.error(f"there is no case {', '.join(sorted(unknown))}")
    names = options.cases or (list(CASES) if options.whole else campaign(options.seed))
    if len(names) == 1:
        results = [_alone(names[0], known[names[0]], options.seed, options.keep)]
    else:
        with ThreadPoolExecutor(options.jobs) as pool:
            results = list(pool.map(lambda name: _apart(name, options.seed, options.keep), names))
    if options.report:
        report(options.report, results)
    return 0 if all(result.get("ok", True) for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
