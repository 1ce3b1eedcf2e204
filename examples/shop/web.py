"""The HTTP side of the shop, with the relay and the consumer beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from examples.shop.billing import bill_for_ever
from examples.shop.ordering import TOPIC, place_order
from examples.shop.tables import Base, Bill, Order
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from headrace.log import ensure_topic, open_log
from headrace.model import TopicConfig
from headrace.outbox import Relay, migrate
from headrace.outbox.engines import engine_for
from headrace.runtime import Backoff, Supervisor

__all__ = ["make_app"]


def make_app(database: str, log_address: str) -> Starlette:
    """Return the shop; its tables and topic are made when it starts."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await asyncio.to_thread(migrate, database)
        engine = app.state.engine = engine_for(database)
        await asyncio.to_thread(Base.metadata.create_all, engine)
        log = await open_log(log_address)
        beside = Supervisor("shop")  # what fails there is logged and started again
        beside.add("billing", lambda: bill_for_ever(log, engine), backoff=Backoff())
        try:
            await ensure_topic(log.admin, TOPIC, partitions=4, config=TopicConfig())
            await beside.start()
            async with Relay(database, log):
                yield
        finally:
            await beside.stop()
            await log.close()
            engine.dispose()

    routes = [
        Route("/orders", post_order, methods=["POST"]),
        Route("/orders", get_orders),
        Route("/bills", get_bills),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


async def post_order(request: Request) -> JSONResponse:
    """Place an order."""
    try:
        asked = await request.json()
        id_ = await asyncio.to_thread(_place, request.app.state.engine, str(asked["item"]), int(asked["price"]))
    except (KeyError, TypeError, ValueError) as wrong:
        rule = 'an order looks like {"item": "lamp", "price": 40}'
        return JSONResponse({"error": f"{rule} ({type(wrong).__name__}: {wrong})"}, status_code=400)
    return JSONResponse({"id": id_}, status_code=201)


async def get_orders(request: Request) -> JSONResponse:
    """List the orders."""
    return JSONResponse(await asyncio.to_thread(_orders, request.app.state.engine))


async def get_bills(request: Request) -> JSONResponse:
    """List the bills."""
    return JSONResponse(await asyncio.to_thread(_bills, request.app.state.engine))


def _place(engine: Engine, item: str, price: int) -> int:
    with Session(engine) as session, session.begin():
        return place_order(session, item, price).id


def _orders(engine: Engine) -> list[dict[str, object]]:
    with Session(engine) as session:
        return [{"id": each.id, "item": each.item, "price": each.price} for each in session.scalars(select(Order))]


def _bills(engine: Engine) -> list[dict[str, object]]:
    with Session(engine) as session:
        return [{"order": each.order_id, "amount": each.amount} for each in session.scalars(select(Bill))]
