"""The code in docs/keyspaces.md, and the marketplace, run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.suites.journal_setting import records_of

import headrace
from headrace.config import ClusterSettings, HeadraceSettings
from headrace.errors import RequestFailed
from headrace.log import ensure_topic
from headrace.model import TopicConfig
from headrace.testing.conformance.log_setting import eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture
def market(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's package, as `python -m examples.market` finds it."""
    monkeypatch.syspath_prepend(str(ROOT))
    import examples.market.__main__
    import examples.market.keyspaces

    yield examples.market
    for name in [name for name in sys.modules if name == "examples" or name.startswith("examples.")]:
        del sys.modules[name]


def test_the_python_of_the_document_runs(tmp_path: Path) -> None:
    """C1: the program ends well and prints what it says."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "keyspaces.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Account(balance=10)",
        "Account(balance=15)",
        "Account(balance=15)",
        "Account(balance=15)",
        "[(('acc-1', 10), 10), (('acc-1', 15), 5)]",
        "Account(balance=15) True",
    ]


async def test_a_market_sells_each_item_once(tmp_path: Path, market: Any) -> None:
    """G12: a listing comes in as a record, is bought by one of many, and its seller is paid once."""
    shop, put_up = market.keyspaces, market.__main__.put_up
    settings = HeadraceSettings(cluster=ClusterSettings(node_id="only"))
    async with headrace.connect(f"embedded:{tmp_path}", settings=settings) as hr:
        for topic in ("listings", "sales"):
            await ensure_topic(hr.log.admin, topic, partitions=4, config=TopicConfig())
        async with hr.node(shop.app):
            buyers, offers = hr.keyspace(shop.Buyers), hr.keyspace(shop.Offers)
            await put_up(hr, shop.Listing("lamp", "sam", 40))
            await put_up(hr, shop.Listing("vase", "sam", 400))

            async def are_offered() -> bool:
                return len(await offers.find("offers", "by_seller", "sam")) == 2

            await eventually(are_offered, what="both offers")
            for name in ("bea", "joe"):
                await buyers.ask(shop.TopUp(name, 100))
            with pytest.raises(RequestFailed, match="bea has 100 and can't pay 400 for vase"):
                await offers.ask(shop.Buy("vase", "bea"))
            sale = await offers.ask(shop.Buy("lamp", "bea"), message_id="one")
            assert await offers.ask(shop.Buy("lamp", "bea"), message_id="one") == sale
            with pytest.raises(RequestFailed, match="lamp was sold to bea"):
                await offers.ask(shop.Buy("lamp", "joe"))

            async def is_paid() -> bool:
                purse = await buyers.get("purses", "sam")
                return purse is not None and purse.amount == 40

            await eventually(is_paid, what="the seller's money")
            assert [(await buyers.get("purses", name)).amount for name in ("bea", "joe")] == [60, 100]
            sales = [await records_of(hr.log, "sales", partition) for partition in range(4)]
            assert [record.value for of in sales for record in of] == [b"lamp: 40"]
