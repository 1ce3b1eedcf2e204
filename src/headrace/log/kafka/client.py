"""Kafka clients: addresses, librdkafka's settings, the first connection, the driver's log lines, threads for its calls.

Every setting that is not a default says why.

A broker that is away makes every client report every attempt: hundreds of lines a minute that say less than the error
which follows. Those lines are logged at DEBUG; when the outage lasts, one warning reports it. A request to brokers that
refuse a login waits for its whole time-out and then looks like a network fault: the reason comes from librdkafka's
callback, with the error of each connection.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeAlias, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from headrace.config import KafkaLogSettings, redact
from headrace.errors import BadArgument, Closed, Forbidden, Unreachable
from headrace.log.kafka.faults import error_in, whole

__all__ = [
    "DRIVER_LOG",
    "LOGGER",
    "WHOLE_BATCH_BYTES",
    "ClientConfigs",
    "ConnectionBreaks",
    "ConnectionErrors",
    "DriverLog",
    "Threads",
    "admin_client",
    "servers_of",
    "wait_for_broker",
]

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})")


def servers_of(address: str) -> str:
    """Return the bootstrap servers in `kafka://host:9092,host2:9092`."""
    scheme, found, rest = address.partition("://")
    servers = rest.rstrip("/").split(",")
    if scheme != "kafka" or not found or not all(_SERVER.fullmatch(server) for server in servers):
        raise BadArgument("address", redact("address", address), "a Kafka address reads kafka://host:port[,host:port…]")
    return ",".join(servers)


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
# An append is tried on up to this number of connections before its time is up.
_ATTEMPTS = 3
# The least that consumers accept: a second more than the longest wait at the end of a partition.
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
                "log_level": _INFO,  # broken connections are reported at this level, for ConnectionBreaks
                "log.connection.close": True,
            }
        )

    def reader(self, *, follow: bool) -> Config:
        """One partition at a time, from a given offset, outside of any group."""
        return self._client(
            {
                **_CONSUMING,
                "group.id": "headrace-reader",  # the client demands one; it is never joined
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
        """Return time-outs for deliveries: a silent broker is given up long before the records that wait for it."""
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
    """Return time-outs for one broker's silence, whatever the client waits for."""
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

LOGGER = logging.getLogger("headrace.log.kafka")
# Without a handler Python would print warnings of programs that configure no logging to stderr.
LOGGER.addHandler(logging.NullHandler())

_TROUBLE = frozenset({"FAIL", "REQTMOUT", "ERROR"})
_LASTING_S = 10.0
_WARN_EVERY_S = 60.0
# librdkafka itself repeats an identical line every 30 s only: a longer silence is the end of an outage.
_OVER_S = 45.0
_REPEAT_S = 30.0
_KINDS_KEPT = 1_000
_NUMBERS = re.compile(r"[0-9]+")


class DriverLog:
    """A stand-in for a Logger that librdkafka's clients call from any thread."""

    def __init__(self, logger: logging.Logger = LOGGER, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._now_s = now_s
        self._lock = threading.Lock()
        self._began_s = self._last_s = self._warned_s = float("-inf")
        self._count = 0
        self._told: dict[tuple[str, str], float] = {}

    def log(self, level: int, form: str, facility: str, client: str, text: str) -> None:
        """Take one line."""
        if facility in _TROUBLE:
            self._logger.debug(form, facility, client, text)
            self._hear_trouble(text)
        elif self._is_repeated(facility, text):
            self._logger.debug(form, facility, client, text)
        else:
            self._logger.log(level, form, facility, client, text)

    def _hear_trouble(self, text: str) -> None:
        now_s = self._now_s()
        with self._lock:
            if now_s - self._last_s > _OVER_S:
                self._began_s, self._count = now_s, 0
            self._last_s = now_s
            self._count += 1
            lasted_s, count = now_s - self._began_s, self._count
            if lasted_s < _LASTING_S or now_s - self._warned_s < _WARN_EVERY_S:
                return
            self._warned_s = now_s
        warn_aloud(
            self._logger,
            "connections to Kafka brokers have been failing for %.0f s (%d times); the last one: %s",
            lasted_s,
            count,
            text,
        )

    def _is_repeated(self, facility: str, text: str) -> bool:
        kind, now_s = (facility, _NUMBERS.sub("#", text)), self._now_s()
        with self._lock:
            if len(self._told) >= _KINDS_KEPT:
                self._told.clear()
            if now_s - self._told.get(kind, float("-inf")) < _REPEAT_S:
                return True
            self._told[kind] = now_s
            return False


def warn_aloud(logger: logging.Logger, message: str, *args: object) -> None:
    """Log a warning; on stderr (logging.lastResort) if the program has not configured logging."""
    logger.warning(message, *args)
    if logging.lastResort is not None and not _is_heard(logger):
        record = logger.makeRecord(logger.name, logging.WARNING, __file__, 0, message, args, None)
        logging.lastResort.handle(record)


def _is_heard(logger: logging.Logger) -> bool:
    """Return True if the program configured a handler for the logger, even one that drops its lines."""
    above: logging.Logger | None = logger
    while above is not None:
        if above.disabled or any(not isinstance(handler, logging.NullHandler) for handler in above.handlers):
            return True
        above = above.parent if above.propagate else None
    return False


DRIVER_LOG = DriverLog()

# Each look is short, and the first one shortest, so that refusals and failed connections are noticed soon.
_FIRST_LOOK_S = 0.5
_LOOK_S = 1.0
_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - librdkafka's local codes are spelt like this
        KafkaError._SSL,  # noqa: SLF001
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)
# This error says only that no connection is left; the others say why.
_NO_REASON = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001


class ConnectionErrors:
    """The last refusal and the last other error of one client's connections."""

    def __init__(self) -> None:
        self.refusal: str | None = None
        self.trouble: str | None = None

    def note(self, error: Any) -> None:  # noqa: ANN401 - the driver has no types
        """Keep an error; librdkafka calls this from `poll`."""
        if error.code() in _REFUSED:
            self.refusal = error.str()
        elif error.code() != _NO_REASON:
            self.trouble = error.str()


def admin_client(config: Mapping[str, Any], errors: ConnectionErrors, *, given: Sequence[str]) -> AdminClient:
    """Return the client. Raises BadArgument, which shows their names only, if it refuses the given properties."""
    try:
        return AdminClient({**config, "error_cb": errors.note}, logger=DRIVER_LOG)
    except KafkaException as failure:
        raise BadArgument("log.kafka.client", sorted(given), error_in(failure).str()) from failure


def wait_for_broker(client: Any, errors: ConnectionErrors, address: str, *, timeout_s: float, connect_s: float) -> None:  # noqa: ANN401
    """Wait until a broker answers; blocks.

    Raises Forbidden as soon as a broker refuses us, and Unreachable when the time is up: after `connect_s` if
    connections fail, after `timeout_s` if a broker is there and does not answer.
    """
    began_s = time.monotonic()
    look_s = _FIRST_LOOK_S
    while True:
        allowed_s = connect_s if errors.trouble is not None else timeout_s
        left_s = began_s + min(allowed_s, timeout_s) - time.monotonic()
        try:
            client.list_topics(timeout=max(0.01, min(look_s, left_s)))
            return
        except KafkaException as failure:
            client.poll(0)  # librdkafka calls `note` from here
            if errors.refusal is not None:
                raise Forbidden(f"connect to {address}", errors.refusal) from failure
            if left_s <= look_s:
                raise Unreachable(address, errors.trouble or error_in(failure).str()) from failure
        look_s = _LOOK_S


P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """A few threads that run calls; with `count` 1 the calls run one after the other, in order."""

    def __init__(self, name: str, *, count: int) -> None:
        self._executor = ThreadPoolExecutor(max_workers=count, thread_name_prefix=f"headrace-kafka-{name}")
        self._is_ended = False
        self._running: set[asyncio.Future[Any]] = set()

    def start(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Start a call; the caller need not await the returned future. Raises Closed after `join`."""
        if self._is_ended:
            raise Closed("the Kafka log")
        call = functools.partial(whole, function, *args, **kwargs)
        running = asyncio.get_running_loop().run_in_executor(self._executor, call)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return running

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call to its end. Cancelling stops the wait, not the call."""
        return await asyncio.shield(self.start(function, *args, **kwargs))

    async def join(self) -> None:
        """Refuse further calls, wait for those that run, and end the threads."""
        self._is_ended = True
        self._executor.shutdown(wait=False)
        if self._running:
            await asyncio.wait(self._running)
        self._executor.shutdown(wait=True)


# librdkafka reports an error that is identical to the one before at most once in 30 s.
_TOLD_ONCE_IN_S = 35.0
_BROKEN = frozenset({"FAIL", "REQTMOUT"})
# A connection that never came up has carried no request of ours.
_NEVER_UP = re.compile(r" in state (?!UP|REAUTH)[A-Z_]+")


class ConnectionBreaks:
    """The time at which a connection last broke. It is the client's logger, because only log lines report every break.

    A request that was on its way when its connection broke may still reach the broker, at any later time, after
    librdkafka has sent it again and has had its answer.
    """

    def __init__(self) -> None:
        self._heard_s = float("-inf")

    def log(self, level: int, form: str, facility: str, client: str, text: str) -> None:
        """Take a line of librdkafka, which comes from inside of `poll` and `flush`, and pass it on."""
        if facility in _BROKEN and not _NEVER_UP.search(text):
            self._heard_s = time.monotonic()
        DRIVER_LOG.log(level, form, facility, client, text)

    def since(self, moment_s: float) -> bool:
        """Return True if a connection may have broken since then; poll first, so that queued lines have arrived."""
        return self._heard_s >= moment_s - _TOLD_ONCE_IN_S
