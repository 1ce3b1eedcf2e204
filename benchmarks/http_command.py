"""http-command: commands to an engine by POST through the gateway, beside the engine itself, on both tiers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least
from benchmarks.workloads.gateways import PAYLOAD
from benchmarks.workloads.http_load import HttpRequest, requests_per_s
from benchmarks.workloads.servers import server
from headrace.testing.processes import ChildProcess, running_function

SENDERS = 64
COMMANDS = 20_000
SECONDS = 4.0
AGAINST = "the engine itself in the same process, as many commands at a time"
SERVE = "benchmarks.workloads.gateways:serve_counters"


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    store = f"embedded:{stage.folder / 'store'}"
    with (
        server("kafka", stage) as kafka,
        running_function(SERVE, f"embedded:{stage.folder / 'log'}", f"embedded:{stage.folder / 'log'}") as embedded,
        running_function(SERVE, f"kafka://{kafka.address}", store) as on_kafka,
    ):
        tiers = {"embedded": embedded, "kafka": on_kafka}
        urls = {tier: await _address_of(child) for tier, child in tiers.items()}
        yield Contest(
            lambda: _of_all(tiers, lambda tier: _posted(urls[tier], stage)),
            lambda: _of_all(tiers, lambda tier: _sent(tiers[tier], stage.count(COMMANDS, least=SENDERS * 5))),
        )


async def _address_of(child: ChildProcess) -> str:
    found = await asyncio.to_thread(child.wait_for_line, r"listening on (\S+)", 60)
    return found[1]


async def _of_all(tiers: dict[str, ChildProcess], rate: Callable[[str], Awaitable[float]]) -> Readings:
    return {f"{tier}_commands_per_s": await rate(tier) for tier in tiers}


async def _posted(url: str, stage: Stage) -> float:
    body = json.dumps({"by": 1, "text": PAYLOAD})
    request = HttpRequest(f"{url}/engines/bench-counters/a-{{n}}/commands/CountUp", "POST", body)
    seconds = max(0.5, SECONDS * stage.scale)
    return await requests_per_s(request, connections=SENDERS, seconds=seconds, folder=stage.folder)


async def _sent(child: ChildProcess, commands: int) -> float:
    child.send_line(f"{commands} {SENDERS}")
    found = await asyncio.to_thread(child.wait_for_line, r"rate (\S+)", 120)
    return float(found[1])


BENCH = Bench(
    name="http-command",
    work=f"POST of a command of 200 bytes to one of {SENDERS} aggregates, on {SENDERS} connections",
    measures=(
        Measure("embedded_commands_per_s", unit="commands/s", against=AGAINST, target=at_least(0.5)),
        Measure("kafka_commands_per_s", unit="commands/s", against=AGAINST, target=at_least(0.5)),
    ),
    setup=setup,
)
