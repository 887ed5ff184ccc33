"""The states of tasks: the one list. Which state a task is in, `core.tasks.state` decides."""

from __future__ import annotations

from typing import Final, Literal, get_args

OpenState = Literal["scheduled", "ready", "running", "retry_wait"]
EndState = Literal["succeeded", "failed", "aborted", "cancelled", "expired", "duplicate"]
State = Literal[OpenState, EndState]

OPEN: Final[tuple[str, ...]] = get_args(OpenState)
ENDED: Final[tuple[str, ...]] = get_args(EndState)
STATES: Final = (*OPEN, *ENDED)
