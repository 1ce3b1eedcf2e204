"""Parts of the Cassandra backend that need no server: addresses, batches, errors, the missing driver."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Sequence
from uuid import UUID

import cassandra
import pytest
from cassandra import cqltypes
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import OverloadedErrorMessage
from cassandra.query import UNSET_VALUE
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadArgument, Forbidden, HeadraceError, OperationFailed, TimedOut, Unreachable
from headrace.store import PlainRows, open_store
from headrace.store.cassandra.address import parse
from headrace.store.cassandra.columns import EVENT, event_values, plain_values
from headrace.store.cassandra.faults import explain
from headrace.store.cassandra.retries import is_transient
from headrace.store.cassandra.writer import cut, cut_plain, size_of
from headrace.testing.conformance.store_setting import event

# The columns that are not bigint. A time is a bigint of milliseconds on the wire.
TYPES = {
    "generation": cqltypes.Int32Type,
    "partition": cqltypes.Int32Type,
    "meta_record_id": cqltypes.UUIDType,
    "tags": cqltypes.ListType.apply_parameters([cqltypes.UTF8Type]),
    "headers": cqltypes.MapType.apply_parameters([cqltypes.UTF8Type, cqltypes.UTF8Type]),
    "payload_bin": cqltypes.BytesType,
    **dict.fromkeys(("payload_type", "payload_txt", "metadata", "origin", "version"), cqltypes.UTF8Type),
}
TEXTS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def plain_rows(
    seq_nrs: Sequence[int],
    *,
    payloads: Sequence[bytes | None],
    kind: str = "binary",
    origin: str | None = None,
    version: str | None = None,
) -> PlainRows:
    """Make plain rows; those without a payload have no type either."""
    return PlainRows(
        generation=3,
        partition=7,
        record_id=UUID(int=1 << 100),
        segment_size=10,
        origin=origin,
        version=version,
        seq_nrs=seq_nrs,
        offsets=[2**40 + seq_nr for seq_nr in seq_nrs],
        log_times_ms=[1_790_000_000_000 + seq_nr for seq_nr in seq_nrs],
        timestamps_ms=[1_790_000_000_000 - seq_nr for seq_nr in seq_nrs],
        payload_types=[None if payload is None else kind for payload in payloads],
        payloads=payloads,
    )


def test_an_address_names_nodes_and_a_keyspace() -> None:
    """Ports are optional, several nodes are separated by commas, IPv6 stands in brackets."""
    assert parse("cassandra://one/ks").contacts == (("one", 9042),)
    found = parse("cassandra://one:1,10.0.0.2,[::1]:3/ks_2")
    assert found.contacts == (("one", 1), ("10.0.0.2", 9042), ("::1", 3))
    assert found.keyspace == "ks_2"


@pytest.mark.parametrize(
    "address",
    [
        "cassandra:one/ks", "cassandra://", "cassandra:///ks", "cassandra://one", "cassandra://one/",
        "cassandra://one/Ks", "cassandra://one/k;drop", "cassandra://one,/ks", "cassandra://one:x/ks",
        f"cassandra://one/{'k' * 49}",
    ],
)  # fmt: skip
async def test_a_bad_address_is_refused_with_the_rule(address: str) -> None:
    """Before anything is asked of anybody."""
    with pytest.raises(BadArgument, match=r"reads cassandra://host|end with a keyspace"):
        await open_store(address)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 300)), max_size=60),
    st.integers(1, 7),
    st.integers(1, 2000),
)
def test_batches_hold_one_segment_within_limits_and_all_rows(
    wanted: list[tuple[int, int]], max_rows: int, max_bytes: int
) -> None:
    """Every row is in one batch; one that is too large is alone."""
    rows = [event(seq_nr, payload=bytes(size)) for seq_nr, size in wanted]
    batches = list(cut(rows, max_rows=max_rows, max_bytes=max_bytes))
    assert sorted(row.seq_nr for batch in batches for row in batch) == sorted(row.seq_nr for row in rows)
    for batch in batches:
        assert len({row.segment for row in batch}) == 1
        assert len(batch) <= max_rows
        assert len(batch) == 1 or sum(map(size_of, batch)) <= max_bytes


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 300)), max_size=60),
    st.sampled_from([None, "", "an origin"]),
    st.integers(1, 7),
    st.integers(1, 2000),
)
def test_plain_rows_are_cut_into_the_same_batches(
    wanted: list[tuple[int, int]], origin: str | None, max_rows: int, max_bytes: int
) -> None:
    """By columns or row by row: the same segments and limits, so the same batches."""
    seq_nrs = list(itertools.accumulate(step for step, _ in wanted))
    rows = plain_rows(seq_nrs, payloads=[bytes(size) for _, size in wanted], origin=origin)
    limits = {"max_rows": max_rows, "max_bytes": max_bytes}
    assert [list(batch) for batch in cut_plain(rows, **limits)] == list(cut(list(rows), **limits))


@given(st.lists(st.sampled_from([None, b"", b"payload"])), st.sampled_from(["binary", "text", "json"]), TEXTS, TEXTS)
def test_plain_rows_are_encoded_as_other_rows(
    payloads: list[bytes | None], kind: str, origin: str | None, version: str | None
) -> None:
    """Each column of each row becomes the same bytes as by the driver's types."""
    rows = plain_rows(list(range(1, len(payloads) + 1)), payloads=payloads, kind=kind, origin=origin, version=version)
    encoders = [TYPES.get(name, cqltypes.LongType) for name in (*EVENT, "write time")]
    encoded = [
        [value if value is UNSET_VALUE else kind.serialize(value, 4) for kind, value in zip(encoders, own, strict=True)]
        for own in map(event_values, rows)
    ]
    assert list(plain_values(rows)) == encoded


@pytest.mark.parametrize(
    ("error", "kind", "outcome_known", "again"),
    [
        (cassandra.WriteTimeout("x", write_type=0), TimedOut, False, True),
        (cassandra.OperationTimedOut(), TimedOut, False, True),
        (cassandra.Unavailable("x", required_replicas=2, alive_replicas=1), Unreachable, True, True),
        (NoHostAvailable("x", {"a": OSError("refused")}), Unreachable, False, True),
        (cassandra.WriteFailure("x", write_type=0), OperationFailed, False, False),
        (cassandra.InvalidRequest("x"), OperationFailed, True, False),
        (OverloadedErrorMessage(0x1001, "x", None), OperationFailed, False, True),
    ],
)
def test_errors_are_named_by_what_the_caller_can_do(
    error: BaseException, kind: type[HeadraceError], outcome_known: bool, again: bool
) -> None:
    """A write whose outcome is unknown says so; only trouble that may pass is tried again."""
    named = explain(error, "cassandra://x/y", "write rows", timeout_s=3, outcome_known=False)
    assert type(named) is kind
    assert named.outcome_known is outcome_known  # type: ignore[attr-defined]
    assert is_transient(error) is again


@pytest.mark.parametrize(
    "error",
    [
        cassandra.Unauthorized("no"),
        cassandra.AuthenticationFailed("no"),
        NoHostAvailable("x", {"a": cassandra.AuthenticationFailed("no")}),
    ],
)
def test_a_refused_user_is_told_so_and_not_again(error: BaseException) -> None:
    """Trying again would be refused again."""
    assert isinstance(explain(error, "a", "connect", timeout_s=1, outcome_known=True), Forbidden)
    assert not is_transient(error)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-host.invalid"])
async def test_an_address_where_nobody_answers_is_unreachable(host: str) -> None:
    """The error has the address as it was given."""
    with pytest.raises(Unreachable, match=f"cassandra://{host}/ks") as refused:
        await open_store(f"cassandra://{host}/ks")
    assert refused.value.outcome_known


def test_a_missing_driver_is_named_with_its_extra() -> None:
    """And nothing of it is imported before the backend is opened."""
    code = (
        "import asyncio, sys; sys.modules['cassandra'] = None\n"
        "from headrace.store import open_store; asyncio.run(open_store('cassandra://x/ks'))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "MissingExtra: cassandra-driver is not installed; run: pip install 'headrace[cassandra]'" in ran.stderr
