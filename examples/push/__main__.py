"""Run it: python -m examples.push http://127.0.0.1:9000/devices"""

from __future__ import annotations

import asyncio
import sys

import httpx
from examples.push.devices import HttpPush, Inboxes, Notify

import headrace
from headrace.keyspace import PushRunner


async def main(url: str) -> None:
    """Send a message to a device, and push what changes until the program is stopped."""
    async with (
        headrace.connect("embedded:./data") as hr,
        hr.node(Inboxes),
        httpx.AsyncClient() as http,
        asyncio.TaskGroup() as tasks,
    ):
        inboxes = hr.keyspace(Inboxes)
        runner = PushRunner(hr.log, inboxes, "inboxes", HttpPush(http, url), name="devices")
        tasks.create_task(runner.run())
        await runner.ready.wait()
        print(await inboxes.ask(Notify("phone-1", "hello")))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
