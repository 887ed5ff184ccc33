"""What the policies of a schedule say of its jobs and runs, whatever else is going on."""

from __future__ import annotations

from datetime import timedelta

from scylla_spark.core.plan.constraint import Concurrency, LastRun, MaxLoad, tags_counted
from scylla_spark.core.plan.handler_runs import of_handler, of_tag
from scylla_spark.core.plan.schedule import Schedule
from scylla_spark.core.plan.state.schedule_entry import PENDING_TRIGGER, Entry, Job, Run
from scylla_spark.core.plan.triggers.trigger import AtTimes, leaves
from scylla_spark.duration import duration_text


def can_be_ahead(schedule: Schedule) -> bool:
    """Returns True if a fire by time may be launched before its time: nothing that happens until then can change the decision."""
    if schedule.constraints or not all(isinstance(leaf, AtTimes) for leaf in leaves(schedule.trigger)):
        return False
    return runs_each(schedule) or is_exclusive(schedule)


def may_wait_alone(schedule: Schedule) -> bool:
    """Returns True if of the jobs of a schedule one at most waits to be launched, and takes what comes meanwhile."""
    return schedule.policies.overlap in ("skip", "buffer_one")


def runs_each(schedule: Schedule) -> bool:
    """Returns True if each time, event or end that fires a schedule is promised a run, however many wait or are active."""
    return schedule.policies.overlap in ("buffer_all", "allow_all")


def no_place_words(entry: Entry) -> str:
    """Returns why a time of a schedule waits before it is decided, for people; empty: there is a place for it."""
    schedule = entry.schedule
    if entry.has_no_room and (runs_each(schedule) or schedule.policies.catch_up == "all"):
        return f"{len(entry.runs)} runs are active"
    return (
        f"{sum(job.state != PENDING_TRIGGER for job in entry.jobs.values())} jobs wait already" if entry.is_full else ""
    )


def groups_asked(schedule: Schedule) -> set[str | MaxLoad]:
    """Returns what else than time may change what the constraints of a schedule say: ends of runs of a group, and figures of the load."""
    of_work = any(
        isinstance(one, LastRun) or (isinstance(one, Concurrency) and not one.tag) for one in schedule.constraints
    )
    loads = (one for one in schedule.constraints if isinstance(one, MaxLoad))
    return {
        *loads,
        *map(of_tag, tags_counted(schedule.constraints)),
        *([of_handler(schedule.work.handler)] if of_work else []),
    }


def is_exclusive(schedule: Schedule) -> bool:
    """Returns True if one run of a schedule at most is active, and all are of one lane."""
    return schedule.policies.overlap == "skip" and schedule.policies.max_running == 1 and not schedule.work.lane


def is_parallel(schedule: Schedule) -> bool:
    """Returns True if several runs of a schedule may run at once, so that each has a lane of its own."""
    policies = schedule.policies
    return policies.overlap == "allow_all" or (policies.overlap == "skip" and policies.max_running > 1)


def is_of_its_time(schedule: Schedule, run: Run) -> bool:
    """Returns True if a run starts at its time, and was not launched when that had passed."""
    times = [leaf.times for leaf in leaves(schedule.trigger) if isinstance(leaf, AtTimes)]
    return any(one.starts_us(schedule.name, run.planned_us) == run.key.time_us for one in times)


def lane_of(entry: Entry) -> str:
    """The lane of all runs of a schedule of which one may run at once."""
    return f"schedule/{entry.name}"


def since_us(entry: Entry, job: Job) -> int:
    """Since when a job waits, as its timeout counts: one that took the place of others has their first instant, but its own time.

    The timeout of a job that was kept during a pause begins with the resume.
    """
    return max(entry.kept_us, job.first_us if job.latches else max(job.first_us, job.planned_us))


def promised_us(schedule: Schedule, planned_us: int) -> tuple[int, int]:
    """By when a run is to start, and by when to end, microseconds since the epoch; 0 for what the schedule does not promise.

    Args:
        schedule: of the run.
        planned_us: the time that it is named by.
    """
    late_us, within_us = schedule.policies.late_after_us, schedule.policies.end_within_us
    return (planned_us + late_us if late_us else 0, planned_us + within_us if within_us else 0)


def expires_ms(schedule: Schedule, job: Job, starts_us: int) -> int | None:
    """How long after the scheduled time of its task a run expires: `expires` counts from its planned time. 0: it has; None: never.

    Args:
        schedule: of the job.
        job: with the planned time.
        starts_us: the scheduled time of the task, microseconds since the epoch.
    """
    if schedule.work.expires_ms is None:
        return None
    return max(0, schedule.work.expires_ms - (starts_us - job.planned_us) // 1000)


def expired_words(schedule: Schedule) -> str:
    """Returns why a run that would have expired is not launched, for people."""
    span = duration_text(timedelta(milliseconds=schedule.work.expires_ms or 0))
    return f"it expires {span} after its planned time, and had not begun by then"
