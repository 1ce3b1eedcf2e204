"""Write the test vectors that the gateway's clients share, from the server's own code.

    python tools/client_vectors.py            # writes clients/vectors/*.json

The tests run it too, and compare: the files in the tree are what the server does.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec

from headrace import errors
from headrace.gateway.problems import problem_of
from headrace.gateway.socket_requests import Collect, CollectionFrames, Publish, Subscribe, Unsubscribe, socket_request
from headrace.gateway.socket_wire import encode_pair, encode_push, schema_frame, schema_id_asked
from headrace.gateway.state_forms import StateForm
from headrace.keyspace import CollectionEvent
from headrace.serde import AvroField, codec_for, frame_header
from headrace.serde.registries.memory import MemoryRegistry
from headrace.state import StateChange, StateSpec

FOLDER = Path(__file__).resolve().parents[1] / "clients" / "vectors"


class Colour(Enum):
    RED = "RED"
    BLUE = "BLUE"


@dataclass(frozen=True)
class Coin:
    worth: int


@dataclass(frozen=True)
class Account:
    owner: str
    balance: int = 0


@dataclass(frozen=True)
class More:
    by: int


@dataclass(frozen=True)
class Everything:
    text: str
    number: int
    ratio: float
    is_open: bool
    raw: bytes
    colour: Colour
    id: UUID
    day: date
    at: datetime
    hour: time
    price: Annotated[Decimal, AvroField(precision=12, scale=2)]
    maybe: int | None
    coin: Coin
    several: list[Coin]
    by_name: dict[str, int]
    either: Coin | str | int


EVERYTHING = (
    Everything(
        "ä\n𝄞",
        2**53 - 1,
        0.1,
        True,
        b"\x00\xff",
        Colour.BLUE,
        UUID(int=7),
        date(1969, 7, 20),
        datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC),
        time(23, 59, 59, 5),
        Decimal("-1234.50"),
        None,
        Coin(-1),
        [Coin(1), Coin(2)],
        {"a": 1},
        "text",
    ),
    Everything(
        "",
        -(2**53) + 1,
        float("-inf"),
        False,
        b"",
        Colour.RED,
        UUID(int=2**128 - 1),
        date(2026, 12, 31),
        datetime(1960, 1, 1, tzinfo=UTC),
        time(0, 0),
        Decimal("0.01"),
        0,
        Coin(64),
        [],
        {},
        Coin(3),
    ),
)


def values() -> list[dict[str, Any]]:
    """Return schemas with values as Avro and in the JSON form, which a client converts both ways."""
    found = []
    for value in (*EVERYTHING, Account("ann", 7), Account("", -1), More(5)):
        codec = codec_for(type(value))
        found.append({"schema": codec.schema.text, "avro": codec.encode(value).hex(), "json": codec.to_json(value)})
    return found


def frames() -> dict[str, Any]:
    """Return binary frames of the server with what is in them, and those that a client sends."""
    account = codec_for(Account)
    avro = account.encode(Account("ann", 7), prefix=frame_header(1))
    changes = [
        (1, StateChange("k", Account("ann", 7), 7, "AAAA:7"), avro, False),
        (2, StateChange("k", None, 8, "AAAA:8", is_present=True), b"", False),
        (3, StateChange("k", Account("ann", 7), 9, "AAAA:9", is_present=True, is_lagged=True), avro, False),
        (2**31 - 1, StateChange("k", None, 10, "AAAA:10", is_expiry=True), b"", False),
        (4, StateChange("k", Account("ann", 7), 11, "ä:11", delta=More(5)), frame_header(2) + b"\x0a", True),
    ]
    return {
        "schemas": {"1": account.schema.text, "2": codec_for(More).schema.text},
        "pushes": [
            {**_change(number, change, is_delta), "frame": encode_push(number, change, data, is_delta=is_delta).hex()}
            for number, change, data, is_delta in changes
        ],
        "pairs": [
            {
                **_change(number, change, is_delta),
                "partition": partition,
                "key": key,
                "frame": encode_pair(
                    number, partition, json.dumps(key, ensure_ascii=False).encode(), change, data, is_delta=is_delta
                ).hex(),
            }
            for partition, (key, (number, change, data, is_delta)) in enumerate(
                zip(["k", ["a", 1], "ü", "", 7], changes, strict=True)
            )
        ],
        "schema_frames": [
            {"id": number, "schema": text, "asked": _asked(number).hex(), "frame": schema_frame(number, text).hex()}
            for number, text in ((1, '"string"'), (300, '{"type":"array","items":"int"}'))
        ],
        "messages": [{"schema_id": 7, "json": account.to_json(Account("b", 2)), "frame": _framed(7, Account("b", 2))}],
    }


def _change(number: int, change: StateChange[Any, Any], is_delta: bool) -> dict[str, Any]:
    shown = change.delta if is_delta else change.value
    flags = ("is_lagged", "is_present", "is_expiry")
    return {
        "id": number,
        "offset": change.token,
        "delta" if is_delta else "value": None if shown is None else codec_for(type(shown)).to_json(shown),
        "flags": [name for name in flags if getattr(change, name)],
    }


def _asked(number: int) -> bytes:
    frame = schema_frame(number, "")
    if schema_id_asked(frame) != number:
        raise AssertionError(frame)
    return frame


def _framed(number: int, value: Any) -> str:  # noqa: ANN401
    return codec_for(type(value)).encode(value, prefix=frame_header(number)).hex()


async def texts() -> dict[str, Any]:
    """Return the frames of JSON: what a client sends, and what the server makes of a collection's events."""
    sent = (
        Subscribe(1, "accounts", "balances", "k", after="AAAA:7", format="avro", deltas=True, token="hr1.AAAA"),
        Subscribe(2, "accounts", "lines", '["a",1]'),
        Collect(3, "accounts", "balances", prefix="a", after={"0": "AAAA:7"}),
        Collect(4, "accounts", "lines", prefix=["a"], start=["a", 1], end=["a", 9]),
        Unsubscribe(1),
        Publish(5, "accounts", "Deposit", {"id": "k", "amount": 1}, "m-1"),
    )
    requests = [json.loads(msgspec.json.encode(each)) for each in sent]
    for each, given in zip(sent, requests, strict=True):
        if socket_request(json.dumps(given)) != each:
            raise AssertionError(given)
    spec: StateSpec[str, Account] = StateSpec(name="balances", topic="balances", key=str, value=Account)
    made = CollectionFrames(Collect(3, "accounts", "balances"), StateForm(spec, MemoryRegistry()))
    events = (
        CollectionEvent("begin", partitions=(0, 1)),
        CollectionEvent("reset", 0, is_lagged=True),
        CollectionEvent("pairs", 0, pairs=[("a", Account("ann", 1)), ("b", Account("bob", 2))]),
        CollectionEvent("ready", 0, token="AAAA:7"),
        CollectionEvent("change", 0, change=StateChange("a", Account("ann", 2), 8, "AAAA:8"), token="AAAA:8"),
        CollectionEvent("change", 0, change=StateChange("b", None, 9, "AAAA:9", is_expiry=True), token="AAAA:9"),
    )
    received = [json.loads(frame) for event in events async for frame in made.of(event)]
    return {"requests": requests, "collection": received}


def collections() -> list[dict[str, Any]]:
    """Return histories of collections: frames, `lost` where the connection was, and what the reader sees in the end."""

    def change(partition: int, key: str, value: int | None, offset: int) -> dict[str, Any]:
        return {"op": "change", "id": 1, "partition": partition, "offset": f"t:{offset}", "key": key, "value": value}

    def pairs(partition: int, **values: int) -> dict[str, Any]:
        listed = [{"key": key, "value": value} for key, value in values.items()]
        return {"op": "pairs", "id": 1, "partition": partition, "pairs": listed}

    def begin(*partitions: int) -> dict[str, Any]:
        return {"op": "begin", "id": 1, "partitions": list(partitions)}

    def reset(partition: int) -> dict[str, Any]:
        return {"op": "reset", "id": 1, "partition": partition}

    def ready(partition: int, offset: int) -> dict[str, Any]:
        return {"op": "ready", "id": 1, "partition": partition, "offset": f"t:{offset}"}

    start = [begin(0), reset(0), pairs(0, a=1, b=2), ready(0, 5)]
    seen = [["a", 1], ["b", 2], "ready"]
    return [
        {
            "about": "a change that is older than the page is not shown before the snapshot is ready",
            "steps": [begin(0), reset(0), pairs(0, a=3), change(0, "a", 2, 4), change(0, "a", 3, 5), ready(0, 5)],
            "changes": [["a", 3], "ready"],
            "entries": {"a": 3},
            "after": {"0": "t:5"},
        },
        {
            "about": "a key that is deleted while the snapshot is read is not shown",
            "steps": [begin(0), reset(0), pairs(0, a=1, b=2), change(0, "b", None, 6), ready(0, 6)],
            "changes": [["a", 1], "ready"],
            "entries": {"a": 1},
            "after": {"0": "t:6"},
        },
        {
            "about": "after a gap only the differences are told, and removals last",
            "steps": [*start, "lost", begin(0), reset(0), pairs(0, a=1, c=3), ready(0, 9)],
            "changes": [*seen, ["c", 3], ["b", None]],
            "entries": {"a": 1, "c": 3},
            "after": {"0": "t:9"},
        },
        {
            "about": "a snapshot that was cut off counts for nothing",
            "steps": [*start, reset(0), pairs(0, z=9), "lost", begin(0), change(0, "a", 4, 6)],
            "changes": [*seen, ["a", 4]],
            "entries": {"a": 4, "b": 2},
            "after": {"0": "t:6"},
        },
        {
            "about": "a resumed partition goes on without a snapshot while another one is read",
            "steps": [
                *[begin(0, 1), reset(0), pairs(0, a=1), ready(0, 1), "lost"],
                *[begin(0, 1), change(0, "a", 2, 2), reset(1), pairs(1, b=5), ready(1, 7)],
            ],
            "changes": [["a", 1], ["a", 2], ["b", 5], "ready"],
            "entries": {"a": 2, "b": 5},
            "after": {"0": "t:2", "1": "t:7"},
        },
        {
            "about": "a key that a resize moves to another partition does not vanish in between",
            "steps": [
                *start,
                *[begin(0, 1), reset(0), pairs(0, a=1), ready(0, 1)],
                *[reset(1), pairs(1, b=2), ready(1, 1)],
            ],
            "changes": seen,
            "entries": {"a": 1, "b": 2},
            "after": {"0": "t:1", "1": "t:1"},
        },
        {
            "about": "a key that moves when partitions become fewer does not vanish in between",
            "steps": [
                *[begin(0, 1, 2), reset(0), reset(1), reset(2), pairs(0, a=1), pairs(2, b=2)],
                *[ready(0, 1), ready(1, 1), ready(2, 1)],
                *[begin(0, 1), reset(0), pairs(0, a=1), ready(0, 2), reset(1), pairs(1, b=2), ready(1, 2)],
            ],
            "changes": seen,
            "entries": {"a": 1, "b": 2},
            "after": {"0": "t:2", "1": "t:2"},
        },
        {
            "about": "partitions that are no more take their keys with them",
            "steps": [
                *[begin(0, 1), reset(0), reset(1), pairs(0, a=1), pairs(1, b=2), ready(0, 1), ready(1, 1)],
                *[begin(0), reset(0), pairs(0, a=1), ready(0, 1)],
            ],
            "changes": [*seen[:2], "ready", ["b", None]],
            "entries": {"a": 1},
            "after": {"0": "t:1"},
        },
    ]


def closes() -> list[dict[str, Any]]:
    """Return close codes with what a client does: retry, token (with a new one), refused, or closed."""
    fixed = {1000: "closed", 1001: "retry", 1006: "retry", 1009: "refused", 1011: "retry", 1012: "retry", 1013: "retry"}
    found = [{"code": code, "action": action, "status": None} for code, action in fixed.items()]
    refusals = {
        errors.BadArgument("frame", "x", "it is no frame"): "refused",
        errors.Unauthenticated("the token has expired"): "token",
        errors.Forbidden("read", "keyspace accounts"): "refused",
        errors.NotFound("type 'X'"): "refused",
        errors.RateExceeded(1.0): "retry",
        errors.OperationFailed("x", "y"): "retry",
    }
    for error, action in refusals.items():
        status = problem_of(error).status
        found.append({"code": 4000 + status, "action": action, "status": status})
    return found


def problems() -> list[dict[str, Any]]:
    """Return problems of the server with what a client makes of them."""
    found = (
        errors.NotFound("key 'a'"),
        errors.PreconditionFailed("'a'"),
        errors.TimedOut("a request", 1.0, outcome_known=False),
        errors.RateExceeded(1.0),
    )
    shown = [problem_of(each).to_json("r-1") for each in found]
    return [
        {
            "problem": each,
            "is_retryable": each["status"] in (429, 503),
            "outcome_known": each.get("outcome_known", True),
        }
        for each in shown
    ]


def vectors() -> dict[str, Any]:
    """Return the contents of all files, by name."""
    return {
        "collections": collections(),
        "closes": {"closes": closes(), "problems": problems()},
        "frames": frames(),
        "texts": asyncio.run(texts()),
        "values": values(),
    }


def text_of(content: Any) -> str:  # noqa: ANN401
    """Return a file's text."""
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in vectors().items():
        (FOLDER / f"{name}.json").write_text(text_of(content), encoding="utf-8")


if __name__ == "__main__":
    main()
