"""A Delta table that is only a log, written commit by commit, and a planner and a watcher that look at it step by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scylla_spark.config.settings import Settings
from scylla_spark.services.plan import table_watcher
from scylla_spark.services.plan.table_watcher import TableWatcher
from tests.support.planner_harness import PlannerHarness

COLUMN = "p"


class WatchedLog:
    """The log of a table that is partitioned by the column `p`.

    Args:
        table: its folder.
    """

    def __init__(self, table: Path) -> None:
        self.table = table
        self._log = table / "_delta_log"

    def file(self, version: int) -> Path:
        """The file of a commit."""
        return self._log / f"{version:020d}.json"

    def commit(self, version: int, *parts: str | None, table_id: str = "", rows: int = 1, **more: Any) -> None:
        """Writes a commit.

        Args:
            version: its number.
            parts: a file is added to each of these partitions.
            table_id: from here on, if it says so.
            rows: of each file, of which no data are there.
            **more: fields of each file.
        """
        actions: list[dict[str, Any]] = [
            {"commitInfo": {"operation": "WRITE", "operationParameters": {"mode": "Append"}}}
        ]
        if table_id:
            actions.append(header(table_id))
        stats = json.dumps({"numRecords": rows})
        for number, part in enumerate(parts):
            file = {
                "path": f"{number}-{version}",
                "partitionValues": {COLUMN: part},
                "size": 1,
                "dataChange": True,
                "stats": stats,
            }
            actions.append({"add": file | more})
        self._log.mkdir(parents=True, exist_ok=True)
        self.file(version).write_text("".join(json.dumps(action) + "\n" for action in actions))

    def checkpoint(self, version: int, table_id: str) -> None:
        """Writes a checkpoint that says which table it is."""
        name = f"{version:020d}.checkpoint.00000000-0000-0000-0000-000000000000.json"
        (self._log / name).write_text(json.dumps(header(table_id)) + "\n")


def header(table_id: str) -> dict[str, Any]:
    """The action that says which table it is."""
    columns = [{"name": COLUMN, "type": "string"}, {"name": "site", "type": "long"}]
    schema = json.dumps({"type": "struct", "fields": columns})
    return {"metaData": {"id": table_id, "partitionColumns": [COLUMN], "schemaString": schema, "configuration": {}}}


class WatchedPlan(PlannerHarness):
    """A planner whose watcher looks when it is told to, on the same clock.

    Args:
        folder: of the deployment.
        patch: sets the watcher's clock.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._settings = Settings(_env_file=None, data_dir=folder)  # type: ignore[call-arg] - as all tests do
        self.watcher = TableWatcher(self._settings)
        patch.setattr(table_watcher, "now_us", lambda: self.now)

    def another_planner(self) -> None:
        """The planner ends, and another one takes over, with a watcher of its own."""
        self.restart()
        self.watcher = TableWatcher(self._settings)

    def looks(self, times: int = 1) -> None:
        """Everything that is watched is looked at, and the planner is told; then a second passes."""
        for _ in range(times):
            self.watcher.exchange(self.planner, self.now)
            for place, wanted in self.planner.watched().items():
                assert self.watcher._takes_turn(place)
                self.watcher._look_guarded(place, wanted)
            self.watcher.exchange(self.planner, self.now)
            self.turn()
            self.pass_s(1)

    def spans(self, name: str = "s") -> list[tuple[int, int]]:
        """The versions of each run of a schedule, in order: the last one before it, and its last one."""
        found = [
            json.loads(one["values"])["table"]
            for one in self.fires
            if one["name"] == name and one["verdict"] == "launched"
        ]
        return [(one["from_version"], one["to_version"]) for one in found]

    def troubles(self) -> list[str]:
        """The kinds of trouble that were told of, in order."""
        return [one["why"].split(":")[0] for one in self.fires if one["verdict"] == "trouble"]
