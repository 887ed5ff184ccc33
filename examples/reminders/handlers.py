"""Handlers of a shop that reminds its customers: `scylla-spark up --data data --handlers examples/reminders/handlers.py` runs them."""

from scylla_spark import Abort, Retry, Schedule, Trigger, handler

NIGHTLY = Schedule("nightly", "report", Trigger.cron("0 2 * * *", tz="Europe/Berlin"), payload={"day": "{{ planned }}"})
OUTBOX: list[str] = []  # stands for a mail server


@handler("remind", retry=Retry(max_retries=5, base="20s"), timeout="30s")
def remind(task, ctx):
    if not task.payload["email"]:
        raise Abort("no address")
    if task.payload.get("busy", 0) >= ctx.attempt:  # as a mail server may be
        raise ConnectionError("try again later")
    OUTBOX.append(task.payload["email"])
    return {"sent_to": task.payload["email"]}


@handler("report")
def report(task):
    return {"day": task.payload["day"][:10]}
