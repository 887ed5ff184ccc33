"""Renews docs/openapi.json after a change of the API: python -m tests.support.openapi_file"""

from __future__ import annotations

import json
from pathlib import Path

from scylla_spark.api.app import application
from scylla_spark.config.settings import Settings

FILE = Path(__file__).parents[2] / "docs" / "openapi.json"


def text() -> str:
    """The description as the code says it."""
    described = application(Settings(desk={"secret": "of nobody"})).openapi()
    return json.dumps(described, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
