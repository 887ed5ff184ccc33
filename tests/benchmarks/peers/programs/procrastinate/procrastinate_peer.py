"""Procrastinate as a peer: `python procrastinate_peer.py VERB JSON`; see ../../program.py for what each verb does."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from datetime import UTC, datetime

from procrastinate import App, PsycopgConnector

CHUNK = 1_000
options = json.loads(sys.argv[2])
app = App(connector=PsycopgConnector(conninfo=options["address"]))
_records = os.open(options["records"], os.O_APPEND | os.O_CREAT | os.O_WRONLY)


@app.task(name="noop")
async def noop(key: int, number: int, stamp: float) -> None:
    os.write(_records, struct.pack("<4d", key, number, stamp, time.time() * 1e6))


async def prepare() -> float:
    await app.schema_manager.apply_schema_async()
    return 0.0


async def enqueue() -> float:
    count, keys = options["count"], options["keys"]
    begin = time.perf_counter()
    if options["first_due_us"]:
        for first in range(0, count, 50):  # one call gives all its jobs the same time, so each is alone, some at once
            await asyncio.gather(*(defer_one(number) for number in range(first, min(first + 50, count))))
    elif keys:
        for key in range(keys):  # and the same lock
            numbers = range(count // keys + (key < count % keys))
            jobs = [{"key": key, "number": number, "stamp": 0} for number in numbers]
            await noop.configure(lock=f"key-{key}").batch_defer_async(*jobs)
    else:
        for first in range(0, count, CHUNK):
            jobs = [{"key": 0, "number": number, "stamp": 0} for number in range(first, min(first + CHUNK, count))]
            await noop.batch_defer_async(*jobs)
    return time.perf_counter() - begin


async def defer_one(number: int) -> None:
    due = options["first_due_us"] + number * options["period_us"]
    job = noop.configure(schedule_at=datetime.fromtimestamp(due / 1e6, UTC))
    await job.defer_async(key=0, number=number, stamp=due)


async def send() -> float:
    begin = time.perf_counter()
    for index in range(options["count"]):
        await asyncio.sleep(begin + index / options["rate"] - time.perf_counter())
        await noop.defer_async(key=0, number=index, stamp=time.time() * 1e6)
    return time.perf_counter() - begin


async def work() -> float:
    await app.run_worker_async(**options["worker"])
    return 0.0


async def main() -> None:
    async with app.open_async():
        print(
            json.dumps(
                {"seconds": await {"prepare": prepare, "enqueue": enqueue, "send": send, "work": work}[sys.argv[1]]()}
            )
        )


asyncio.run(main())
