"""The log on Apache Kafka, through confluent-kafka.

Promises: what `headrace.log.ports` promises, with the brokers' durability (acks from all in-sync replicas,
idempotent producers, read_committed readers); no blocking call on the event loop; nothing printed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config import LogSettings
from headrace.errors import MissingExtra

if TYPE_CHECKING:
    from headrace.log.kafka.log import KafkaLog

__all__ = ["open_log"]


async def open_log(address: str, settings: LogSettings) -> KafkaLog:
    """Open `kafka://host:9092[,host:9092…]`. Raises Unreachable unless a broker answers in time, or Forbidden."""
    try:
        from headrace.log.kafka.log import KafkaLog
    except ModuleNotFoundError as missing:
        if missing.name != "confluent_kafka":
            raise
        raise MissingExtra("confluent_kafka", "kafka") from missing
    return await KafkaLog.open(address, settings.kafka)
