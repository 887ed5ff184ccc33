"""The table of the chart's values in docs/helm.md, from the comments of its values.yaml."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
VALUES: Final = ROOT / "deploy" / "helm" / "scylla-spark" / "values.yaml"
PAGE: Final = ROOT / "docs" / "helm.md"
_LINE: Final = re.compile(r"^(?P<indent> *)(?P<name>\w+):(?: (?P<value>(?!#).*?))?(?: # (?P<meaning>.*))?$")
_TABLE: Final = re.compile(r"(?<=<!-- values -->\n).*?(?=<!-- /values -->)", re.DOTALL)


def table() -> str:
    """One row per value that has a comment."""
    rows, section = ["| value | default | meaning |", "|---|---|---|"], ""
    for line in VALUES.read_text(encoding="utf-8").splitlines():
        if (found := _LINE.match(line)) is None:
            continue
        if not found["indent"]:
            section = found["name"]
        if found["meaning"]:
            name = f"{section}.{found['name']}" if found["indent"] else section
            value = "a text" if found["value"] == "|" else f"`{found['value']}`" if found["value"] else "see the file"
            rows.append(f"| `{name}` | {value} | {found['meaning']} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """The page with the table of now."""
    return _TABLE.sub(lambda _: table(), PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
