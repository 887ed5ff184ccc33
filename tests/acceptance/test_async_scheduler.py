"""The client for asyncio against a deployment: many results wait in one event loop."""

import asyncio
import threading

from scylla_spark import AsyncScheduler
from tests.acceptance.place import PATIENCE

MANY = 1_000  # `unit/test_async_scheduler.py` has ten thousand


def test_many_results_are_awaited_in_one_event_loop(deployment):
    async def run():
        async with AsyncScheduler(deployment.client()) as client:
            held = {"handler": "work", "payload": {"ms": 0}, "queue": "async"}
            await client.queue("async").pause()
            sent = await client.enqueue_many([held | {"ordering_id": f"async-{n % 100}"} for n in range(MANY)])
            waits = [asyncio.create_task(client.task(key).result(PATIENCE)) for key in sent.keys]
            one = await client.enqueue("work", {"ms": 0}, delay="30d", ordering_id="async-far")
            assert await one.cancel(timeout="60s") == "cancelled"
            assert threading.active_count() < 100
            await client.queue("async").resume()
            results = await asyncio.gather(*waits)
            assert (await client.list_tasks("lane:async-far")).num_rows <= 1
            return len(results)

    assert asyncio.run(run()) == MANY
