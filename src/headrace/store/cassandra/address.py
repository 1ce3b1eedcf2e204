"""Addresses of Cassandra keyspaces."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.config import redact
from headrace.errors import BadArgument

__all__ = ["ClusterAddress", "parse"]

DEFAULT_PORT = 9042

_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_KEYSPACE = re.compile(r"[a-z][a-z0-9_]{0,47}")


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where a keyspace is. `contacts` are the nodes to connect to first; the driver learns the others from them."""

    text: str
    contacts: tuple[tuple[str, int], ...]
    keyspace: str


def parse(address: str) -> ClusterAddress:
    """Read `cassandra://host[:port][,host2]/keyspace`."""
    scheme, found, rest = address.partition("://")
    hosts, _, keyspace = rest.partition("/")
    matches = [_HOST.fullmatch(host) for host in hosts.split(",")]
    if scheme != "cassandra" or not found or not all(matches):
        raise BadArgument(
            "address", redact("address", address), "a Cassandra address reads cassandra://host[:port][,host2]/keyspace"
        )
    if not _KEYSPACE.fullmatch(keyspace):
        rule = "it must end with a keyspace: a small letter, then up to 47 small letters, digits and '_'"
        raise BadArgument("address", redact("address", address), rule)
    contacts = tuple((match[1].strip("[]"), int(match[2] or DEFAULT_PORT)) for match in matches if match)
    return ClusterAddress(address, contacts, keyspace)
