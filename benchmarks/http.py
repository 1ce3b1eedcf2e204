"""http: GET of a key through the gateway, beside the same server answering a constant of the same size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least
from benchmarks.workloads.gateways import KEY_PATH
from benchmarks.workloads.http_load import HttpRequest, generator_name, requests_per_s
from headrace.testing.processes import running_function

CONNECTIONS = 64
SECONDS = 4.0
AGAINST = "the same server answering a constant of the same size"


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    seconds = max(0.2, SECONDS * stage.scale)
    stage.tell(f"the load comes from {generator_name(HttpRequest(KEY_PATH))}")
    with running_function("benchmarks.workloads.gateways:serve_values", f"embedded:{stage.folder / 'log'}") as child:
        found = await asyncio.to_thread(child.wait_for_line, r"listening on (\S+) and (\S+)", 60)

        async def rate(url: str) -> Readings:
            request = HttpRequest(url)
            return {
                "requests_per_s": await requests_per_s(
                    request, connections=CONNECTIONS, seconds=seconds, folder=stage.folder
                )
            }

        yield Contest(lambda: rate(found[1] + KEY_PATH), lambda: rate(found[2] + "/"))


BENCH = Bench(
    name="http",
    work=f"GET of a value of 200 bytes by key, on the embedded tier, {CONNECTIONS} connections",
    measures=(Measure("requests_per_s", unit="requests/s", against=AGAINST, target=at_least(0.6)),),
    setup=setup,
)
