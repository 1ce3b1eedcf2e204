"""A request as handlers see it: checked parameters, the body, and what the caller wants; and answers that are ready.

Versions are ETags: what If-Match and If-None-Match say (RFC 9110), and what that means for a read or a write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.access import Caller
from headrace.errors import BadArgument, WrongMediaType
from headrace.gateway.routes import JSON, TOKEN_HEADER, GatewayRoute
from headrace.model import combine_tokens

__all__ = [
    "ANY_VERSION",
    "JSON_HEADERS",
    "GatewayRequest",
    "ReadyResponse",
    "chosen_media_type",
    "etag_of",
    "has_version",
    "is_json_type",
    "refuse_page_parameters",
    "versions_in",
    "wanted_media_type",
    "whole_number",
]

T = TypeVar("T")
ANY_VERSION = "*"
JSON_HEADERS = ((b"content-type", JSON.encode()), (b"cache-control", b"no-store"))
_WORDS = {"true": True, "1": True, "": True, "false": False, "0": False}
_MOST_DIGITS = 20  # of the largest number that any parameter takes
_MOST_ACCEPT_CHARS = 200  # of a header Accept whose meaning is remembered
_ETAGS = re.compile(r'\s*(?:W/)?"[^"]*"\s*(?:,\s*(?:W/)?"[^"]*"\s*)*')
_ETAG = re.compile(r'(W/)?"([^"]*)"')
_MOST_VERSION_DIGITS = 19


class GatewayRequest:
    """One request. The body has been read, and is at most as large as the settings allow.

    `token` is the consistency token of what the answer must show; None if the caller sent none. `root_path` is where
    the gateway is mounted in another application; it is empty for one that stands alone.
    """

    def __init__(
        self,
        route: GatewayRoute,
        path: Mapping[str, str],
        query: QueryParams,
        headers: Headers,
        body: bytes,
        caller: Caller,
        request_id: str,
        root_path: str = "",
    ) -> None:
        self.route = route
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.caller = caller
        self.request_id = request_id
        self.token = _token_of(headers)
        self.root_path = root_path
        if query and not route.takes_any_query:
            self._check_query()

    def text(self, name: str) -> str | None:
        """Return a parameter of the query; None if it is absent. Raises BadArgument if it is given twice."""
        given = self.query.getlist(name)
        if len(given) > 1:
            raise BadArgument(name, len(given), "it may be given once only")
        return given[0] if given else None

    def number(self, name: str, *, default: int, least: int, most: int) -> int:
        """Return a whole number of the query. Raises BadArgument."""
        text = self.text(name)
        if text is None:
            return default
        number = whole_number(text)
        if number is None or not least <= number <= most:
            raise BadArgument(name, text[:60], f"it must be a whole number from {least} to {most}")
        return number

    def once(self, name: str) -> str | None:
        """Return a header that may be sent once; None if it is absent. Raises BadArgument."""
        given = self.headers.getlist(name)
        if len(given) > 1:
            raise BadArgument(name, len(given), "it may be sent once only")
        return given[0] if given else None

    def flag(self, name: str) -> bool:
        """Return True if the query says `name` or `name=true`. Raises BadArgument."""
        text = self.text(name)
        if text is None:
            return False
        if text.lower() not in _WORDS:
            raise BadArgument(name, text[:60], "it must be true or false")
        return _WORDS[text.lower()]

    def json(self, form: type[T]) -> T:
        """Return the body, which must be JSON of this form. Raises BadArgument, WrongMediaType."""
        if not is_json_type(self.headers):
            raise WrongMediaType("Content-Type", self.content_type, tuple(self.route.body or (JSON,)))
        try:
            return msgspec.json.decode(self.body, type=form)
        except msgspec.ValidationError as error:
            raise BadArgument("body", "…", f"it must have the form of this route: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadArgument("body", f"{len(self.body)} bytes", f"it must be JSON: {error}") from error

    @property
    def content_type(self) -> str:
        """The media type of the body, without parameters."""
        return _content_type(self.headers)

    def wants(self, offered: Sequence[str]) -> str:
        """Return the media type to answer in, of those that are offered. Raises WrongMediaType."""
        return wanted_media_type(self.headers, offered)

    def _check_query(self) -> None:
        """Raise BadArgument for a parameter that the route does not have: a misspelt one must not be ignored."""
        known = [each.name for each in self.route.parameters if each.place == "query"]
        for name in self.query:
            if name not in known:
                rule = f"this route has {', '.join(known)}" if known else "this route has no parameters"
                raise BadArgument("parameter", name[:60], rule)


class ReadyResponse(Response):
    """A response of some bytes with headers that are bytes already; its length is added.

    Most answers are a few bytes: making their headers should cost less than making the answer.
    """

    def __init__(self, body: bytes, headers: Iterable[tuple[bytes, bytes]], status_code: int = 200) -> None:
        self.body = body
        self.status_code = status_code
        self.background = None
        self.raw_headers = [*headers, (b"content-length", b"%d" % len(body))]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})


def _token_of(headers: Headers) -> str | None:
    """Return the tokens of the header as one. Raises BadToken, also for routes that have no use for a token."""
    lines = headers.getlist(TOKEN_HEADER)
    return combine_tokens(*(text.strip() for line in lines for text in line.split(","))) if lines else None


def _content_type(headers: Headers) -> str:
    sent: str = headers.get("content-type", "")
    return sent.partition(";")[0].strip().lower()


def is_json_type(headers: Headers) -> bool:
    """Return True if the body may be JSON: the header Content-Type says so, or says nothing."""
    sent = _content_type(headers)
    return not sent or sent == JSON or sent.endswith("+json")


def whole_number(text: str) -> int | None:
    """Return the number that a text of digits stands for; None if it is none, or longer than any number here."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def refuse_page_parameters(request: GatewayRequest, *names: str) -> None:
    """Raise BadArgument for a parameter of pages in a request for a stream, which has all: it must not be ignored."""
    for name in names:
        if (text := request.text(name)) is not None:
            raise BadArgument(name, text[:60], f"a stream has no pages; leave it out, or ask for {JSON}")


def wanted_media_type(headers: Headers, offered: Sequence[str]) -> str:
    """Return the media type to answer in, of those that are offered. Raises WrongMediaType."""
    accept = ", ".join(headers.getlist("accept"))
    if not accept:
        return offered[0]
    choose = _chosen_before if len(accept) <= _MOST_ACCEPT_CHARS else chosen_media_type
    return choose(accept, tuple(offered))


def chosen_media_type(accept: str, offered: Sequence[str]) -> str:
    """Return the offered type that an Accept header likes best; the first one if it likes several equally.

    Raises WrongMediaType if it takes none of them.
    """
    ranges = [_range_of(part) for part in accept.split(",") if part.strip()]
    if not ranges:
        return offered[0]
    best = max(offered, key=lambda each: _quality(each, ranges))
    if _quality(best, ranges) <= 0:
        raise WrongMediaType("Accept", accept[:200], tuple(offered))
    return best


_chosen_before = lru_cache(maxsize=256)(chosen_media_type)  # a client sends the same one with each request


def _range_of(part: str) -> tuple[str, float]:
    """Return a media range and its quality. A quality that is no number counts as 0."""
    media, *parameters = (piece.strip().lower() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                quality = 0.0
            return media, quality if 0 <= quality <= 1 else 0.0
    return media, 1.0


def _quality(media: str, ranges: Sequence[tuple[str, float]]) -> float:
    """Return how much a type is liked: the most specific range that names it decides."""
    kind = media.partition("/")[0]
    for name in (media, f"{kind}/*", "*/*"):
        found = [quality for each, quality in ranges if each == name]
        if found:
            return max(found)
    return 0.0


def etag_of(version: int) -> str:
    """Return the ETag of a version."""
    return f'"{version}"'


def has_version(headers: Headers, version: int) -> bool:
    """Return True if If-None-Match says that the caller has this version, so that 304 is the answer.

    A proxy that has compressed an answer marks its ETag as weak, and sends it so. What is no list of ETags names none.
    """
    given = headers.getlist("if-none-match")
    if not given:
        return False
    sent = ", ".join(given).strip()
    if sent == ANY_VERSION:
        return True
    return bool(_ETAGS.fullmatch(sent)) and str(version) in {text for _, text in _ETAG.findall(sent)}


def versions_in(headers: Headers) -> frozenset[int] | str | None:
    """Return the versions that If-Match names, or `ANY_VERSION`; None without that header. Raises BadArgument.

    A weak ETag, and one that no version has, never fits a write.
    """
    given = headers.getlist("if-match")
    if not given:
        return None
    sent = ", ".join(given).strip()
    if sent == ANY_VERSION:
        return ANY_VERSION
    if not _ETAGS.fullmatch(sent):
        raise BadArgument("If-Match", sent[:60], 'it is the ETag of a value, as in "7", or *')
    return frozenset(
        int(text)
        for weak, text in _ETAG.findall(sent)
        if not weak and text.isascii() and text.isdigit() and len(text) <= _MOST_VERSION_DIGITS
    )
