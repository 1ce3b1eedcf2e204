"""Where in line for a partition a node is, when it hands one over, and how long its leases are."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.cluster import AnnouncedOwner, ClusterView, Holding, HostingNode, MemberFacts, Placement
from headrace.cluster.hosted_partition import is_to_hand_over, rank_in_line
from headrace.cluster.tail import seconds
from headrace.config import ClusterSettings, HeadraceSettings, LogSettings
from headrace.log import open_log
from headrace.runtime import SYSTEM_CLOCK


def member(name: str, *, is_online: bool = True) -> MemberFacts:
    held = Holding(group="g", partition=0, is_online=is_online)
    return MemberFacts(id=name, incarnation=name, address="127.0.0.1:1", holdings=(held,))


def view_of(
    *replicas: str, offline: tuple[str, ...] = (), epoch: int = 1, draining: tuple[str, ...] = ()
) -> ClusterView:
    """Return a view of members a, b and c, and of one partition."""
    return ClusterView(
        members={name: member(name, is_online=name not in offline) for name in "abc"},
        placements={"g": (Placement(replicas=replicas, epoch=epoch),)},
        owners={"g": {0: AnnouncedOwner("a", epoch)}},
        draining=frozenset(draining),
    )


@pytest.mark.parametrize(
    ("view", "node", "is_online", "rank"),
    [
        (view_of("a", "b"), "a", True, 0),
        (view_of("a", "b"), "b", True, 1),
        (view_of("a", "b"), "c", True, None),
        (view_of("a", "b"), "b", False, None),
        (view_of("a", "b", offline=("a", "b")), "b", False, 1),
        (view_of("a", "b", draining=("a",)), "a", True, None),
        (view_of("a", draining=("a",)), "a", True, 0),
        (view_of("a", "b", draining=("a", "b")), "b", True, 1),
        (ClusterView(), "a", True, None),
    ],
)
def test_the_place_in_line(view: ClusterView, node: str, is_online: bool, rank: int | None) -> None:
    """C4: a copy that lags takes nothing while another has caught up; who drains takes nothing unless all do."""
    assert rank_in_line(view, "g", 0, node, is_online=is_online) == rank


def test_a_silent_node_keeps_nobody_from_its_place() -> None:
    """C9: the coordinator misses it later; until then a copy that lags, or a node that drains, would wait for it."""

    def rank(view: ClusterView, *, is_silent: bool) -> int | None:
        return rank_in_line(view, "g", 0, "b", is_online=False, is_silent=lambda _: is_silent)

    assert rank(view_of("a", "b"), is_silent=False) is None
    assert rank(view_of("a", "b"), is_silent=True) == 1
    assert rank(view_of("a", "b", draining=("b",)), is_silent=True) == 1


def test_a_partition_goes_only_to_a_living_node_and_by_a_plan_that_knows_its_owner() -> None:
    """C5: a dead successor, an older plan and a coordinator that is away are no reasons to let go of a partition."""
    wants_b = view_of("b", "a", epoch=4)

    def asked(view: ClusterView, epoch: int, *, is_alive: bool = True) -> bool:
        return is_to_hand_over(view, "g", 0, "a", epoch, is_alive=lambda _: is_alive)

    assert asked(wants_b, 4)
    assert not asked(wants_b, 4, is_alive=False)
    assert not asked(wants_b, 5), "the plan is older than this take-over"
    assert not asked(msgspec.structs.replace(wants_b, is_old=True), 4)
    assert not asked(view_of("a", "b", epoch=4), 4)
    assert not asked(view_of("d", "a", epoch=4), 4), "nobody of that name is there"


async def test_a_node_goes_by_its_settings_and_by_the_lengths_of_other_nodes_leases(tmp_path: Path) -> None:
    """C9: its own lease is as long as configured; another node is missed when that one's lease is over."""
    cluster = ClusterSettings(name="c", node_id="a", lease_s=0.3, longest_lease_s=0.9)
    settings = HeadraceSettings(log=LogSettings(address=f"embedded:{tmp_path}"), cluster=cluster)
    log = await open_log(settings.log.address)
    async with HostingNode(log, settings=settings) as node:
        assert (await node.keeper.held()).lease_s == 0.3
        assert node.keeper.terms.longest_s == 0.9
        heard_s = seconds(SYSTEM_CLOCK) - 1.0
        node.keeper.watch.since_s -= 10.0
        node.keeper.watch._heard |= {"long": (heard_s, 30.0), "short": (heard_s, 0.3)}
        assert (node._is_alive("long"), node._is_silent("long")) == (True, False)
        assert (node._is_alive("short"), node._is_silent("short")) == (False, True)
    await log.close()
