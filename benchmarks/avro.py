"""avro: records of ten fields to framed Avro and back, as classes, beside fastavro on plain dicts."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, get_type_hints

import fastavro
import msgspec
import pydantic

from benchmarks.harness import Bench, Contest, Measure, Readings, Stage, at_least, stopwatch
from headrace.serde import Registry, Serde, open_registry, schema_of

COUNT = 40_000
SLICES = 50
AGAINST = "fastavro's schemaless functions on a plain dict"


@dataclasses.dataclass
class Order:
    """Ten fields of the kinds that records have."""

    id: str
    customer: str
    count: int
    price: float
    is_paid: bool
    note: str | None
    tags: list[str]
    placed: dt.datetime
    weight_g: int
    currency: str


FIELDS = get_type_hints(Order)
OrderStruct = msgspec.defstruct("Order", list(FIELDS.items()))
MODEL_FIELDS: dict[str, Any] = {name: (kind, ...) for name, kind in FIELDS.items()}
OrderModel: Any = pydantic.create_model("Order", **MODEL_FIELDS)
KINDS: dict[str, Any] = {"dataclass": Order, "struct": OrderStruct, "model": OrderModel}


def values(nr: int) -> dict[str, Any]:
    """Return the fields of one order."""
    placed = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=nr)
    named = {
        "id": f"order-{nr:08d}",
        "customer": f"customer-{nr % 1000}",
        "currency": "EUR",
        "note": "leave at the door",
    }
    numbers = {"count": nr % 7, "price": nr * 0.01, "is_paid": nr % 2 == 0, "weight_g": nr % 5000}
    return {**named, **numbers, "tags": ["new", "gift"], "placed": placed}


RoundTrip: TypeAlias = Callable[[Any], Any]


def fastavro_round_trip() -> RoundTrip:
    """Return the bound."""
    schema = fastavro.parse_schema(msgspec.json.decode(schema_of(Order).text))

    def round_trip(value: dict[str, Any]) -> object:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, schema, value)
        return fastavro.schemaless_reader(io.BytesIO(file.getvalue()), schema)

    return round_trip


async def our_round_trip(registry: Registry, name: str, kind: type) -> RoundTrip:
    """Return what is measured: framed, by a serde that is ready."""
    serde: Serde[Any] = Serde(registry, f"{name}-value", kind)
    encode, decode = await serde.encoder(), serde.decoder
    return lambda value: decode(encode(value))


def side_by_side(sides: Sequence[tuple[RoundTrip, Sequence[Any]]]) -> list[float]:
    """Return each side's rate. They take turns, slice by slice, so that what disturbs one disturbs the other."""
    seconds = [0.0 for _ in sides]
    size = max(1, len(sides[0][1]) // SLICES)
    for start in range(0, len(sides[0][1]), size):
        for nr, (round_trip, objects) in enumerate(sides):
            with stopwatch() as watch:
                for each in objects[start : start + size]:
                    round_trip(each)
            seconds[nr] += watch.seconds
    return [len(objects) / spent for (_, objects), spent in zip(sides, seconds, strict=True)]


@asynccontextmanager
async def setup(stage: Stage) -> AsyncIterator[Contest]:
    dicts = [values(nr) for nr in range(stage.count(COUNT, least=SLICES))]
    registry = await open_registry("memory:")
    objects = {name: [kind(**each) for each in dicts] for name, kind in KINDS.items()}
    ours = {name: await our_round_trip(registry, name, kind) for name, kind in KINDS.items()}
    plain, limits = fastavro_round_trip(), dict[str, float]()

    async def work() -> Readings:
        readings = {}
        for name in KINDS:
            metric = f"{name}_per_s"
            readings[metric], limits[metric] = side_by_side([(ours[name], objects[name]), (plain, dicts)])
        return readings

    async def bound() -> Readings:
        return dict(limits)

    yield Contest(work, bound)


BENCH = Bench(
    name="avro",
    work="encode and decode of a 10-field record, framed, as a class",
    measures=(
        Measure("dataclass_per_s", unit="round trips/s", against=AGAINST, target=at_least(0.7)),
        Measure("struct_per_s", unit="round trips/s", against=AGAINST, target=at_least(0.7)),
        Measure("model_per_s", unit="round trips/s", against=AGAINST),
    ),
    setup=setup,
)
