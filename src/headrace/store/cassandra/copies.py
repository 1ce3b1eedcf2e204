"""How many copies of each row a keyspace keeps. Pure decisions; migrations act on them."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import CassandraStoreSettings

__all__ = ["copies_for", "lonely_dcs"]

_ENOUGH = 3


def copies_for(settings: CassandraStoreSettings, nodes_by_dc: Mapping[str, int]) -> dict[str, int]:
    """Return the copies by data centre of a keyspace that is made now: as many as there are nodes, up to three."""
    if settings.replication:
        return dict(settings.replication)
    if settings.replication_factor is not None:
        return dict.fromkeys(nodes_by_dc, settings.replication_factor)
    return {dc: min(nodes, _ENOUGH) for dc, nodes in nodes_by_dc.items()}


def lonely_dcs(replication: Mapping[str, str], nodes_by_dc: Mapping[str, int]) -> list[str]:
    """Return the data centres where a keyspace keeps a single copy though there are several nodes.

    `replication` is what Cassandra says of a keyspace: its strategy's class and the copies by data centre, or for all.
    """
    for_all = replication.get("replication_factor", "0")
    copies = {dc: replication.get(dc, for_all).partition("/")[0] for dc in nodes_by_dc}
    return sorted(dc for dc, nodes in nodes_by_dc.items() if nodes > 1 and copies[dc] == "1")
