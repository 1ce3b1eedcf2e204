"""GETs of keys that are answered as soon as their bytes are there: without a parser, a task or messages of ASGI.

A client sends the same headers with each of its requests. The server parses them in the ordinary way once; then their
bytes are known, and so is what follows from them alone: that the host may be used, which form of a value is wanted, and
which headers a page of another origin needs. The rest is looked at for each request: the caller's permission and rate,
places, missing partitions, the value, and the owner's lease behind it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from headrace.errors import WrongMediaType
from headrace.gateway.admission import Admission
from headrace.gateway.exchange import NOT_PLAIN, OWN_HEADERS, RequestHeaders, new_request_id
from headrace.gateway.keyspaces import KEY_PATH, KeyspaceRoutes
from headrace.gateway.metrics import RequestClocks
from headrace.gateway.origins import Origins
from headrace.gateway.requests import has_version, wanted_media_type
from headrace.gateway.routes import JSON, TOKEN_HEADER
from headrace.gateway.state_forms import StateForm
from headrace.gateway.suspension import Suspension
from headrace.keyspace import KeyspaceClient
from headrace.observe import get_logger, span

__all__ = ["SEGMENT", "PlainReads"]

_logger = get_logger(__name__)
_is_logged = logging.getLogger(__name__).isEnabledFor
_START, _VERSION = b"GET /keyspaces/", b" HTTP/1.1\r\n"
# A segment of a path that says one thing to every parser.
SEGMENT = re.compile(rb"(?:[\w.~:@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+", re.ASCII)
# Such a request is about more than the value of a key, or is another one each time; or its connection is.
_ORDINARY = NOT_PLAIN | {"connection", "expect", "headrace-token", "upgrade", "x-request-id"}
_KEEP_ALIVE = "keep-alive"
_MOST_HEADS = 256
_MOST_HEAD_BYTES = 2_048

_OWN = b"".join(b"%b: %b\r\n" % each for each in OWN_HEADERS)
_VALUE = (
    b'etag: "%%d"\r\ncache-control: no-cache\r\nvary: accept\r\n%b: %%b\r\n%%b' % TOKEN_HEADER.lower().encode()
    + _OWN
    + b"x-request-id: %b\r\n%b\r\n"
)
_FOUND = b"HTTP/1.1 200 OK\r\n%b" + f"content-type: {JSON}\r\n".encode() + _VALUE + b"%b"
_NOT_MODIFIED = b"HTTP/1.1 304 Not Modified\r\n%b" + _VALUE


class _Place(NamedTuple):
    """Where the keys of a state are."""

    keyspace: str
    client: KeyspaceClient
    form: StateForm


class _Head(NamedTuple):
    """What follows from a request's headers."""

    headers: RequestHeaders
    is_conditional: bool
    more_lines: bytes
    """The headers that go with each answer because of the request's origin."""
    is_json: dict[Sequence[str], bool]
    """By the forms that a state has: True if JSON is the one to answer in."""


class PlainReads:
    """Answers GETs of keys that this process owns, of clients without credentials.

    Promises: the answer is the one of the ordinary way. Whatever is not answered here has left no trace, so that it can
    go that way.
    """

    def __init__(
        self,
        keyspaces: KeyspaceRoutes,
        origins: Origins,
        admission: Admission,
        suspension: Suspension,
        clocks: RequestClocks,
    ) -> None:
        self._origins = origins
        self._admission = admission
        self._suspension = suspension
        self._clocks = clocks
        self._heads: dict[bytes, _Head] = {}
        self._places: dict[bytes, _Place] = {}
        for keyspace, state, client, form in keyspaces.states():
            start = f"/keyspaces/{quote(keyspace, safe='')}/states/{quote(state, safe='')}"
            self._places[start.encode()] = _Place(keyspace, client, form)
        self._dates: Sequence[tuple[bytes, bytes]] = ()
        self._date_lines = b""

    def learn(self, data: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        """Remember the headers of a request, which the server has parsed as the one request in these bytes."""
        at = data.find(_VERSION)
        if at < 0 or len(data) - at > _MOST_HEAD_BYTES or not data.startswith(_START) or data[at:] in self._heads:
            return
        found = RequestHeaders(headers)
        is_kept = found.getlist("connection") in ([], [_KEEP_ALIVE])
        if not is_kept or not found.has_none_of(_ORDINARY - {"connection"}) or not self._origins.has_known_host(found):
            return
        lines = (f"{name}: {value}\r\n" for name, value in self._origins.headers(found).items())
        head = _Head(found, "if-none-match" in found, "".join(lines).encode("latin-1", "replace"), {})
        if len(self._heads) >= _MOST_HEADS:
            del self._heads[next(iter(self._heads))]
        self._heads[data[at:]] = head

    def answer(self, data: bytes, address: str, dates: Sequence[tuple[bytes, bytes]]) -> bytes | None:
        """Return the whole answer to a request in bytes; None if the request has to go the ordinary way.

        `dates` are the headers of the server itself.
        """
        if not data.startswith(_START):
            return None
        at = data.find(_VERSION)
        head = self._heads.get(data[at:])
        if head is None:
            return None
        start, _, segment = data[4:at].rpartition(b"/")
        place = self._places.get(start)
        if place is None or not SEGMENT.fullmatch(segment) or not _is_json(head, place.form.media_types):
            return None
        caller = self._admission.anonymous(address)
        if not caller.may("read", "keyspace", place.keyspace) or self._suspension.is_suspended:
            return None
        return self._found(place, segment, head, caller.share, dates)

    def _found(
        self, place: _Place, segment: bytes, head: _Head, share: str, dates: Sequence[tuple[bytes, bytes]]
    ) -> bytes | None:
        started_s = perf_counter()
        form, client = place.form, place.client
        try:
            with span("gateway.request", route=KEY_PATH):
                text = (unquote_to_bytes(segment) if b"%" in segment else segment).decode()
                found = client.read_at_once(form.name, text if form.has_text_keys else form.key(text))
                if found is None:
                    return None
                is_known = head.is_conditional and has_version(head.headers, found.version)
                body = (
                    b""
                    if is_known
                    else form.json_stored(found.data, lambda data: client.decode_at_once(form.name, data))
                )
        except Exception as error:  # the ordinary way finds it again, and tells the client
            _logger.debug("not answered at once", error=repr(error))
            return None
        if not self._admission.count_plain(share):
            return None
        if dates is not self._dates:  # another second
            self._dates, self._date_lines = dates, b"".join(b"%b: %b\r\n" % each for each in dates)
        return self._sent(head, found.version, found.token, None if is_known else body, started_s)

    def _sent(self, head: _Head, version: int, token: str, body: bytes | None, started_s: float) -> bytes:
        request_id = new_request_id()
        given = (request_id.encode(), head.more_lines)
        if body is None:
            status = 304
            answer = _NOT_MODIFIED % (self._date_lines, version, token.encode(), b"", *given)
        else:
            status, length = 200, b"content-length: %d\r\n" % len(body)
            answer = _FOUND % (self._date_lines, version, token.encode(), length, *given, body)
        elapsed_s = perf_counter() - started_s
        self._clocks.of("GET", KEY_PATH, status).observe(elapsed_s)
        if _is_logged(logging.DEBUG):
            _logger.debug("request", request_id=request_id, route=KEY_PATH, status=status, s=elapsed_s)
        return answer


def _is_json(head: _Head, offered: Sequence[str]) -> bool:
    """Return True if the request is to be answered in JSON; False for another form, and for one that there is not."""
    found = head.is_json.get(offered)
    if found is None:
        try:
            found = wanted_media_type(head.headers, offered) == JSON
        except WrongMediaType:
            found = False
        head.is_json[offered] = found
    return found
