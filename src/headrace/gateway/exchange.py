"""One request and its answer: reading the body within limits, and what goes with every answer."""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers, QueryParams
from starlette.types import Message, Receive, Scope, Send

from headrace.errors import BadArgument, BodyTooLarge
from headrace.gateway.limits import BodyBytes
from headrace.gateway.problems import problem_response
from headrace.gateway.requests import GatewayRequest, ReadyResponse
from headrace.gateway.routes import Match
from headrace.observe import get_logger

__all__ = [
    "NOT_PLAIN",
    "OWN_HEADERS",
    "ClientLeft",
    "Exchange",
    "RequestHeaders",
    "new_request_id",
    "path_of",
]

T = TypeVar("T")

_logger = get_logger(__name__)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PROCESS_ID = secrets.token_hex(8)  # with a number behind it, a request's id is unique without asking the system again
_request_numbers = itertools.count(1)
_NO_QUERY = QueryParams("")
# A request with any of them has credentials, a body, a deadline or a trace of its own.
NOT_PLAIN = frozenset(
    {
        "authorization",
        "content-encoding",
        "content-length",
        "request-timeout",
        "signature-input",
        "traceparent",
        "transfer-encoding",
    }
)
OWN_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))


class RequestHeaders(Headers):
    """The headers of a request with an index: each of them is looked for many times on the way to the answer."""

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        super().__init__(raw=raw)
        self._first: dict[str, str] = {}
        self._repeated: set[str] = set()
        for raw_name, value in raw:
            name = raw_name.decode("latin-1")
            if name in self._first:
                self._repeated.add(name)
            else:
                self._first[name] = value.decode("latin-1")

    def has_none_of(self, names: frozenset[str]) -> bool:
        """Return True if none of these headers, in lower case, was sent."""
        return names.isdisjoint(self._first)

    def getlist(self, key: str) -> list[str]:
        """Return all values of a header."""
        name = key.lower()
        if name in self._repeated:
            return super().getlist(name)
        return [self._first[name]] if name in self._first else []

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - as in the class above
        """Return the first value of a header."""
        return self._first.get(key.lower(), default)

    def __getitem__(self, key: str) -> str:
        return self._first[key.lower()]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.lower() in self._first


class ClientLeft(Exception):
    """The connection ended before the request was complete; nobody is left to answer to."""


class Places:
    """What a request holds of the gateway's limits: each place is given back at the end of the block, or before.

    It does as a contextlib.ExitStack would, for less: every request has one.
    """

    __slots__ = ("_given_back",)

    def __init__(self) -> None:
        self._given_back: list[tuple[Callable[[Any], None], object]] = []

    def hold(self, give_back: Callable[[T], None], what: T) -> None:
        """Take note of what is held, and how it is given back."""
        self._given_back.append((give_back, what))

    def close(self) -> None:
        """Give everything back."""
        while self._given_back:
            give_back, what = self._given_back.pop()
            give_back(what)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.close()


class Exchange:
    """A request and what is known of its answer. `is_handling` is set when a handler may have done something.

    `places` are what it holds of the gateway's limits until it has been answered. `match` is its route, and `request`
    what the route's handler gets, as soon as they are known. A request that `is_plain` has neither credentials nor a
    body, nor a deadline or a trace of its own: nothing has to be waited for before it is handled.
    """

    __slots__ = (
        "_is_read",
        "_send",
        "headers",
        "is_handling",
        "is_plain",
        "match",
        "more_headers",
        "places",
        "receive",
        "request",
        "request_id",
        "route",
        "scope",
        "status",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.headers = RequestHeaders(scope["headers"])
        self.receive = receive
        self.request_id = _request_id(self.headers)
        self.more_headers: Mapping[str, str] = {}
        self.route = "none"
        self.match: Match | None = None
        self.request: GatewayRequest | None = None
        self.is_handling = False
        self.status: int | None = None
        self.places = Places()
        self.is_plain = self.headers.has_none_of(NOT_PLAIN)
        self._send = send
        self._is_read = self.is_plain or not (
            "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"
        )

    @property
    def path(self) -> bytes:
        """The path as it was sent, below the place where the gateway is mounted."""
        return path_of(self.scope)

    @property
    def sent_path(self) -> bytes:
        """The whole path as it was sent, which a signature covers."""
        return _raw_path(self.scope)

    @property
    def method_label(self) -> str:
        """The method as metrics show it: callers must not make up labels."""
        return self.scope["method"] if self.scope["method"] in _METHODS else "other"

    @property
    def query(self) -> QueryParams:
        """The parameters behind the path. Raises BadArgument for what is no text: it must not pass for another one."""
        sent: bytes = self.scope["query_string"]
        if not sent:
            return _NO_QUERY
        if b"%" in sent:
            try:
                unquote_to_bytes(sent).decode()
            except UnicodeDecodeError as error:
                raise BadArgument("query", sent[:60].decode("latin-1"), "it must be UTF-8, percent-encoded") from error
        return QueryParams(sent)

    @property
    def address(self) -> str:
        """Where the request comes from; empty if the server does not know."""
        client = self.scope.get("client")
        return client[0] if client else ""

    def timeout_s(self, most_s: float) -> float:
        """Return the deadline that the header Request-Timeout asks for, in seconds. Raises BadArgument."""
        text = self.headers.get("request-timeout")
        if text is None:
            return most_s
        try:
            asked_s = float(text)
        except ValueError as error:
            raise BadArgument("Request-Timeout", text[:60], "it must be a number of seconds") from error
        if not asked_s > 0:
            raise BadArgument("Request-Timeout", text[:60], "it must be a number of seconds above 0")
        return min(asked_s, most_s)

    async def fail(self, error: Exception) -> None:
        """Answer with a problem; an answer that has begun stays incomplete, and the server closes the connection."""
        if self.status is None:
            await problem_response(error, self.request_id, self.path)(self.scope, self.receive, self.send)
            return
        _logger.error(
            "request failed after its answer had begun", request_id=self.request_id, error=repr(error), exc_info=error
        )

    async def send(self, message: Message) -> None:
        """Send a part of the answer; the first one with the headers of every answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._with_own(message.get("headers", ()))}
        await self._send(message)

    async def send_ready(self, response: ReadyResponse) -> None:
        """Send a whole answer."""
        self.status = status = response.status_code
        headers = self._with_own(response.raw_headers)
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": response.body})

    def _with_own(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the headers of an answer with those of every answer."""
        given = [*headers, *OWN_HEADERS, (b"x-request-id", self.request_id.encode())]
        if self.more_headers:
            given += ((name.encode(), value.encode("latin-1", "replace")) for name, value in self.more_headers.items())
        if not self._is_read:
            given.append((b"connection", b"close"))  # the rest of a body that nobody wants must not go on
        return given

    def check_length(self, limit_bytes: int) -> None:
        """Raise BodyTooLarge if the request announces a body that is too large."""
        length = self.headers.get("content-length", "")
        if length.isdigit() and int(length[:20]) > limit_bytes:
            raise BodyTooLarge(limit_bytes)

    async def body(self, limit_bytes: int, held: BodyBytes) -> bytes:
        """Return the whole body, whose bytes are held until the answer is sent. How long it may take is the caller's.

        Raises BodyTooLarge as soon as that is known, Busy, ClientLeft.
        """
        if self._is_read:
            return b""
        self.check_length(limit_bytes)
        receive = self.limited_receive(limit_bytes)
        chunks: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            chunk: bytes = message.get("body", b"")
            held.hold(len(chunk))
            self.places.hold(held.release, len(chunk))
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def limited_receive(self, limit_bytes: int) -> Receive:
        """Return `receive` with a limit on the bytes of the body. It raises BodyTooLarge."""
        read_bytes = 0

        async def receive() -> Message:
            nonlocal read_bytes
            message = await self.receive()
            read_bytes += len(message.get("body", b""))
            if read_bytes > limit_bytes:
                raise BodyTooLarge(limit_bytes)
            self._is_read = not message.get("more_body", False)
            return message

        return receive

    def replayed(self, body: bytes) -> Receive:
        """Return `receive` for a body that was read already."""
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return waiting.pop() if waiting else await self.receive()

        return receive


def path_of(scope: Scope) -> bytes:
    """Return the path as it was sent, below the place where the gateway is mounted."""
    return _raw_path(scope).removeprefix(scope.get("root_path", "").encode())


def _raw_path(scope: Scope) -> bytes:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw


def _request_id(headers: Headers) -> str:
    """Return the request's id: the caller's own if it is plain, or a new one."""
    given = headers.get("x-request-id", "")
    if given and _REQUEST_ID.fullmatch(given):
        return given
    return new_request_id()


def new_request_id() -> str:
    """Return an id that no other request has."""
    return f"{_PROCESS_ID}{next(_request_numbers):016x}"
