"""How the address of a Kafka log reads."""

from __future__ import annotations

import re

from headrace.config import redact
from headrace.errors import BadArgument

__all__ = ["servers_of"]

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})")


def servers_of(address: str) -> str:
    """Return the bootstrap servers in `kafka://host:9092,host2:9092`."""
    scheme, found, rest = address.partition("://")
    servers = rest.rstrip("/").split(",")
    if scheme != "kafka" or not found or not all(_SERVER.fullmatch(server) for server in servers):
        raise BadArgument("address", redact("address", address), "a Kafka address reads kafka://host:port[,host:port…]")
    return ",".join(servers)
