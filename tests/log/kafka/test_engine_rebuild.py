"""An engine's state topic is lost on a real broker, and rebuilt from the journal."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.conftest import EngineSetting
from tests.engine.models import Deposit, Withdraw, bank_engine
from tests.log.kafka.conftest import OpenKafka

from headrace.engine import AggregateValues, EngineGroup, audit_engine, make_topics, rebuild_aggregates
from headrace.errors import CommandTooLate, UnknownTopic
from headrace.journal import Journal
from headrace.services import RunningService
from headrace.store import open_store
from headrace.testing.conformance.log_setting import eventually

pytestmark = pytest.mark.servers


async def test_a_lost_state_topic_is_rebuilt_on_a_broker(
    broker: RunningService, opened: OpenKafka, tmp_path: Path
) -> None:
    """N25, N42: states and ids come from the journal, and batches of the lost topic are older than the rebuild."""
    lost = EngineSetting(await opened(broker))
    bank = bank_engine(lost.name())
    owner = await lost.owner(bank)
    await owner.send("a", Deposit(5), command_id="x")
    rejected = await owner.send("a", Withdraw(50), command_id="y")
    epoch, number = map(int, rejected.since.split(":"))
    setting = EngineSetting(await opened(broker))  # another program, which never saw the topic that is lost
    setting.prefix = lost.prefix
    store = await open_store(f"embedded:{tmp_path}")
    journal = Journal(setting.log, store, bank.name, cache=None, read_only=True)
    await owner.stop()
    await setting.log.admin.delete(bank.state_topic)

    async def is_gone() -> bool:
        try:
            await setting.log.admin.describe(bank.state_topic)
        except UnknownTopic:
            return True
        return False

    await eventually(is_gone, every_s=0.05, what="the end of the topic")
    await make_topics(setting.log, None, bank)
    group = EngineGroup(prefix=setting.prefix, cluster_id="cluster")
    values = AggregateValues(bank.state_codec())
    await rebuild_aggregates(setting.log, journal, bank, values, group, ["a"], max_record_bytes=1_000_000)
    node = await setting.owner(bank, "n2")
    again = await node.send("a", Deposit(5), command_id="x", since=(epoch, number))
    assert (again.is_repeated, again.version) == (True, 1)
    with pytest.raises(CommandTooLate):
        await node.send("a", Withdraw(50), command_id="y", since=(epoch, number))
    assert (await node.send("a", Deposit(1))).version == 2
    audit = await audit_engine(setting.log, journal, bank)
    assert (audit.aggregates, list(audit.differences)) == (1, [])
    await store.close()
    await node.stop()
