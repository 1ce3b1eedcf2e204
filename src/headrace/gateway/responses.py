"""Responses that are ready to be sent: most answers are a few bytes, and making their headers should cost less."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["JSON_HEADERS", "ReadyResponse"]

JSON_HEADERS = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))


class ReadyResponse(Response):
    """A response of some bytes with headers that are bytes already; its length is added."""

    def __init__(self, body: bytes, headers: Iterable[tuple[bytes, bytes]], status_code: int = 200) -> None:
        self.body = body
        self.status_code = status_code
        self.background = None
        self.raw_headers = [*headers, (b"content-length", str(len(body)).encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})
