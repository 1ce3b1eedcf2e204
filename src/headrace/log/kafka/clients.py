"""The librdkafka configuration of each kind of client; every line that is not a default says why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from headrace.config import KafkaLogSettings

__all__ = ["WHOLE_BATCH_BYTES", "ClientConfigs"]

Config: TypeAlias = dict[str, Any]

WHOLE_BATCH_BYTES = 1_000_000
_LARGEST_RECORD_BYTES = 1_000_000_000
# How long librdkafka takes "unknown topic" for a topic that is still being made. Its default of 30 s would
# turn an append to a topic deleted a moment ago into a time-out; what we use has been described before.
_PROPAGATION_MS = 3_000
# Waiting at the end of a partition: the broker answers at once when something arrives, so this only bounds
# how soon the end is reported (bounded reads), and how soon a re-used consumer is free for its next partition.
_BOUNDED_WAIT_MS = 1
_FOLLOW_WAIT_MS = 100
_INFO = 6  # of syslog
# An append is tried on so many connections, if need be, before its time is up.
_ATTEMPTS = 3
# Consumers take no less: a second above the longest wait at the end of a partition.
_LEAST_SILENCE_MS = 1_100


class ClientConfigs:
    """Makes configurations for one cluster."""

    def __init__(self, servers: str, settings: KafkaLogSettings) -> None:
        self._servers = servers
        self._settings = settings

    @property
    def given(self) -> list[str]:
        """The names of the properties that come from the settings."""
        return list(self._settings.client)

    def admin(self) -> Config:
        """Topics, offsets, groups."""
        return self._client({})

    def producer(self, *, batch_bytes: int) -> Config:
        """Appends outside of transactions."""
        return self._client({**self._producing(batch_bytes), **self._delivering(self._settings.delivery_timeout_s)})

    def transactional(self, transactional_id: str, *, timeout_s: float, batch_bytes: int) -> Config:
        """Appends inside of transactions. No record may outlive its transaction."""
        timeout_ms = max(1000, int(timeout_s * 1000))
        return self._client(
            {
                **self._producing(batch_bytes),
                **self._delivering(min(self._settings.delivery_timeout_s, timeout_ms / 1000)),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "log_level": _INFO,  # broken connections are told there, and Breaks must hear of them
                "log.connection.close": True,
            }
        )

    def reader(self, *, follow: bool) -> Config:
        """One partition at a time, from a given offset, outside of any group."""
        return self._client(
            {
                **_CONSUMING,
                "group.id": "headrace-reader",  # demanded by the client, never joined
                "enable.partition.eof": True,  # carries the position past what readers never see
                "fetch.wait.max.ms": _FOLLOW_WAIT_MS if follow else _BOUNDED_WAIT_MS,
            }
        )

    def member(self, group: str, member_id: str, *, session_timeout_s: float) -> Config:
        """A member of a group, rebalanced cooperatively: what stays with a member is never taken away."""
        session_ms = int(session_timeout_s * 1000)
        return self._client(
            {
                **_CONSUMING,
                "client.id": member_id,
                "group.id": group,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": max(1, min(3000, session_ms // 3)),
                "max.poll.interval.ms": max(300_000, session_ms),
                "fetch.wait.max.ms": _FOLLOW_WAIT_MS,
            }
        )

    def _producing(self, batch_bytes: int) -> Config:
        return {
            "enable.idempotence": True,
            "acks": "all",
            "allow.auto.create.topics": False,
            "batch.size": batch_bytes,
            "message.max.bytes": _LARGEST_RECORD_BYTES,  # each topic's own limit is checked before
            "linger.ms": self._settings.linger_ms,
            "queue.buffering.max.messages": self._settings.queue_records,
            "topic.metadata.propagation.max.ms": _PROPAGATION_MS,
        }

    def _delivering(self, timeout_s: float) -> Config:
        """Bound deliveries. A broker that falls silent must be given up long before the records that wait for it."""
        attempt_s = min(self._attempt_s, timeout_s / _ATTEMPTS)
        return {"message.timeout.ms": max(1, int(timeout_s * 1000)), **_silence(attempt_s)}

    @property
    def _attempt_s(self) -> float:
        return min(self._settings.attempt_timeout_s, self._settings.request_timeout_s)

    def _client(self, own: Mapping[str, Any]) -> Config:
        return {
            **_silence(self._attempt_s),
            "reconnect.backoff.max.ms": 1000,  # the default of 10 s would keep readers away from a broker that is back
            **self._settings.client,
            "bootstrap.servers": self._servers,
            **own,
        }


def _silence(attempt_s: float) -> Config:
    """Bound how long one broker's silence is borne, whatever the client waits for."""
    attempt_ms = max(_LEAST_SILENCE_MS, int(attempt_s * 1000))
    return {
        "socket.timeout.ms": attempt_ms,
        "socket.connection.setup.timeout.ms": attempt_ms,
        "api.version.request.timeout.ms": attempt_ms,
    }


_CONSUMING: Config = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",  # a lost tail is an error, never a silent jump
    "fetch.min.bytes": 1,
    "fetch.queue.backoff.ms": 10,  # the default of 1 s stalls a reader each time it has drained a full queue
    "fetch.error.backoff.ms": 50,
    "queued.max.messages.kbytes": 16_384,
    "allow.auto.create.topics": False,
    "topic.metadata.propagation.max.ms": _PROPAGATION_MS,
}
