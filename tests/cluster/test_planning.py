"""What the leader proposes, and what nodes see of what they share."""

from __future__ import annotations

import msgspec
import pytest

from headrace.cluster.members import ClusterView, GroupSpec, Holding, MemberFacts
from headrace.cluster.planning import AssignmentPlan, Shared, encode, obsolete_requests, propose, view_of
from headrace.errors import BadArgument, IncompatibleData


def member(name: str, *groups: GroupSpec, holdings: tuple[Holding, ...] = ()) -> MemberFacts:
    return MemberFacts(id=name, incarnation="1", address=f"{name}:1", groups=groups, holdings=holdings)


def proposed(*members: MemberFacts, last: AssignmentPlan | None = None) -> AssignmentPlan:
    shared = Shared(members={each.id: encode(each) for each in members}, plan=encode(last) if last else None)
    return propose(view_of(shared), leader="a", absent={}, awaited=frozenset(), threshold=0.2)


def test_members_get_only_the_groups_that_they_serve() -> None:
    """C3: each group is spread over its own members; the most replicas that one asks for count."""
    orders, few, many = (GroupSpec(name=n, partitions=4, replicas=r) for n, r in (("o", 1), ("a", 1), ("a", 2)))
    plan = proposed(member("a", few), member("b", many), member("c", orders))
    assert {name for each in plan.placements["a"] for name in each.replicas} == {"a", "b"}
    assert all(len(each.replicas) == 2 for each in plan.placements["a"])
    assert {name for each in plan.placements["o"] for name in each.replicas} == {"c"}


def test_a_group_that_nobody_serves_stays_as_it_was() -> None:
    """C5: all its members are away; when they return they find their places."""
    accounts = GroupSpec(name="a", partitions=4)
    plan = proposed(member("a", accounts))
    assert proposed(member("b"), last=plan).placements == plan.placements
    assert proposed(member("b"), last=plan).groups == {"a": accounts}


def test_members_and_requests_that_are_not_understood_are_passed_over() -> None:
    """C6: a node of another version must not stop the others; a plan that can't be read must."""
    good = member("a", GroupSpec(name="a", partitions=1))
    bad = msgspec.msgpack.encode({"id": 3})
    shared = Shared(members={"a": encode(good), "b": bad}, requests={"move/a/x": b"a", "strange": b""})
    view = view_of(shared)
    assert set(view.members) == {"a"}
    assert view.moves == {}
    assert list(obsolete_requests(view, shared.requests)) == ["move/a/x"]
    with pytest.raises(IncompatibleData, match="the cluster's plan"):
        view_of(Shared(plan=b"\xff"))


def test_the_owner_with_the_highest_epoch_counts() -> None:
    """C6: a deposed owner that has not noticed yet announces a lower one."""
    held = [Holding(group="a", partition=0, epoch=epoch) for epoch in (3, 4)]
    members = {name: encode(member(name, holdings=(each,))) for name, each in zip("ba", held, strict=True)}
    assert view_of(Shared(members=members)).owner_of("a", 0) == "a"
    assert ClusterView().owner_of("a", 0) is None


@pytest.mark.parametrize("name", ["", "a/b", "..", "a|b", "x" * 201, "ü"])
def test_names_fit_every_coordinator(name: str) -> None:
    """They are parts of paths and keys."""
    with pytest.raises(BadArgument):
        GroupSpec(name=name, partitions=1)
    with pytest.raises(BadArgument):
        MemberFacts(id=name, incarnation="1", address="a")
