"""Commands from a topic of a real broker, whose nodes are killed."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.engine.models import counter_engine
from tests.engine.node_process import topic_bank_settings

from headrace.app import connect
from headrace.model import NewRecord
from headrace.services import RunningService
from headrace.testing.conformance.log_setting import eventually
from headrace.testing.processes import ChildProcess, running_function

_AGGREGATES = [f"a{n}" for n in range(10)]
_EACH = 100


@pytest.mark.servers
async def test_a_node_that_is_killed_loses_and_repeats_no_command_of_a_topic(
    kafka: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N39: kill -9 of the owner in the middle of a topic: each command has had its effect once."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))  # a child has this process' sys.path
    address, name = f"kafka://{kafka.address}", f"c-{uuid.uuid4().hex[:8]}"
    counter = counter_engine(name, command_topic=f"{name}-commands")
    with ExitStack() as children:
        owner = _started(children, address, name, "n1", tmp_path)
        await asyncio.to_thread(owner.wait_for_line, "^serves", 60)
        settings = topic_bank_settings(name, "caller", str(tmp_path / "caller"))
        async with connect(address, settings=settings) as hr, hr.node():
            aggregates = [hr.engine(counter).aggregate(each) for each in _AGGREGATES]
            headers = (("headrace.command", b"Deposit"),)
            records = [NewRecord(f"{name}-commands", each.encode(), b'{"amount":1}', headers) for each in _AGGREGATES]
            for _ in range(_EACH):
                await hr.log.append(records)

            async def has_begun() -> bool:
                return bool(await aggregates[0].state())

            await eventually(has_begun, every_s=0.01, what="the first commands")
            owner.kill()
            _started(children, address, name, "n2", tmp_path)

            async def is_through() -> bool:
                counts = [await each.state(timeout_s=60) for each in aggregates]
                assert all(count is None or count <= _EACH for count in counts), counts
                return counts == [_EACH] * len(_AGGREGATES)

            await eventually(is_through, within_s=60, every_s=0.1, what="the end of the topic")


def _started(children: ExitStack, address: str, name: str, node: str, folder: Path) -> ChildProcess:
    target = "tests.engine.node_process:serve_topic_bank"
    return children.enter_context(running_function(target, address, name, node, str(folder / node)))
