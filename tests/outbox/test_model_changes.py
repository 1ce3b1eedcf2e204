"""Messages for what happens to models, in the transaction in which it happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, ForeignKey, String, select, update
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


def old_and_new(change: ModelChange[Any]) -> Any:
    return {"change": change.kind, "row": change.row, "changed": dict(change.changed)}


@publish_changes(producer(), payload=old_and_new)
class Vehicle(Base):
    __tablename__ = "change_vehicles"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(String(10))
    km: Mapped[int] = mapped_column(default=0)
    manual: Mapped[str | None] = mapped_column(String(20), deferred=True)
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "vehicle"}  # noqa: RUF012 - SQLAlchemy's


class Truck(Vehicle):
    __tablename__ = "change_trucks"
    id: Mapped[int] = mapped_column(ForeignKey("change_vehicles.id"), primary_key=True)
    load: Mapped[int] = mapped_column(default=0)
    __mapper_args__ = {"polymorphic_identity": "truck"}  # noqa: RUF012 - SQLAlchemy's


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


def test_what_the_database_computes_is_a_change(parcels: Engine) -> None:
    """An attribute that is set to an SQL expression publishes its old value and what came of it, unless it is equal."""
    with Session(parcels) as session:
        vehicle = Vehicle(id=1, km=5)
        session.add(vehicle)
        session.commit()
        vehicle.km = Vehicle.km + 2
        session.commit()
        vehicle.km = Vehicle.km * 1
        session.commit()
        vehicle.manual = "m"
        session.commit()

    assert [change["changed"] for _, change in stored(parcels)] == [{}, {"km": [5, 7]}, {"manual": [None, "m"]}]


@pytest.mark.parametrize("how", ["expired", "loaded anew", "by its base class", "in one transaction"])
def test_a_deleted_row_is_published_whole(parcels: Engine, how: str) -> None:
    """What was not loaded of it (deferred, expired, a subclass's own) is read before it is gone."""
    with Session(parcels) as session:
        truck = Truck(id=1, km=3, load=4)
        session.add(truck)
        session.flush() if how == "in one transaction" else session.commit()
        if how in ("loaded anew", "by its base class"):
            session.expunge_all()
            truck = session.scalars(select(Truck if how == "loaded anew" else Vehicle)).one()  # type: ignore[assignment]
        session.delete(truck)
        session.commit()

    row = {"id": 1, "kind": "truck", "km": 3, "manual": None, "load": 4}
    assert [(change["change"], change["row"]) for _, change in stored(parcels)] == [("insert", row), ("delete", row)]


def test_columns_of_subclasses_have_their_old_values_too(parcels: Engine) -> None:
    """A subclass's own column that is set while it is expired has its old value; an equal one is no change."""
    with Session(parcels) as session:
        truck = Truck(id=1, load=4)
        session.add(truck)
        session.commit()
        truck.load = 4
        session.commit()
        truck.load = 9
        session.commit()

    assert [change["changed"] for _, change in stored(parcels)] == [{}, {"load": [4, 9]}]


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
