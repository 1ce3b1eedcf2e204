"""The outbox in Django: messages share the fate of the transaction, or the savepoint, they were published in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest
from sqlalchemy import URL, make_url
from tests.outbox.conftest import DATABASES
from tests.outbox.setting import count, empty, rows

from headrace.errors import BadArgument, RecordTooLarge
from headrace.log import open_log
from headrace.model import Record, TopicConfig
from headrace.outbox import EVENT_ID, Inbox, JsonSerializer, Message, OutboxSettings, Relay, schema_version
from headrace.outbox.engines import engine_for
from headrace.outbox.schema import NEWEST
from headrace.outbox.testing import published
from headrace.testing.conformance.log_setting import read_all

django = pytest.importorskip("django", reason="needs the extra django")

from django.conf import settings as django_settings  # noqa: E402 - only where it is installed
from django.core.management import call_command  # noqa: E402
from django.db import connections, models, transaction  # noqa: E402
from django.db.utils import IntegrityError  # noqa: E402

from headrace.outbox.django import DjangoInbox, DjangoOutbox, database_url  # noqa: E402
from headrace.outbox.django.publish import url_of_settings  # noqa: E402

pymysql.install_as_MySQLdb()  # in place of mysqlclient, which has to be compiled
if not django_settings.configured:
    django_settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["headrace.outbox.django"],
        USE_TZ=True,
    )
    django.setup()


class Order(models.Model):
    """What the application of these tests keeps."""

    item = models.CharField(max_length=20, unique=True)

    class Meta:
        app_label = "shop"


def _entry(url: URL) -> dict[str, Any]:
    """Return the entry of DATABASES for an address."""
    if url.get_backend_name() == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.database}
    return {
        "ENGINE": f"django.db.backends.{'mysql' if url.get_backend_name() != 'postgresql' else 'postgresql'}",
        "NAME": url.database,
        "USER": url.username,
        "PASSWORD": url.password or "",
        "HOST": url.host,
        "PORT": url.port,
    }


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """A database that Django shares with a relay; in the file the tables are still to be made."""
    if request.param == "sqlite":
        return make_url(f"sqlite:///{tmp_path / 'django.db'}")
    found: URL = request.getfixturevalue(f"{request.param}_url")
    empty(found)
    return found


@pytest.fixture
def using(url: URL) -> Iterator[str]:
    """The database under a name of Django's, migrated, with the table of orders."""
    name = "shop"
    django_settings.DATABASES[name] = _entry(url)
    connections.settings = connections.configure_settings(django_settings.DATABASES)
    call_command("migrate", "headrace_outbox", database=name, verbosity=0)
    with connections[name].schema_editor() as editor:
        editor.create_model(Order)
    yield name
    with connections[name].schema_editor() as editor:
        editor.delete_model(Order)
    with connections[name].cursor() as cursor:
        cursor.execute("DROP TABLE django_migrations")
    connections[name].close()
    del connections[name]
    del django_settings.DATABASES[name]


@contextmanager
def rolled_back(using: str) -> Iterator[None]:
    """Run the body in a transaction, or in a savepoint of the one that is open, which then fails."""
    with suppress(ZeroDivisionError), transaction.atomic(using=using):
        yield
        raise ZeroDivisionError


async def relayed(url: URL, folder: Path, topic: str) -> list[bytes | None]:
    """Run a relay on the database until nothing waits, and return what it sent."""
    log = await open_log(f"embedded:{folder}")
    await log.admin.create(topic, partitions=1, config=TopicConfig())
    async with Relay(url, log) as relay:
        await relay.drain()
    values = [record.value for record in await read_all(log, topic)]
    await log.close()
    return values


def test_the_relay_sends_what_was_committed_and_nothing_else(using: str, url: URL, tmp_path: Path) -> None:
    """O1, O2: with the rows of the ORM: committed, rolled back, failed, and in savepoints of each kind."""
    orders = DjangoOutbox().producer("orders")

    def order(item: str) -> None:
        Order.objects.using(using).create(item=item)
        orders.publish(item, key=item, using=using)

    with transaction.atomic(using=using):
        order("kept")
        with suppress(IntegrityError), transaction.atomic(using=using):
            order("undone")
            order("kept")
        with transaction.atomic(using=using):
            order("inner")
            with rolled_back(using):
                order("innermost")
        order("last")
    with rolled_back(using):
        order("lost")
    with transaction.atomic(using=using):
        order("forgotten")
        transaction.set_rollback(True, using=using)

    assert list(Order.objects.using(using).order_by("id").values_list("item", flat=True)) == ["kept", "inner", "last"]
    assert asyncio.run(relayed(database_url(using), tmp_path / "log", "orders")) == [b"kept", b"inner", b"last"]


def test_the_row_is_what_other_producers_write(using: str, url: URL) -> None:
    """O3: payload, key, headers, event time and bucket; tombstones and bytes that are no text."""
    settings = OutboxSettings(buckets=4)
    orders = DjangoOutbox(settings).producer("orders", serializer=JsonSerializer())
    with transaction.atomic(using=using):
        orders.publish({"id": 1}, key=b"\x00\xff", headers={"a": b"%s"}, event_time=1_700_000_000_000, using=using)
        orders.publish_list([Message(None, key="%s")] * 1200, using=using)

    engine = engine_for(url)
    first, *others = rows(engine)
    engine.dispose()
    assert (bytes(first["message"]), bytes(first["key"])) == (b'{"id":1}', b"\x00\xff")
    assert (first["event_time"], '"a"' in first["headers"]) == (1_700_000_000_000, True)
    assert {(row["message"], bytes(row["key"])) for row in others} == {(None, b"%s")}
    assert len({row["event_id"] for row in others}) == 1200


def test_a_commit_wakes_relays_and_a_rollback_does_not(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L15: told after the commit, once the rows can be seen."""
    told: list[URL] = []
    monkeypatch.setattr("headrace.outbox.django.publish.announce", told.append)
    orders = DjangoOutbox().producer("orders")
    with rolled_back(using):
        orders.publish(b"1", using=using)
    with transaction.atomic(using=using):
        orders.publish(b"2", using=using)
        assert told == []

    assert told == [database_url(using)]


def test_outside_of_a_transaction_nothing_is_published(using: str, url: URL) -> None:
    """O1: Django commits each statement at once there; and what does not fit raises before anything is stored."""
    orders = DjangoOutbox(OutboxSettings(max_message_bytes=1000)).producer("orders")
    with pytest.raises(BadArgument, match=r"transaction\.atomic"):
        orders.publish(b"1", using=using)
    with transaction.atomic(using=using), pytest.raises(RecordTooLarge):
        orders.publish_list([Message(b"1"), Message(bytes(2000))], using=using)

    engine = engine_for(url)
    assert count(engine) == 0
    engine.dispose()


def test_a_transaction_by_hand_is_one(using: str, url: URL) -> None:
    """O1: with Django's autocommit switched off there is a transaction, but none that tells of its commit."""
    orders = DjangoOutbox().producer("orders")
    transaction.set_autocommit(False, using)
    try:
        orders.publish("undone", using=using)
        transaction.rollback(using)
        orders.publish("kept", using=using)
        transaction.commit(using)
    finally:
        transaction.set_autocommit(True, using)

    engine = engine_for(url)
    assert [row["message"] for row in rows(engine)] == [b"kept"]
    engine.dispose()


def test_the_app_makes_the_tables_that_the_command_makes(using: str, url: URL) -> None:
    """And takes them away; where they are there already it changes nothing."""
    assert schema_version(url) == NEWEST
    call_command("migrate", "headrace_outbox", "zero", database=using, verbosity=0)
    assert schema_version(url) is None
    call_command("migrate", "headrace_outbox", database=using, verbosity=0)
    assert schema_version(url) == NEWEST


def test_djangos_own_tests_have_the_tables_in_memory() -> None:
    """Where no relay can look: what was published is in the table, or recorded by `published`."""
    call_command("migrate", "headrace_outbox", verbosity=0)
    orders = DjangoOutbox().producer("orders", serializer=JsonSerializer())
    with transaction.atomic():
        orders.publish({"id": 1}, key="k")
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT topic, message FROM kafka_messages")
        assert [(topic, bytes(message)) for topic, message in cursor.fetchall()] == [("orders", b'{"id":1}')]
    with published() as sent:
        orders.publish({"id": 2}, key="k")
    sent.assert_sent("orders", {"id": 2}, key="k")
    call_command("migrate", "headrace_outbox", "zero", verbosity=0)
    connections["default"].close()


def test_settings_come_from_djangos(monkeypatch: pytest.MonkeyPatch) -> None:
    """HEADRACE_OUTBOX has the names of the section outbox; a backend past the database is refused."""
    monkeypatch.setattr(django_settings, "HEADRACE_OUTBOX", {"table_prefix": "shop_"}, raising=False)
    assert DjangoOutbox().settings.table_prefix == "shop_"
    with pytest.raises(BadArgument, match=r"headrace\.outbox\.Outbox"):
        DjangoOutbox(OutboxSettings(backend="kafka"))


@pytest.mark.parametrize(
    ("vendor", "entry", "expected"),
    [
        ("sqlite", {"NAME": Path("/a/b c.db")}, "sqlite:////a/b c.db"),
        (
            "postgresql",
            {"NAME": "shop", "USER": "me", "PASSWORD": "p@ss", "HOST": "db", "PORT": "5433", "OPTIONS": {"pool": True}},
            "postgresql+psycopg://me:p%40ss@db:5433/shop",
        ),
        (
            "postgresql",
            {"NAME": "shop", "HOST": "/run/pg", "OPTIONS": {"sslmode": "require"}},
            "postgresql+psycopg:///shop?host=%2Frun%2Fpg&sslmode=require",
        ),
        (
            "mysql",
            {"NAME": "shop", "USER": "me", "HOST": "db", "OPTIONS": {"charset": "utf8mb4", "ssl": {"ca": "/ca.pem"}}},
            "mysql+pymysql://me@db/shop?charset=utf8mb4&ssl_ca=%2Fca.pem",
        ),
    ],
)
def test_a_relay_finds_djangos_database(vendor: str, entry: dict[str, Any], expected: str) -> None:
    """Whatever the entry says: sockets, options that both drivers know, and none of Django's own."""
    assert url_of_settings(vendor, entry) == make_url(expected)


def test_a_database_that_the_outbox_does_not_know_is_named() -> None:
    """Django has others."""
    with pytest.raises(BadArgument, match="oracle"):
        url_of_settings("oracle", {"NAME": "x"})


def _record(event_id: str) -> Record:
    return Record("payments", 0, 7, 1, b"k", b"v", ((EVENT_ID, event_id.encode()),))


def test_an_event_is_handled_once_in_djangos_transaction(using: str, url: URL) -> None:
    """L21: a rolled back transaction, or savepoint, forgets the event with the work; a committed one remembers both."""
    inbox = DjangoInbox("billing")
    with rolled_back(using):
        assert inbox.accept(_record("e-1"), using=using)
        Order.objects.using(using).create(item="lamp")
    with transaction.atomic(using=using):
        with rolled_back(using):
            assert inbox.accept(_record("e-1"), using=using)
        assert inbox.accept(_record("e-1"), using=using)
        Order.objects.using(using).create(item="lamp")
    with transaction.atomic(using=using):
        assert not inbox.accept(_record("e-1"), using=using)
        assert DjangoInbox("shipping").accept(_record("e-1"), using=using)
        assert inbox.accept(_record("100% ü"), using=using)
    engine = engine_for(url)
    with engine.begin() as db:
        assert not Inbox("billing").accept(db, _record("e-1"))  # the table is the one of other consumers
    engine.dispose()
    assert Order.objects.using(using).count() == 1


def test_an_inbox_outside_of_a_transaction_is_refused(using: str) -> None:
    """L21: an event whose handling fails would be known all the same."""
    with pytest.raises(BadArgument, match=r"accept inside of django\.db\.transaction\.atomic"):
        DjangoInbox("billing").accept(_record("e-1"), using=using)
    with transaction.atomic(using=using):
        assert DjangoInbox("billing").accept(_record("e-1"), using=using)


def test_old_events_are_forgotten(using: str) -> None:
    """L21: those that came longer ago than any duplicate could take, of this consumer alone."""
    inbox = DjangoInbox("billing")
    with transaction.atomic(using=using):
        assert inbox.accept(_record("e-1"), using=using)
        assert DjangoInbox("shipping").accept(_record("e-1"), using=using)
    with connections[using].cursor() as cursor:
        cursor.execute("UPDATE kafka_inbox SET received_at = received_at - 7200000")
    assert inbox.forget(older_than_s=7300, using=using) == 0
    assert inbox.forget(older_than_s=3600, using=using) == 1
    with pytest.raises(BadArgument, match="older_than_s"):
        inbox.forget(older_than_s=-1, using=using)
