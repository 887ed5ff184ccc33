"""What a schedule is: what to run, when, under which conditions, and what becomes of fires that find another run active or come late."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from scylla_spark.core.plan.constraint import Constraint
from scylla_spark.core.plan.payload_template import Template
from scylla_spark.core.plan.times.zone import DAY_US
from scylla_spark.core.plan.triggers.trigger import Trigger
from scylla_spark.core.records.command import WireRetry
from scylla_spark.defaults import DEFAULT_QUEUE

Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "allow_all"]
CatchUp = Literal["latest", "all", "none"]
OnJobTimeout = Literal["cancel", "run"]
OnPause = Literal["drop", "keep", "backlog"]

YEAR_US: Final = 365 * DAY_US
JOB_TIMEOUT_US: Final = DAY_US


@dataclass(frozen=True, slots=True)
class Work:
    """What a fire runs.

    Attributes:
        handler: name of the handler.
        payload: template of the payload.
        queue: of the task.
        priority: of the task, 0 to 255.
        lane: ordering id of all its runs; empty: as the overlap policy wants it.
        timeout_ms: None: the handler's own.
        retry: None: the handler's own.
        expires_ms: a run that has not begun so long after its planned time ends as expired, or is not launched; None: none does.
    """

    handler: str
    payload: Template
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    lane: str = ""
    timeout_ms: int | None = None
    retry: WireRetry | None = None
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Policies:
    """What becomes of fires.

    Attributes:
        overlap: what a fire does that finds a run of its schedule active; judged at its planned time.
        max_running: with overlap "skip": how many may be active.
        catch_up: which of the times that were missed while nobody planned are run.
        catch_up_window_us: older ones are skipped.
        pause_after_failures: so many failed runs in a row pause the schedule; 0: none do.
        late_after_us: a run that starts later than this after its planned time is told of; 0: none is.
        end_within_us: a run that has not ended by then is told of; 0: none is.
        expect_every_us: a schedule that has not succeeded for so long is told of; 0: none is.
        timeout_us: how long a job may wait for its trigger or constraints.
        on_timeout: what becomes of a job then: it is dropped ("cancel"), or launched with what there is ("run").
        on_pause: what becomes of what comes during a pause: it has no effect ("drop"), the resume makes one run of it ("keep"), or
            one of each, at most 1,000, one after the other ("backlog").
    """

    overlap: Overlap = "skip"
    max_running: int = 1
    catch_up: CatchUp = "latest"
    catch_up_window_us: int = YEAR_US
    pause_after_failures: int = 0
    late_after_us: int = 0
    end_within_us: int = 0
    expect_every_us: int = 0
    timeout_us: int = JOB_TIMEOUT_US
    on_timeout: OnJobTimeout = "cancel"
    on_pause: OnPause = "drop"


@dataclass(frozen=True, slots=True)
class Schedule:
    """One definition.

    Attributes:
        name: unique.
        work: what a fire runs.
        trigger: what it waits for.
        constraints: what must hold before a launch.
        policies: what becomes of fires.
        paused: it fires nothing.
        note: why, or anything else for people.
        owner: whom to ask.
        tags: for lists.
        definition: as it was given, a JSON value; what tables keep and `show` prints.
    """

    name: str
    work: Work
    trigger: Trigger
    constraints: tuple[Constraint, ...] = ()
    policies: Policies = field(default_factory=Policies)
    paused: bool = False
    note: str = ""
    owner: str = ""
    tags: tuple[str, ...] = ()
    definition: Any = None
