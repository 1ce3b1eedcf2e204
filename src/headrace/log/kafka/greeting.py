"""The first contact with the brokers: do they answer, and do they let us in?

A request to brokers that refuse a login waits for its whole time and then says that nobody is there. The reason comes
another way: librdkafka calls back with what each connection ran into.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from headrace.errors import BadArgument, Forbidden, Unreachable
from headrace.log.kafka.driver_log import DRIVER_LOG
from headrace.log.kafka.faults import error_in

__all__ = ["Complaints", "admin_client", "greet"]

# Looks are short, so that refusals and failed connections are heard soon, the first one most of all.
_FIRST_LOOK_S = 0.5
_LOOK_S = 1.0
_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - librdkafka's local codes are spelt like this
        KafkaError._SSL,  # noqa: SLF001
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)
# It only says that no connection is left; the others say why.
_NO_REASON = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001


class Complaints:
    """What connections of one client ran into, the last of each kind."""

    def __init__(self) -> None:
        self.refusal: str | None = None
        self.trouble: str | None = None

    def hear(self, error: Any) -> None:  # noqa: ANN401 - the driver has no types
        """Take note; librdkafka calls it from `poll`."""
        if error.code() in _REFUSED:
            self.refusal = error.str()
        elif error.code() != _NO_REASON:
            self.trouble = error.str()


def admin_client(config: Mapping[str, Any], complaints: Complaints, *, given: Sequence[str]) -> AdminClient:
    """Return the client. Raises BadArgument for properties it does not take; of those given only names are told."""
    try:
        return AdminClient({**config, "error_cb": complaints.hear}, logger=DRIVER_LOG)
    except KafkaException as failure:
        raise BadArgument("log.kafka.client", sorted(given), error_in(failure).str()) from failure


def greet(client: Any, complaints: Complaints, address: str, *, timeout_s: float, connect_s: float) -> None:  # noqa: ANN401
    """Wait for an answer; blocks.

    Raises Forbidden as soon as we are refused, and Unreachable when the time is up: `connect_s` where connections
    fail, because nobody is there, `timeout_s` where somebody is there who takes long to answer.
    """
    began_s = time.monotonic()
    look_s = _FIRST_LOOK_S
    while True:
        allowed_s = connect_s if complaints.trouble is not None else timeout_s
        left_s = began_s + min(allowed_s, timeout_s) - time.monotonic()
        try:
            client.list_topics(timeout=max(0.01, min(look_s, left_s)))
            return
        except KafkaException as failure:
            client.poll(0)  # lets the complaints out
            if complaints.refusal is not None:
                raise Forbidden(f"connect to {address}", complaints.refusal) from failure
            if left_s <= look_s:
                raise Unreachable(address, complaints.trouble or error_in(failure).str()) from failure
        look_s = _LOOK_S
