"""console-load: the bytes of the console's page, and the time until it has its first data."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import median
from time import perf_counter
from urllib.parse import urljoin

import httpx

from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_most
from headrace import Event
from headrace.app import connect
from headrace.config import HeadraceSettings
from headrace.gateway import serving

LOADS = 30
TOPICS = 10
CONNECTIONS = 6  # as many as browsers open to one address
FIRST_DATA = ("/console/api/overview", "/console/api/topics", "/console/api/charts")
SAME_FILES = "the same files without compression"
SAME_COUNT = "as many requests for /health/live, in the same steps over the same connections"


def named_in(address: str, text: str) -> list[str]:
    """Return the files that a page or a module asks its browser to load."""
    names = re.findall(r'(?:src|href)="([^"]+)"', text) if "<html" in text else re.findall(r'from "(\./[^"]+)"', text)
    return [urljoin(address, name) for name in names]


async def loaded(client: httpx.AsyncClient, *, encoding: str) -> tuple[list[int], int]:
    """Load the page as a browser does, step by step; return how many files each step had, and the bytes of all."""
    seen, step, counts, size_bytes = {"/console"}, ["/console"], [], 0
    while step:
        answers = await asyncio.gather(*(client.get(each, headers={"accept-encoding": encoding}) for each in step))
        counts.append(len(step))
        size_bytes += sum(each.num_bytes_downloaded for each in answers)
        found = [name for each in answers for name in named_in(each.url.path, each.text)]
        step = [name for name in dict.fromkeys(found) if name not in seen and name != "/docs"]
        seen.update(step)
    return counts, size_bytes


async def first_data(client: httpx.AsyncClient) -> tuple[float, list[int], int]:
    """Return the time to the first data in ms, the requests of each step, and the bytes of the page."""
    started = perf_counter()
    counts, size_bytes = await loaded(client, encoding="gzip")
    for step in (FIRST_DATA[:1], FIRST_DATA[1:]):  # the page asks what it may see first
        answers = await asyncio.gather(*(client.get(each) for each in step))
        assert all(each.status_code == 200 for each in answers)
        counts.append(len(step))
    return (perf_counter() - started) * 1000, counts, size_bytes


async def plain_requests(client: httpx.AsyncClient, counts: Sequence[int]) -> float:
    """Return the time of as many requests that do nothing, in ms."""
    started = perf_counter()
    for count in counts:
        await asyncio.gather(*(client.get("/health/live") for _ in range(count)))
    return (perf_counter() - started) * 1000


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    loads = stage.count(LOADS, least=3)
    settings = HeadraceSettings.model_validate({"gateway": {"listen": "127.0.0.1:0"}})
    async with connect(f"embedded:{stage.folder / 'log'}", settings=settings) as hr:
        for n in range(TOPICS):
            await hr.journal(f"topic-{n}").append("a", [Event(1, {"n": n})])
        limits = httpx.Limits(max_connections=CONNECTIONS)
        async with (
            serving(hr.gateway(), settings.gateway) as gateway,
            httpx.AsyncClient(base_url=gateway.url, limits=limits) as client,
        ):

            async def work() -> Readings:
                taken = [await first_data(client) for _ in range(loads)]
                return {"page_bytes": taken[0][2], "first_data_ms": median(each[0] for each in taken)}

            async def bound() -> Readings:
                _, counts, _ = await first_data(client)
                _, plain_bytes = await loaded(client, encoding="identity")
                taken = [await plain_requests(client, counts) for _ in range(loads)]
                return {"page_bytes": plain_bytes, "first_data_ms": median(taken)}

            yield Contest(work, bound)


BENCH = Bench(
    name="console-load",
    work=f"the console of a gateway with {TOPICS} topics: its page and all files, then its first data",
    measures=(
        Measure("page_bytes", unit="bytes", against=SAME_FILES, target=at_most(0.5)),
        Measure("first_data_ms", unit="ms", against=SAME_COUNT, target=at_most(4)),
    ),
    setup=setup,
)
