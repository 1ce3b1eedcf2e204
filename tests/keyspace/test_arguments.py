"""Whatever is given to a keyspace's client: an error of Headrace that names the argument, and nothing is done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from tests.keyspace.accounts import Accounts, Audit, Deposit, Sum
from tests.keyspace.setting import Place, serving

from headrace.errors import BadArgument
from headrace.keyspace import KeyspaceClient

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KeyspaceClient]:
    """Run the node, on a folder of the module's own."""
    folder = tmp_path_factory.mktemp("arguments")
    async with serving(Place(f"embedded:{folder / 'log'}", str(folder / "state")), "one", Accounts) as served:
        yield served.client


NO_TEXT = [True, 5, 1.5, b"x", (), [], {}, object()]
NO_ID = [*NO_TEXT, "", "\ud800", "x" * 301]
NO_OFFSET = [True, -2, 1.5, float("nan"), b"x", (), [], {}, object(), 1 << 70]
NO_SECONDS = [True, -1, float("nan"), "x", b"x", (), [], {}, object(), 10**400]


class Case(NamedTuple):
    """A call with one argument open, its name, and what it can't be."""

    argument: str
    wrong: list[Any]
    call: Callable[[KeyspaceClient, Any], Awaitable[object]]


async def first(changes: AsyncIterator[object]) -> object:
    """Return what a subscription gives first."""
    return await anext(changes)


async def key_from_json(client: KeyspaceClient, text: Any) -> object:
    """Return the key at once."""
    return client.key_from_json("balances", text)


CASES = {
    "ask id": Case("message_id", NO_ID, lambda c, w: c.ask(Deposit("k", 1), message_id=w)),
    "ask time": Case("timeout_s", [*NO_SECONDS, 0], lambda c, w: c.ask(Deposit("k", 1), timeout_s=w)),
    "ask chain": Case("chain", [None, 5, "x", [], {}], lambda c, w: c.ask(Deposit("k", 1), chain=w)),
    "ask with token": Case("message_id", NO_ID, lambda c, w: c.ask_with_token(Audit("k"), message_id=w)),
    "ack": Case("message_id", NO_ID, lambda c, w: c.ack(Deposit("k", 1), message_id=w)),
    "scatter": Case("timeout_s", [*NO_SECONDS, 0], lambda c, w: c.scatter(Sum("x"), timeout_s=w)),
    "get": Case("state", [*NO_TEXT, None, "x"], lambda c, w: c.get(w, "k")),
    "get age": Case("max_staleness_s", NO_SECONDS, lambda c, w: c.get("balances", "k", max_staleness_s=w)),
    "get at least": Case("at_least", NO_OFFSET, lambda c, w: c.get("balances", "k", at_least=w)),
    "prefix": Case("prefix", [()], lambda c, w: c.prefix("entries", w)),
    "prefix state": Case("state", [*NO_TEXT, None, "x"], lambda c, w: c.prefix(w, "k")),
    "prefix limit": Case("limit", [*NO_OFFSET, None, "x", -1, 0], lambda c, w: c.prefix("entries", "k", limit=w)),
    "items": Case("state", [*NO_TEXT, None, "x"], lambda c, w: first(c.items(w))),
    "find index": Case("index", [*NO_TEXT, None, "x"], lambda c, w: c.find("customers", w, "x")),
    "find limit": Case("limit", [*NO_OFFSET, None, "x", -1, 0], lambda c, w: c.find("customers", "city", "x", limit=w)),
    "count": Case("state", [*NO_TEXT, None, "x"], lambda c, w: c.count(w)),
    "put": Case("state", [*NO_TEXT, None, "x"], lambda c, w: c.put(w, "k", 1)),
    "put expected": Case("expected", [*NO_OFFSET, "1", "\ud800"], lambda c, w: c.put("balances", "k", 1, expected=w)),
    "put ttl": Case("ttl", [True, "x", b"x", (), [], {}, object()], lambda c, w: c.put("balances", "k", 1, ttl=w)),
    "put time": Case("timeout_s", [*NO_SECONDS, 0], lambda c, w: c.put("balances", "k", 1, timeout_s=w)),
    "delete": Case("expected", [*NO_OFFSET, "1", "\ud800"], lambda c, w: c.delete("balances", "k", expected=w)),
    "changes": Case("after", [*NO_OFFSET, "x"], lambda c, w: first(c.changes("balances", "k", after=w))),
    "heartbeat": Case("heartbeat_s", [*NO_SECONDS, 0], lambda c, w: first(c.changes("balances", "k", heartbeat_s=w))),
    "partition": Case("partition", [*NO_OFFSET, None, "x", 9], lambda c, w: first(c.partition_changes("balances", w))),
    "partition after": Case("after", NO_OFFSET, lambda c, w: first(c.partition_changes("balances", 0, after=w))),
    "collection": Case(
        "after", [5, "x", b"x", [1], {"0": "t:1"}, {0: "x"}], lambda c, w: first(c.collection("balances", after=w))
    ),
    "key from json": Case("key", [None, 5, 1.5, (), [], object(), "\ud800", b"x"], key_from_json),
}


@pytest.mark.parametrize("name", CASES)
async def test_wrong_arguments_are_named_and_nothing_is_done(client: KeyspaceClient, name: str) -> None:
    """Neither the bytes of a message nor an error of Python's own reaches the caller."""
    case = CASES[name]
    for wrong in case.wrong:
        with pytest.raises(BadArgument) as refused:
            await case.call(client, wrong)
        assert refused.value.name == case.argument, (wrong, refused.value)
    assert await client.get("balances", "k") is None
