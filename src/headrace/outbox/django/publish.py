"""Producers that write with Django's connection, and the addresses of Django's databases for relays and the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from django.conf import settings as django_settings
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from sqlalchemy import URL

from headrace.config import OutboxSettings
from headrace.errors import BadArgument
from headrace.outbox.dialects import dialect_of
from headrace.outbox.insert import count_inserted, statements
from headrace.outbox.messages import EncodedMessage, GivenHeaders, Message
from headrace.outbox.payloads import RowEncoder
from headrace.outbox.ports import Serializer
from headrace.outbox.producers import record
from headrace.outbox.tables import checked_prefix, renamed
from headrace.outbox.wake import announce

__all__ = ["DjangoOutbox", "DjangoProducer", "database_url", "need_transaction", "outbox_settings", "url_of_settings"]


def outbox_settings() -> OutboxSettings:
    """Return Django's setting HEADRACE_OUTBOX, a dict with the names of the section `outbox`."""
    return OutboxSettings(**getattr(django_settings, "HEADRACE_OUTBOX", {}))


class DjangoOutbox:
    """Makes producers. Without settings it takes those of HEADRACE_OUTBOX."""

    def __init__(self, settings: OutboxSettings | None = None) -> None:
        self.settings = settings or outbox_settings()
        if self.settings.backend != "db":
            rule = "with Django messages go through the database; use headrace.outbox.Outbox for the others"
            raise BadArgument("backend", self.settings.backend, rule)

    def producer(
        self, topic: str, *, serializer: Serializer | None = None, key_serializer: Serializer | None = None
    ) -> DjangoProducer:
        """Return a producer. Without a serializer payloads are bytes, text or None."""
        encoding = RowEncoder(topic, self.settings, serializer=serializer, key_serializer=key_serializer)
        return DjangoProducer(encoding, table_prefix=self.settings.table_prefix)


class DjangoProducer:
    """Publishes to one topic, in the transaction that is open on a database of Django's.

    The row is inserted at once. So publish after the changes whose order matters: of two transactions that change one
    row, the one that got its lock first then also publishes first.
    """

    def __init__(self, encoding: RowEncoder, *, table_prefix: str) -> None:
        self._encoding = encoding
        self._table_prefix = checked_prefix(table_prefix)

    def publish(
        self,
        payload: Any,  # noqa: ANN401 - the serializer's business
        *,
        key: Any = None,  # noqa: ANN401
        partition_key: Any = None,  # noqa: ANN401
        headers: GivenHeaders = (),
        event_time: datetime | int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> None:
        """Publish one message. Raises BadArgument outside of a transaction."""
        self.publish_list([Message(payload, key, partition_key, headers, event_time)], using=using)

    def publish_list(self, messages: Sequence[Message], *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Publish messages, in order: all are encoded before the first is stored."""
        given, encoded = self._encoding.encode_given(messages)
        if not encoded or record(given, encoded):
            return
        self._insert(encoded, using)
        if connections[using].in_atomic_block:  # one that is committed by hand takes no hook; the relay polls
            # Not at a rollback, nor when the savepoint around is rolled back.
            transaction.on_commit(partial(announce, database_url(using)), using=using, robust=True)

    def _insert(self, messages: Sequence[EncodedMessage], using: str) -> None:
        connection = connections[using]
        need_transaction(connection, using, "publish")
        with connection.cursor() as cursor:
            for sql, values in statements(dialect_of(connection.vendor), "format", messages):
                cursor.execute(renamed(sql, self._table_prefix), values)
        count_inserted(messages)


def need_transaction(connection: Any, using: str, doing: str) -> None:  # noqa: ANN401 - Django's, which has no types
    """Refuse a connection that commits each statement at once: what was done would stay whatever follows."""
    if not connection.in_atomic_block and connection.get_autocommit():
        rule = f"it commits each statement at once; {doing} inside of django.db.transaction.atomic()"
        raise BadArgument("using", using, rule)


_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "sqlite": "sqlite"}
# What the drivers of both sides call alike. Others are Django's own, or of the driver that Django uses.
_OPTIONS = {
    "postgresql": {
        *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword"),
        *("options", "service", "passfile", "connect_timeout", "application_name", "target_session_attrs"),
    },
    "mysql": {"charset", "unix_socket", "read_default_file", "read_default_group", "connect_timeout"},
    "sqlite": {"timeout"},
}


def database_url(using: str = DEFAULT_DB_ALIAS) -> URL:
    """Return the address of one of Django's databases: `Relay(database_url(), log)`. Raises BadArgument."""
    connection = connections[using]
    return url_of_settings(connection.vendor, connection.settings_dict)


def url_of_settings(vendor: str, settings: Mapping[str, Any]) -> URL:
    """Return the address that an entry of DATABASES means."""
    if vendor not in _DRIVERS:
        raise BadArgument("using", vendor, f"the outbox knows {', '.join(_DRIVERS)}")
    if vendor == "sqlite":
        return URL.create("sqlite", database=str(settings["NAME"]), query=_query(vendor, settings))
    host, query = str(settings.get("HOST") or ""), _query(vendor, settings)
    if host.startswith("/"):  # the folder, or the file, of a socket
        query["host" if vendor == "postgresql" else "unix_socket"] = host
        host = ""
    return URL.create(
        _DRIVERS[vendor],
        username=settings.get("USER") or None,
        password=settings.get("PASSWORD") or None,
        host=host or None,
        port=int(settings["PORT"]) if settings.get("PORT") else None,
        database=str(settings.get("NAME") or "") or None,
        query=query,
    )


def _query(vendor: str, settings: Mapping[str, Any]) -> dict[str, str]:
    options: Mapping[str, Any] = settings.get("OPTIONS") or {}
    found = {name: str(value) for name, value in options.items() if name in _OPTIONS[vendor]}
    if vendor == "mysql" and isinstance(options.get("ssl"), Mapping):
        found |= {f"ssl_{name}": str(value) for name, value in options["ssl"].items()}
    return found
