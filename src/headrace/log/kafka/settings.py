"""What can be set about the Kafka backend, and how its address reads."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from headrace.config import KafkaLogSettings
from headrace.errors import BadArgument

__all__ = ["KafkaSettings", "servers_of"]

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})")


class KafkaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines, batching, and what every client is given besides (SASL, TLS, …).

    `client` holds librdkafka properties, for example {"security.protocol": "SASL_SSL", …}; what this backend
    depends on (acks, isolation, partitioner) is set after them and wins.
    `metadata_max_age_s` is how long a topic's description is trusted before it is asked for again.
    `idle_consumers` is how many consumers of a kind are kept open between two reads.
    """

    client: Mapping[str, str] = {}
    request_timeout_s: float = 30.0
    delivery_timeout_s: float = 30.0
    linger_ms: float = 1.0
    metadata_max_age_s: float = 60.0
    queue_records: int = 100_000
    idle_consumers: int = 8

    @classmethod
    def of(cls, section: KafkaLogSettings) -> KafkaSettings:
        """Return what the section [log.kafka] says."""
        return cls(
            client=section.client,
            request_timeout_s=section.request_timeout_s,
            delivery_timeout_s=section.request_timeout_s,
            linger_ms=section.linger_ms,
        )

    def __post_init__(self) -> None:
        for name in ("request_timeout_s", "delivery_timeout_s", "metadata_max_age_s", "queue_records"):
            value = getattr(self, name)
            if value <= 0:
                raise BadArgument(name, value, "it must be above 0")
        for name in ("linger_ms", "idle_consumers"):
            value = getattr(self, name)
            if value < 0:
                raise BadArgument(name, value, "it must not be negative")


def servers_of(address: str) -> str:
    """Return the bootstrap servers in `kafka://host:9092,host2:9092`."""
    scheme, found, rest = address.partition("://")
    servers = rest.rstrip("/").split(",")
    if scheme != "kafka" or not found or not all(_SERVER.fullmatch(server) for server in servers):
        raise BadArgument("address", address, "a Kafka address reads kafka://host:port[,host:port…]")
    return ",".join(servers)
