"""Routes for operators and programs: health, readiness, metrics, and the description of all routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import HTMLResponse, JSONResponse, Response

from headrace.gateway.openapi import openapi_document, openapi_page
from headrace.gateway.requests import GatewayRequest
from headrace.gateway.routes import JSON, GatewayRoute, Needs, RouteAnswer
from headrace.observe import Health, HealthState, render

__all__ = ["OperationRoutes"]

_GROUP = "Operations"
_REFRESH_S = 1.0
_STATE = {"type": "object", "required": ["state"], "properties": {"state": {"enum": ["up", "starting", "down"]}}}
# The page has no scripts at all, so nothing in it can run or load anything.
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class OperationRoutes:
    """The routes of operations. `all_routes` gives the table that is described, these routes included."""

    def __init__(
        self,
        health: Health,
        all_routes: Callable[[], Sequence[GatewayRoute]],
        closing: asyncio.Event,
        *,
        version: str,
        has_authentication: bool,
    ) -> None:
        self._health = health
        self._all_routes = all_routes
        self._closing = closing
        self._version = version
        self._has_authentication = has_authentication
        self._refreshing = asyncio.Lock()
        self._refreshed_s = -_REFRESH_S

    def routes(self) -> list[GatewayRoute]:
        """Return the routes."""
        route = partial(GatewayRoute, "GET", group=_GROUP)
        state = RouteAnswer("The state.", content={JSON: _STATE})
        return [
            route("/health/live", self.live, "Learn that the process answers.", answer=state),
            route(
                "/health/ready",
                self.ready,
                "Learn whether requests can be answered now; 503 if not.",
                answer=state,
            ),
            route(
                "/health",
                self.health,
                "Get the state of every part, with reasons.",
                answer=state,
                needs=Needs("read", "system", "health"),
            ),
            route(
                "/metrics",
                self.metrics,
                "Get the metrics of this process, for Prometheus.",
                answer=RouteAnswer("The metrics.", content={"text/plain": {"type": "string"}}),
                needs=Needs("read", "system", "metrics"),
            ),
            route(
                "/openapi.json",
                self.description,
                "Get this description.",
                answer=RouteAnswer("The document.", content={JSON: {"type": "object"}}),
            ),
            route(
                "/docs",
                self.page,
                "Get this description as a page.",
                answer=RouteAnswer("The page.", content={"text/html": {"type": "string"}}),
            ),
        ]

    async def live(self, request: GatewayRequest) -> object:
        """Answer at all."""
        return {"state": "up"}

    async def ready(self, request: GatewayRequest) -> object:
        """Answer with the state, without reasons: everybody may ask."""
        await self.refresh()
        state = HealthState.DOWN if self._closing.is_set() else self._health.readiness
        return JSONResponse({"state": str(state)}, 200 if state is HealthState.UP else 503, _NO_STORE)

    async def health(self, request: GatewayRequest) -> object:
        """Answer with the tree."""
        await self.refresh()
        return JSONResponse(self._health.to_dict(), 200 if self._health.is_up else 503, _NO_STORE)

    async def metrics(self, request: GatewayRequest) -> object:
        """Answer with all metrics."""
        return Response(await asyncio.to_thread(render), media_type=CONTENT_TYPE_LATEST, headers=_NO_STORE)

    async def description(self, request: GatewayRequest) -> object:
        """Answer with the OpenAPI document."""
        return self.document()

    async def page(self, request: GatewayRequest) -> object:
        """Answer with the page."""
        return HTMLResponse(openapi_page(self.document()), headers={"content-security-policy": _PAGE_POLICY})

    async def refresh(self) -> None:
        """Ask the parts how they are, once a second at most: everybody may ask the gateway, as often as they like."""
        async with self._refreshing:
            if time.monotonic() - self._refreshed_s >= _REFRESH_S:
                await self._health.refresh()
                self._refreshed_s = time.monotonic()

    def document(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        return openapi_document(self._all_routes(), version=self._version, has_authentication=self._has_authentication)


_NO_STORE = {"cache-control": "no-store"}
