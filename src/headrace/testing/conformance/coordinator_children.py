"""What the children of the coordinator's tests do, each in a process of its own. They report by printing lines."""

from __future__ import annotations

import asyncio

from headrace.cluster import GroupSpec, MemberFacts, open_coordinator
from headrace.config import ClusterSettings, HeadraceSettings
from headrace.runtime import process_name

__all__ = ["cluster_settings", "stay_a_member", "stay_a_named_member"]


def cluster_settings(cluster: str, session_s: float) -> HeadraceSettings:
    """Return settings in which nothing is kept for members that left."""
    return HeadraceSettings(cluster=ClusterSettings(name=cluster, session_s=session_s, absence_s=0.05))


def stay_a_member(address: str, cluster: str, session_s: float, name: str, *, is_named: bool = False) -> None:
    """Join, print a line, and stay until killed; print with each view who leads.

    One that `is_named` tells which process it is, as nodes do.
    """

    async def run() -> None:
        coordinator = await open_coordinator(address, settings=cluster_settings(cluster, session_s))
        group = GroupSpec(name="accounts", partitions=6, replicas=2)
        facts = MemberFacts(
            id=name,
            incarnation="child",
            address=f"{name}:1",
            groups=(group,),
            process=process_name() if is_named else "",
        )
        await coordinator.join(facts)
        print("joined", flush=True)
        async for view in coordinator.views():
            print(f"led by {view.leader}", flush=True)

    asyncio.run(run())


def stay_a_named_member(address: str, cluster: str, session_s: float, name: str) -> None:
    """Be a member that tells which process it is."""
    stay_a_member(address, cluster, session_s, name, is_named=True)
