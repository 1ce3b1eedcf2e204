"""`headrace cluster`, as a person meets it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from click.testing import Result
from tests.cluster.test_node import Owning, until
from typer.testing import CliRunner

from headrace.cli.clusters import app
from headrace.cluster import ClusterView
from headrace.errors import BadArgument, TimedOut, UnknownBackend

Command = Callable[..., Awaitable[Result]]


def is_at_rest(view: ClusterView) -> bool:
    """Return True if all replicas are online, owners are where they shall be, and so even that nothing moves."""
    placed, owners = view.placements.get("accounts", ()), view.owners.get("accounts", {})
    owned = Counter(each.member for each in owners.values())
    held = [each for facts in view.members.values() for each in facts.holdings if each.is_online]
    return (
        len(placed) == len(owners) == 6
        and len(held) == 12
        and all(each.replicas[0] == owners[n].member and each.leaving is None for n, each in enumerate(placed))
        and min(owned["node-1"], owned["node-2"]) >= 2
    )


@pytest_asyncio.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Owning]]:
    """Two nodes that own all partitions between them."""
    opened = [Owning(name, tmp_path) for name in ("node-1", "node-2")]
    for each in opened:
        await each.start()
    await until(opened[0].node, is_at_rest)
    yield opened
    for each in opened:
        await each.close()


@pytest.fixture
def headrace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run the command in a thread: the nodes go on beside it."""
    monkeypatch.setenv("HEADRACE__LOG__ADDRESS", f"embedded:{tmp_path}")
    monkeypatch.setenv("HEADRACE__CLUSTER__NAME", "c")
    return lambda *arguments: asyncio.to_thread(CliRunner().invoke, app, list(arguments))


async def test_status_shows_members_and_partitions(nodes: list[Owning], headrace: Command) -> None:
    """C6: who is there, who leads, who has which partition; as a table and as JSON."""
    shown = json.loads((await headrace("status", "--json")).output)
    assert set(shown["members"]) == {"node-1", "node-2"}
    assert shown["members"]["node-1"]["address"] == nodes[0].node.address
    assert sum(each["owns"] for each in shown["members"].values()) == 6
    assert [each["partition"] for each in shown["groups"]["accounts"]] == list(range(6))
    assert all(each["owner"] in each["online"] for each in shown["groups"]["accounts"])
    table = (await headrace("status")).output
    assert "accounts: 6 partitions, replicas: 2" in table
    assert "leads" in table


async def test_move_and_drain(nodes: list[Owning], headrace: Command) -> None:
    """C5: each waits until it is done, and says so."""
    partition = min(nodes[0].epochs)
    moved = await headrace("move", "accounts", str(partition), "--to", "node-2")
    assert moved.output == f"node-2 owns accounts[{partition}]\n", moved
    drained = await headrace("drain", "node-2")
    assert drained.output == "node-2 owns nothing any more; it can be stopped\n", drained
    assert not nodes[1].epochs
    assert len(nodes[0].epochs) == 6
    assert "drains" in (await headrace("status")).output


async def test_what_can_not_be_done_is_said(nodes: list[Owning], headrace: Command, tmp_path: Path) -> None:
    """C6: unknown members and coordinators are named, and so is what goes on."""
    refused = await headrace("move", "accounts", "0", "--to", "node-9")
    assert isinstance(refused.exception, BadArgument)
    refused = await headrace("status", "--coordinator", "etcd://127.0.0.1:1")
    assert isinstance(refused.exception, UnknownBackend)
    assert "embedded:, kafka:, zookeeper:" in str(refused.exception)
    assert (await headrace("status", "--coordinator", f"embedded:{tmp_path / 'other'}")).output.startswith("no members")
    await headrace("drain", "node-1")
    late = await headrace("drain", "node-2", "--timeout", "0.2")
    assert isinstance(late.exception, TimedOut)
    assert "draining node-2 was asked for, and goes on" in str(late.exception)
    assert (await headrace("drain", "node-2", "--timeout", "0")).output == "asked node-2 to drain\n"
