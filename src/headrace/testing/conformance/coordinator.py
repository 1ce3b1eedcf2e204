"""What every coordinator must do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from headrace.cluster import Coordinator, GroupSpec, Holding, MemberFacts, open_coordinator
from headrace.config import HeadraceSettings
from headrace.errors import BadArgument, DuplicateNode, TimedOut, WrongGroupSize
from headrace.runtime import process_name
from headrace.testing.conformance.coordinator_children import cluster_settings
from headrace.testing.conformance.coordinator_setting import (
    GROUP,
    CoordinatorSetting,
    OpenCoordinator,
    Outage,
    member,
    obey,
    until,
)
from headrace.testing.processes import running_function

__all__ = ["CoordinatorConformance"]

STAY_A_MEMBER = "headrace.testing.conformance.coordinator_children:stay_a_member"
STAY_A_NAMED_MEMBER = "headrace.testing.conformance.coordinator_children:stay_a_named_member"


class CoordinatorConformance(CoordinatorSetting):
    """The tests of members, plans, requests, lost sessions and outages."""

    async def test_all_nodes_see_the_same_members_and_one_plan(self, another: OpenCoordinator) -> None:
        """C2, C6: each partition has one proposed master and one standby, the same on every node."""
        nodes = [await another() for _ in range(3)]
        for nr, node in enumerate(nodes):
            await node.join(member(f"node-{nr}"))
        for node in nodes:
            await until(node, lambda view: len(view.members) == 3 and _is_placed(view.placements))
        for node in nodes:
            view = await until(node, lambda view: view.placements == nodes[0].view.placements)
            assert view.leader in view.members
            assert view.owner_of("accounts", 3) == view.placements["accounts"][3].replicas[0]
            assert view.members["node-1"].address == "node-1.example:7000"

    async def test_facts_and_owners_are_seen_by_all(self, another: OpenCoordinator) -> None:
        """C6: what a member holds, and what it owns since it took over, reaches the others; the higher epoch wins."""
        one, two = await another(), await another()
        facts, other = member("node-1"), member("node-2")
        await one.join(facts)
        await two.join(other)
        one.update(_with(facts, Holding(group="accounts", partition=2, offset=70, is_online=True, epoch=5)))
        view = await until(two, lambda view: bool(view.owners.get("accounts")))
        assert view.owner_of("accounts", 2) == "node-1"
        assert view.members["node-1"].holdings[0].offset == 70
        two.update(_with(other, Holding(group="accounts", partition=2, offset=71, is_online=True, epoch=6)))
        await until(one, lambda view: view.owner_of("accounts", 2) == "node-2")

    async def test_a_member_that_leaves_is_gone_at_once(self, another: OpenCoordinator) -> None:
        """C5, C6: its partitions go to those that stay."""
        one, two = await another(), await another()
        await one.join(member("node-1"))
        await two.join(member("node-2"))
        await until(one, lambda view: len(view.members) == 2)
        await two.leave()
        view = await until(
            one, lambda view: set(view.members) == {"node-1"} and _is_placed(view.placements, ["node-1"])
        )
        assert all(each.replicas == ("node-1",) for each in view.placements["accounts"])

    async def test_a_killed_member_is_missed_and_its_id_can_be_used_again(
        self, another: OpenCoordinator, address: str, cluster_name: str
    ) -> None:
        """C6: its session ends by time; a process that starts again with the same id waits for that and joins."""
        one = await another()
        await one.join(member("node-1"))
        arguments = (address, cluster_name, self.session_s, "node-2")
        with running_function(STAY_A_MEMBER, *arguments) as child:
            child.wait_for_line("joined", timeout_s=30)
            await until(one, lambda view: len(view.members) == 2)
            child.kill()
        again = await another()
        await again.join(member("node-2", incarnation="second"))
        await until(one, lambda view: view.members.get("node-2", member("-")).incarnation == "second")

    @pytest.mark.skipif(not process_name(), reason="the kernel does not tell which process it is: it has no /proc")
    async def test_a_killed_process_does_not_keep_its_successor_waiting(self, address: str, cluster_name: str) -> None:
        """C6: on the same machine it is known to have ended, however long its session; one that is frozen is not."""
        session_s = 20.0
        settings = cluster_settings(cluster_name, session_s)
        with running_function(STAY_A_NAMED_MEMBER, address, cluster_name, session_s, "node-1") as child:
            child.wait_for_line("joined", timeout_s=30)
            again = await open_coordinator(address, settings=settings)
            try:
                child.pause()
                with pytest.raises(TimedOut):
                    await again.join(member("node-1", incarnation="second"), timeout_s=0.5)
                child.kill()
                await again.join(member("node-1", incarnation="second"), timeout_s=session_s / 4)
                await until(again, lambda view: view.members.get("node-1", member("-")).incarnation == "second")
            finally:
                await again.close()

    async def test_the_leader_dies_and_another_one_leads(
        self, another: OpenCoordinator, address: str, cluster_name: str
    ) -> None:
        """C6: the plan of the dead leader goes on to be the plan, and the next one follows from it."""
        arguments = (address, cluster_name, self.session_s, "node-1")
        with running_function(STAY_A_MEMBER, *arguments) as child:
            child.wait_for_line("led by node-1", timeout_s=30)
            two = await another()
            await two.join(member("node-2"))
            view = await until(two, lambda view: _is_placed(view.placements, ["node-1", "node-2"]))
            assert view.leader == "node-1"
            child.kill()
        view = await until(two, lambda view: view.leader == "node-2" and _is_placed(view.placements, ["node-2"]))
        assert set(view.members) == {"node-2"}

    async def test_two_nodes_with_one_id(self, another: OpenCoordinator) -> None:
        """C16: the second stops with an error that names the first, which goes on."""
        one, two = await another(), await another()
        first = member("node-1", incarnation="first")
        await one.join(first)
        with pytest.raises(DuplicateNode, match=r"node-1\.example:7000 \(first\)") as refused:
            await two.join(member("node-1", incarnation="second"))
        assert refused.value.node == "node-1"
        with pytest.raises(DuplicateNode):
            two.check()
        with pytest.raises(DuplicateNode):
            await anext(two.views())
        one.update(_with(first, Holding(group="accounts", partition=0, epoch=3)))
        view = await until(one, lambda view: bool(view.owners.get("accounts")))
        assert view.members["node-1"].incarnation == "first"

    async def test_a_fresh_view_is_of_this_moment(self, another: OpenCoordinator) -> None:
        """C6: what another node was told is done is in it, though nobody has waited for that to be seen."""
        one, two = await another(), await another()
        await two.join(member("node-2"))
        assert "node-2" in (await one.fresh_view()).members
        await two.leave()
        assert "node-2" not in (await one.fresh_view()).members

    async def test_a_node_with_another_number_of_partitions_stops(self, another: OpenCoordinator) -> None:
        """C6: its keys would lie elsewhere."""
        one, two = await another(), await another()
        await one.join(member("node-1"))
        await until(one, lambda view: "accounts" in view.groups)
        wrong = GroupSpec(name="accounts", partitions=7)
        with contextlib.suppress(WrongGroupSize):
            await two.join(member("node-2", group=wrong))
        with pytest.raises(WrongGroupSize, match="has 6 partitions in this cluster, this node was started with 7"):
            await until(two, lambda view: False)
        await until(one, lambda view: set(view.members) == {"node-1"})

    async def test_an_outage_makes_the_view_old_and_nothing_else(
        self, another: OpenCoordinator, outage: Outage
    ) -> None:
        """C6: for longer than a session; members, plan and owners stay known, and afterwards all are back."""
        one, two = await another(), await another()
        facts = member("node-1")
        await one.join(facts)
        await two.join(member("node-2"))
        one.update(_with(facts, Holding(group="accounts", partition=2, is_online=True, epoch=5)))
        before = await until(one, lambda view: len(view.members) == 2 and view.owner_of("accounts", 2) == "node-1")
        async with outage():
            view = await until(one, lambda view: view.is_old)
            assert view.members.keys() == before.members.keys()
            assert view.owner_of("accounts", 2) == "node-1"
            one.update(_with(facts, Holding(group="accounts", partition=3, is_online=True, epoch=9)))
            await asyncio.sleep(self.session_s * 1.5)  # the outage is this long: nothing happens that could be awaited
            one.check()
        view = await until(
            two, lambda view: not view.is_old and len(view.members) == 2 and view.owner_of("accounts", 3) == "node-1"
        )
        await until(one, lambda view: not view.is_old and len(view.members) == 2)

    async def test_drain_and_move(self, another: OpenCoordinator) -> None:
        """C5, C6: a drained member hands over and keeps nothing; a move makes its target the owner."""
        nodes = {name: await another() for name in ("node-1", "node-2", "node-3")}
        observer = await another()
        async with _obeying(nodes):
            await until(observer, lambda view: len(view.members) == 3 and _is_placed(view.placements))
            view = await until(observer, lambda view: len(view.owners.get("accounts", {})) == GROUP.partitions)
            (to, *_) = set(nodes) - {view.owner_of("accounts", 4)}
            await observer.request_move("accounts", 4, to=to)
            view = await until(observer, lambda view: view.owner_of("accounts", 4) == to and not view.moves)
            await observer.request_drain("node-2")
            view = await until(
                observer,
                lambda view: (
                    "node-2" not in _replicas(view.placements)
                    and all(view.owner_of("accounts", n) != "node-2" for n in range(GROUP.partitions))
                ),
            )
            assert view.draining == {"node-2"}
            assert "node-2" in view.members

    async def test_requests_that_make_no_sense_are_refused(self, another: OpenCoordinator) -> None:
        """C6: each says what there is."""
        one = await another()
        await one.join(member("node-1"))
        await until(one, lambda view: _is_placed(view.placements, ["node-1"]))
        with pytest.raises(BadArgument, match="the cluster has 'accounts'"):
            await one.request_move("orders", 0, to="node-1")
        with pytest.raises(BadArgument, match="the group has 6, from 0 on"):
            await one.request_move("accounts", 6, to="node-1")
        with pytest.raises(BadArgument, match="the members that serve the group are 'node-1'"):
            await one.request_move("accounts", 0, to="node-9")
        with pytest.raises(BadArgument, match="the members are 'node-1'"):
            await one.request_drain("node-9")

    async def test_a_member_that_drained_and_was_started_again_takes_part(
        self, another: OpenCoordinator, settings: HeadraceSettings
    ) -> None:
        """C6: a request to drain is for one incarnation."""
        one, two = await another(), await another()
        await one.join(member("node-1"))
        await two.join(member("node-2"))
        await until(one, lambda view: len(view.members) == 2)
        await one.request_drain("node-2")
        await until(one, lambda view: view.draining == {"node-2"})
        await two.leave()
        again = await another()
        await again.join(member("node-2"))
        await until(one, lambda view: len(view.members) == 2 and not view.draining)


def _with(facts: MemberFacts, *holdings: Holding) -> MemberFacts:
    return msgspec.structs.replace(facts, holdings=holdings)


def _replicas(placements: object) -> set[str]:
    assert isinstance(placements, dict)
    return {name for each in placements.get("accounts", ()) for name in each.replicas}


def _is_placed(placements: object, names: list[str] | None = None) -> bool:
    """Return True if every partition has its replicas, on these members alone if they are given."""
    assert isinstance(placements, dict)
    wanted = 2 if names is None else min(2, len(names))
    placed = placements.get("accounts", ())
    is_whole = len(placed) == GROUP.partitions and all(len(each.replicas) >= wanted for each in placed)
    return is_whole and (names is None or _replicas(placements) == set(names))


@contextlib.asynccontextmanager
async def _obeying(nodes: dict[str, Coordinator]) -> AsyncIterator[None]:
    tasks = []
    for name, node in nodes.items():
        facts = member(name)
        await node.join(facts)
        tasks.append(asyncio.create_task(obey(node, facts)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
