"""Commands that are sent to their engine as soon as their bytes are there: without a parser or messages of ASGI.

It is for commands what `plain_reads` is for GETs of keys: the headers of a client's requests are parsed in the ordinary
way once, and known by their bytes from then on, but for the length of the body and the command's id. Looked at for each
request are the caller's permission and rate, places, the size of the body, missing partitions, and the command itself.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine, Sequence
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes

import msgspec
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from headrace.access import Caller
from headrace.engine import Aggregate, EngineClient
from headrace.errors import Forbidden, TimedOut
from headrace.gateway.admission import Admission
from headrace.gateway.engines import COMMAND_PATH, EngineRoutes
from headrace.gateway.exchange import NOT_PLAIN, OWN_HEADERS, RequestHeaders, new_request_id
from headrace.gateway.metrics import RequestClocks
from headrace.gateway.origins import Origins
from headrace.gateway.plain_reads import SEGMENT
from headrace.gateway.problems import problem_response
from headrace.gateway.requests import is_json_type
from headrace.gateway.suspension import Suspension
from headrace.observe import get_logger, has_trace

__all__ = ["PlainCommands", "WholeAnswer"]

_logger = get_logger(__name__)
_is_logged = logging.getLogger(__name__).isEnabledFor
_START, _VERSION, _END = b"POST /engines/", b" HTTP/1.1\r\n", b"\r\n\r\n"
# The lines of a head that differ from command to command.
_CHANGING = re.compile(
    rb"\r\n(?:[Cc]ontent-[Ll]ength: (\d{1,9})|[Ii]dempotency-[Kk]ey: ([!-~]{1,255}))(?=\r\n)", re.ASCII
)
# Such a request is about more than a command, or is another one each time; or its connection is.
_ORDINARY = (NOT_PLAIN - {"content-length"}) | {
    "connection",
    "expect",
    "headrace-token",
    "if-match",
    "origin",
    "upgrade",
    "x-request-id",
}
_MOST_HEADS = 256
_MOST_HEAD_BYTES = 2_048
_SEGMENTS = 6  # of the path of a command, with the empty one before its first slash
_OWN = b"".join(b"%b: %b\r\n" % each for each in OWN_HEADERS)
_object_of = msgspec.json.Decoder(dict[str, Any]).decode


class WholeAnswer(NamedTuple):
    """An answer in bytes: its head without the empty line that ends it, and its body."""

    head: bytes
    body: bytes


class _Lines(NamedTuple):
    """The lines of a head: those that are always the same, and what stands in the others."""

    same: bytes
    lengths: list[bytes]
    command_ids: list[bytes]


class _Place(NamedTuple):
    """Where commands of one kind go."""

    client: EngineClient[Any]
    command: str


class _Sent(NamedTuple):
    """A command on its way."""

    client: EngineClient[Any]
    aggregate: Aggregate[Any]
    command: Any
    command_id: str | None
    caller: Caller
    size_bytes: int
    more_lines: bytes
    """The headers that go with each answer because of the gateway's origins."""
    started_s: float


class PlainCommands:
    """Sends commands to engines, of clients without credentials.

    Promises: the answer is the one of the ordinary way. Whatever is not begun here has left no trace, so that it can go
    that way.
    """

    def __init__(
        self,
        engines: EngineRoutes,
        origins: Origins,
        admission: Admission,
        suspension: Suspension,
        clocks: RequestClocks,
        *,
        timeout_s: float,
    ) -> None:
        self._engines = engines
        self._origins = origins
        self._admission = admission
        self._suspension = suspension
        self._clocks = clocks
        self._timeout_s = timeout_s
        self._heads: dict[bytes, bytes] = {}
        self._places: dict[tuple[bytes, bytes], _Place] = {}
        for client in engines.clients():
            for name in client.engine.commands.names:
                place = (quote(client.engine.name, safe="").encode(), quote(name, safe="").encode())
                self._places[place] = _Place(client, name)

    def learn(self, data: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        """Remember the headers of a request, which the server has parsed as the one request in these bytes."""
        at, end = data.find(_VERSION), data.find(_END)
        if not data.startswith(_START) or not 0 < at < end <= at + _MOST_HEAD_BYTES:
            return
        same, lengths, command_ids = _lines_of(data[at : end + 2])
        if same in self._heads:
            return
        found = RequestHeaders(headers)
        is_plain = found.has_none_of(_ORDINARY) and is_json_type(found) and self._origins.has_known_host(found)
        has_all = found.getlist("content-length") == [each.decode() for each in lengths] and (
            found.getlist("idempotency-key") == [each.decode() for each in command_ids]
        )
        if not is_plain or not has_all or not lengths:
            return
        lines = (f"{name}: {value}\r\n" for name, value in self._origins.headers(found).items())
        if len(self._heads) >= _MOST_HEADS:
            del self._heads[next(iter(self._heads))]
        self._heads[same] = "".join(lines).encode("latin-1", "replace")

    def begin(
        self, data: bytes, address: str, dates: Sequence[tuple[bytes, bytes]], most_head_bytes: int
    ) -> Coroutine[Any, Any, WholeAnswer] | None:
        """Return what answers a request in bytes; None if the request has to go the ordinary way.

        `dates` are the headers of the server itself.
        """
        if not data.startswith(_START):
            return None
        started_s, at, end = perf_counter(), data.find(_VERSION), data.find(_END)
        if not 0 < at < end <= most_head_bytes - len(_END):
            return None
        same, lengths, command_ids = _lines_of(data[at : end + 2])
        more_lines, body = self._heads.get(same), data[end + len(_END) :]
        if len(lengths) != 1 or int(lengths[0]) != len(body) or len(command_ids) > 1:
            return None
        parts = data[5:at].split(b"/")
        if more_lines is None or len(parts) != _SEGMENTS or parts[4] != b"commands" or not SEGMENT.fullmatch(parts[3]):
            return None
        place = self._places.get((parts[2], parts[5]))
        if place is None or self._suspension.is_suspended or has_trace():
            return None
        caller = self._admission.anonymous(address)
        if not caller.may("command", "engine", place.client.engine.name):
            return None
        try:
            text = (unquote_to_bytes(parts[3]) if b"%" in parts[3] else parts[3]).decode()
            aggregate = place.client.aggregate(text)
            _object_of(body)
            command = place.client.engine.commands.decode(place.command, body)
        except Exception as error:  # the ordinary way finds it again, and tells the client
            _logger.debug("not sent at once", error=repr(error))
            return None
        if not self._admission.enter_plain(caller.share, len(body)):
            return None
        command_id = command_ids[0].decode() if command_ids else None
        sent = _Sent(place.client, aggregate, command, command_id, caller, len(body), more_lines, started_s)
        return self._answered(sent, dates)

    async def _answered(self, sent: _Sent, dates: Sequence[tuple[bytes, bytes]]) -> WholeAnswer:
        """Send the command, and return the answer, whatever happens on the way."""
        request_id = new_request_id()
        try:
            response = await self._response(sent)
        except Forbidden as error:
            response = problem_response(self._admission.refusal(sent.caller, error), request_id)
        except Exception as error:  # every failure has an answer
            response = problem_response(error, request_id)
        finally:
            self._admission.leave_plain(sent.caller.share, sent.size_bytes)
        status = response.status_code
        lines = b"".join([b"%b: %b\r\n" % each for each in (*dates, *response.raw_headers)])
        head = b"%b%b%bx-request-id: %b\r\n%b" % (
            STATUS_LINE[status],
            lines,
            _OWN,
            request_id.encode(),
            sent.more_lines,
        )
        elapsed_s = perf_counter() - sent.started_s
        self._clocks.of("POST", COMMAND_PATH, status).observe(elapsed_s)
        if _is_logged(logging.DEBUG):
            _logger.debug("request", request_id=request_id, route=COMMAND_PATH, status=status, s=elapsed_s)
        return WholeAnswer(head, bytes(response.body))

    async def _response(self, sent: _Sent) -> Response:
        """Send the command under the deadline of every request. Raises what is answered as a problem."""
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                return await self._engines.result(sent.client, sent.aggregate, sent.command, command_id=sent.command_id)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise TimedOut(f"POST {COMMAND_PATH}", self._timeout_s, outcome_known=False) from error


def _lines_of(head: bytes) -> _Lines:
    """Return the lines of a head, of which each ends where the next one begins."""
    parts = _CHANGING.split(head)
    lengths, command_ids = parts[1::3], parts[2::3]
    return _Lines(b"".join(parts[::3]), [each for each in lengths if each], [each for each in command_ids if each])
