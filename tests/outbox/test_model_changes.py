"""Messages for what happens to models, in the transaction in which it happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, ForeignKey, String, update
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship
from tests.outbox.setting import rows
from tests.outbox.test_publishing import ASYNC_DRIVERS

from headrace.errors import BadArgument
from headrace.outbox import JsonSerializer, ModelChange, Outbox, publish_changes


def producer() -> Any:
    return Outbox().producer("changes", serializer=JsonSerializer())


class Base(DeclarativeBase):
    pass


@publish_changes(producer())
class Parcel(Base):
    __tablename__ = "change_parcels"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(String(20), default="new")
    notes: Mapped[list[ParcelNote]] = relationship(cascade="all, delete-orphan")


class ParcelNote(Base):
    __tablename__ = "change_notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    parcel_id: Mapped[int] = mapped_column(ForeignKey("change_parcels.id"))


def n_or_nothing(change: ModelChange[Any]) -> Any:
    return None if change.kind == "delete" else {"n": change.changed["n"]}


@publish_changes(
    producer(),
    on=("update", "delete"),
    payload=n_or_nothing,
    when=lambda change: change.kind != "update" or change.target.n > 1,
)
class Pair(Base):
    __tablename__ = "change_pairs"
    one: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    two: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    n: Mapped[int] = mapped_column(default=0)


@pytest.fixture
def parcels(engine: Engine) -> Iterator[Engine]:
    """The models' tables beside the outbox."""
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)


def stored(engine: Engine) -> list[tuple[bytes, Any]]:
    return [(row["key"], None if row["message"] is None else json.loads(row["message"])) for row in rows(engine)]


def test_inserts_updates_and_deletes_are_published_with_their_commit(parcels: Engine) -> None:
    """FO1, O1: each with its row, under its primary key, in order; what is rolled back is not."""
    with Session(parcels) as session:
        parcel = Parcel()
        session.add(parcel)
        session.commit()  # the database gives the id in the commit's own flush
        id_ = parcel.id
        parcel.state = "sent"
        session.commit()
        parcel.state = "lost"
        session.flush()
        session.rollback()
        session.delete(parcel)
        session.commit()

    key = str(id_).encode()
    assert stored(parcels) == [
        (key, {"change": "insert", "row": {"id": id_, "state": "new"}, "changed": []}),
        (key, {"change": "update", "row": {"id": id_, "state": "sent"}, "changed": ["state"]}),
        (key, {"change": "delete", "row": {"id": id_, "state": "sent"}, "changed": []}),
    ]


def test_what_does_not_change_a_column_is_no_change(parcels: Engine) -> None:
    """An equal value, or a relationship, publishes nothing; nor does SQL past the session's unit of work."""
    with Session(parcels) as session:
        parcel = Parcel(id=1)
        session.add(parcel)
        session.commit()
        parcel.state = "new"
        parcel.notes.append(ParcelNote())
        session.commit()
        session.execute(update(Parcel).values(state="x"))
        session.commit()

    assert [change["change"] for _, change in stored(parcels)] == ["insert"]


def test_kinds_keys_payloads_and_conditions_are_the_applications(parcels: Engine) -> None:
    """A tombstone for what is deleted, old and new values for what changed, and no message for the rest."""

    with Session(parcels) as session:
        pair = Pair(one=1, two=2)
        session.add(pair)
        session.commit()
        for n in (1, 2):
            pair.n = n
            session.commit()
        session.delete(pair)
        session.commit()

    assert stored(parcels) == [(b"[1,2]", {"n": [1, 2]}), (b"[1,2]", None)]


async def test_async_sessions_publish_changes_as_they_stand(parcels: Engine, database: URL) -> None:
    """O8: nothing else is needed there."""
    name = "mariadb" if database.get_backend_name() in ("mysql", "mariadb") else database.get_backend_name()
    made = create_async_engine(database.set(drivername=ASYNC_DRIVERS[name]))
    async with AsyncSession(made) as session:
        session.add(Parcel(id=5))
        await session.commit()
    await made.dispose()

    assert [key for key, _ in stored(parcels)] == [b"5"]


def test_only_models_have_changes() -> None:
    """A class that is not mapped, and a kind that there is not, are refused at once."""
    with pytest.raises(BadArgument, match="mapped class"):
        publish_changes(producer())(dict)
    with pytest.raises(BadArgument, match="insert, update, delete"):
        publish_changes(producer(), on=("upsert",))  # type: ignore[arg-type]
