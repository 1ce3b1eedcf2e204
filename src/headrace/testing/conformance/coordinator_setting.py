"""What the coordinator's tests stand on: coordinators of one cluster, members that do what is proposed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest
import pytest_asyncio

from headrace.cluster import ClusterView, Coordinator, GroupSpec, Holding, MemberFacts, open_coordinator
from headrace.config import HeadraceSettings
from headrace.testing.conformance.coordinator_children import cluster_settings

__all__ = ["GROUP", "CoordinatorSetting", "OpenCoordinator", "Outage", "member", "obey", "until"]

GROUP = GroupSpec(name="accounts", partitions=6, replicas=2)
DEADLINE_S = 40.0

OpenCoordinator = Callable[[], Awaitable[Coordinator]]
Outage = Callable[[], AbstractAsyncContextManager[None]]


@pytest.mark.asyncio
class CoordinatorSetting:
    """The fixtures. A backend overrides `address`, and `outage` with a way to make its server unreachable."""

    session_s = 1.5

    @pytest.fixture
    def address(self) -> str:
        """Return where the coordinator is."""
        raise NotImplementedError("override the fixture `address`")

    @pytest.fixture
    def outage(self) -> Outage:
        """Return a context manager that keeps the server from answering."""
        raise NotImplementedError("override the fixture `outage`")

    @pytest.fixture
    def cluster_name(self) -> str:
        """Return the name of a cluster that nobody has used."""
        return f"c-{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    def settings(self, cluster_name: str) -> HeadraceSettings:
        """Return settings with short times."""
        return cluster_settings(cluster_name, self.session_s)

    @pytest_asyncio.fixture
    async def another(self, address: str, settings: HeadraceSettings) -> AsyncIterator[OpenCoordinator]:
        """Open further coordinators of the same cluster, as other nodes would; closed at the end."""
        opened: list[Coordinator] = []

        async def open_another() -> Coordinator:
            opened.append(await open_coordinator(address, settings=settings))
            return opened[-1]

        yield open_another
        for each in opened:
            await each.close()


def member(name: str, *, incarnation: str | None = None, weight: float = 1.0, group: GroupSpec = GROUP) -> MemberFacts:
    """Return the facts of a member that has nothing yet."""
    return MemberFacts(
        id=name,
        incarnation=incarnation or uuid.uuid4().hex[:8],
        address=f"{name}.example:7000",
        weight=weight,
        groups=(group,),
    )


async def until(coordinator: Coordinator, is_as_wanted: Callable[[ClusterView], bool]) -> ClusterView:
    """Return the first view that is as wanted."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            async for view in coordinator.views():
                if is_as_wanted(view):
                    return view
    except TimeoutError:
        raise AssertionError(f"after {DEADLINE_S} s the view is {coordinator.view}") from None
    raise AssertionError("the views ended")


async def obey(coordinator: Coordinator, facts: MemberFacts) -> None:
    """Be a member that has what is proposed at once, owns what it is proposed for, and tells so; until cancelled."""
    async for view in coordinator.views():
        held = []
        for group, placements in view.placements.items():
            for partition, placement in enumerate(placements):
                if facts.id in placement.replicas:
                    is_first = placement.replicas[0] == facts.id
                    epoch = _next_epoch(view, group, partition, facts.id) if is_first else 0
                    held.append(Holding(group=group, partition=partition, offset=1, is_online=True, epoch=epoch))
        coordinator.update(msgspec.structs.replace(facts, holdings=tuple(held)))


def _next_epoch(view: ClusterView, group: str, partition: int, name: str) -> int:
    known = view.owners.get(group, {}).get(partition)
    if known is None:
        return 1
    return known.epoch if known.member == name else known.epoch + 1
