"""A process that owns a partition, or stands by; it reports by printing lines, with times that all processes share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from headrace.cluster import Identity, LeaseKeeper, OwnedPartition, Owner, new_process
from headrace.cluster.tail import seconds
from headrace.errors import HeadraceError
from headrace.log import open_log
from headrace.model import NewRecord, TopicPartition
from headrace.runtime import SYSTEM_CLOCK

_PAUSE_S = 0.01


def _say(what: str) -> None:
    print(f"{what} at {round(seconds(SYSTEM_CLOCK) * 1000)}", flush=True)


class _Listener:
    async def owns(self, epoch: int, read_to: Mapping[TopicPartition, int]) -> None:
        _say(f"owns {epoch}")

    async def lost(self) -> None:
        _say("lost")


def run_owner(address: str, prefix: str, topic: str, node: str, rank: int) -> None:
    """Take part until killed: write a new value again and again while this is the owner."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s")
    asyncio.run(_run(address, prefix, topic, node, rank))


async def _run(address: str, prefix: str, topic: str, node: str, rank: int) -> None:
    log = await open_log(address)
    keeper = LeaseKeeper(log, prefix, Identity("cluster", node, new_process()))
    owner = Owner(log, OwnedPartition(prefix, (TopicPartition(topic, 0),)), keeper, _Listener())
    owner.propose(rank)
    await asyncio.gather(keeper.run(), owner.run(), _write(owner, topic, node), _serve(owner))


async def _write(owner: Owner, topic: str, node: str) -> None:
    n = 0
    while not owner.owner and owner.epoch is None:  # noqa: ASYNC110 - it is looked at as an application would
        await asyncio.sleep(_PAUSE_S)
    if owner.epoch is None:
        _say("stands by")
    while True:
        n += 1
        if owner.epoch is None:
            await asyncio.sleep(_PAUSE_S)
            continue
        value = f"{node}-{n}"
        try:
            committed = await owner.commit([NewRecord(topic, b"k", value.encode(), partition=0)])
        except HeadraceError as error:
            _say(f"failed {value} {getattr(error, 'outcome_known', True)}")
        else:
            await owner.reply_gate(committed)
            _say(f"ack {value}")


async def _serve(owner: Owner) -> None:
    while True:
        if owner.may_serve():
            _say("serve now")
        await asyncio.sleep(_PAUSE_S)
