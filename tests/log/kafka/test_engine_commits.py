"""Commits of an engine on a real broker whose answers are lost or late; the broker behind a proxy is this room's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.engine.conftest import EngineSetting
from tests.engine.models import Account, Deposit, Withdraw, bank_engine
from tests.log.kafka.conftest import OpenKafka

from headrace.cluster import batch_of
from headrace.log import Log, TransactionalProducer
from headrace.model import Position
from headrace.services import RunningService
from headrace.testing.conformance.log_setting import eventually
from headrace.testing.proxy import TcpProxy

pytestmark = pytest.mark.servers


@pytest.fixture(autouse=True)
def restored(proxy: TcpProxy) -> Iterator[None]:
    """Logs are closed after the way to the broker is open again."""
    yield
    proxy.restore()


class FaultyCommits:
    """A log whose way to the broker fails at the end of one transaction, when all its records have arrived."""

    def __init__(self, log: Log, proxy: TcpProxy, transactional_id: str) -> None:
        self._log = log
        self._proxy = proxy
        self._transactional_id = transactional_id
        self.fault: Literal["", "hold", "drop"] = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def transactional(self, transactional_id: str, *, timeout_s: float = 60.0) -> TransactionalProducer:
        producer: Any = await self._log.transactional(transactional_id, timeout_s=timeout_s)
        if transactional_id == self._transactional_id:
            producer.commit = partial(self._commit, producer, producer.commit)
        return producer  # type: ignore[no-any-return]

    async def _commit(self, producer: Any, commit: Any) -> Sequence[Position]:
        fault, self.fault = self.fault, ""
        if fault:
            await asyncio.to_thread(producer._producer.flush, 5)
            self._proxy.hold_answers() if fault == "hold" else self._proxy.drop()
        try:
            positions: Sequence[Position] = await commit()
            return positions
        finally:
            if fault:
                self._proxy.restore()


@pytest.mark.parametrize("fault", ["hold", "drop"])
async def test_a_commit_without_an_answer_is_settled_by_its_name(
    broker: RunningService, proxy: TcpProxy, opened: OpenKafka, fault: Literal["hold", "drop"], tmp_path: Path
) -> None:
    """N12, N16, N28, N29, N42: whether EndTxn was done or came late, each command is there once, in a whole batch."""
    direct = await opened(broker)
    setting = EngineSetting(direct)
    bank = bank_engine(setting.name())
    faulty = FaultyCommits(await opened(proxy, request_timeout_s=1), proxy, f"{setting.prefix}-{bank.name}-state-0")
    setting.unsure = faulty  # type: ignore[assignment]
    node = await setting.owner(bank)
    await node.send("a", Deposit(1), command_id="first")
    faulty.fault = fault
    lost = [asyncio.create_task(node.send(each, Deposit(2), command_id="x", timeout_s=60)) for each in "ab"]

    async def has_failed() -> bool:
        return not faulty.fault

    await eventually(has_failed, every_s=0.001, what="the fault")
    later = asyncio.create_task(node.send("a", Withdraw(3), timeout_s=60))
    assert [(await each).version for each in lost] == [2, 1]
    assert (await later).state == Account(0)
    assert len(node.epochs) > 1, "the producer was used again"
    assert await setting.payloads(bank) == [{"amount": 1}, {"amount": 2}, {"amount": 2}, {"amount": 3}]
    again = await node.send("b", Deposit(2), command_id="x")
    assert (again.version, again.is_repeated) == (1, True)
    events, states = await setting.records(bank.name), await setting.records(bank.state_topic)
    assert {batch_of(each) for each in events} <= {batch_of(each) for each in states}
    await setting.audit(tmp_path)
    for node in setting.nodes:
        await node.stop()
