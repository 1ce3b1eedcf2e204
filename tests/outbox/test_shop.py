"""The example: a shop whose orders are billed, on the embedded tier and on PostgreSQL and Kafka."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient
from sqlalchemy import create_engine, text

from headrace.outbox.testing import published
from headrace.testing.conformance.log_setting import eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's package, as `python -m examples.shop` finds it."""
    monkeypatch.syspath_prepend(str(ROOT))
    assert importlib.util.find_spec("examples.shop") is not None
    import examples.shop.web

    yield examples.shop
    for name in [name for name in sys.modules if name == "examples" or name.startswith("examples.")]:
        del sys.modules[name]


@pytest.mark.parametrize("tier", ["embedded", pytest.param("servers", marks=pytest.mark.servers)])
async def test_an_order_is_billed_once_and_a_refused_one_never(
    shop: Any, tier: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """O1, L21: the committed order's message arrives and is billed; the rolled-back one leaves no trace."""
    database, log = f"sqlite:///{tmp_path / 'shop.db'}", f"embedded:{tmp_path / 'log'}"
    if tier == "servers":
        url = request.getfixturevalue("postgres_url")
        database, log = url.render_as_string(hide_password=False), request.getfixturevalue("kafka").url
    app = shop.web.make_app(database, log)
    async with (
        app.router.lifespan_context(app),
        AsyncClient(transport=ASGITransport(app), base_url="http://shop") as client,
    ):
        for price in (40, 60):
            assert (await client.post("/orders", json={"item": "lamp", "price": price})).status_code == 201
        refused = await client.post("/orders", json={"item": "lamp", "price": -1})
        assert refused.status_code == 400

        async def are_billed() -> bool:
            return len((await client.get("/bills")).json()) == 2

        await eventually(are_billed, within_s=60)
        bills = (await client.get("/bills")).json()
        orders = (await client.get("/orders")).json()

    assert sorted(each["amount"] for each in bills) == [40, 60]
    assert {each["order"] for each in bills} == {each["id"] for each in orders}


def test_the_shops_own_test_needs_no_log(shop: Any, tmp_path: Path) -> None:
    """M4: what an application's unit test looks like."""
    from examples.shop.ordering import TOPIC, place_order
    from examples.shop.tables import Base
    from sqlalchemy.orm import Session

    engine = create_engine(f"sqlite:///{tmp_path / 'unit.db'}")
    Base.metadata.create_all(engine)
    with Session(engine) as session, published() as sent:
        place_order(session, "lamp", 40)
        session.commit()
    sent.assert_sent_including(TOPIC, {"item": "lamp", "price": 40}, key="order-1")
    with engine.connect() as db:
        assert db.execute(text("SELECT COUNT(*) FROM shop_order")).scalar_one() == 1
    engine.dispose()
