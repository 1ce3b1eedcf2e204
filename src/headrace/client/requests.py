"""The gateway over HTTP as a client uses it: values with versions, messages, commands, journals and events by tag."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

from headrace.client.connection import ClientConnection, Retries, json_text
from headrace.client.subscriptions import ApplyDelta, CollectionSubscription, KeySubscription
from headrace.errors import BadArgument, GatewayRefused, GatewayUnavailable, HeadraceError
from headrace.observe import get_logger
from headrace.runtime import Backoff

if TYPE_CHECKING:  # it comes with the extra `client`
    import httpx

__all__ = ["GatewayEngine", "GatewayJournal", "GatewayState", "HttpRequests", "VersionedValue", "problem_error"]

_MOST_WAITING = 10_000
_NO_KEYS = (bool, bytes, bytearray, memoryview, Mapping, Set, type(None))  # their text is another key, which none meant
_PROXYS = (502, 504)  # statuses of a proxy that has lost its gateway on the way, or waited too long for it
_SILENCE_S = 60.0  # of a stream that shows that it is alive; a connection may end without a word
_logger = get_logger(__name__)


class VersionedValue(NamedTuple):
    """A value in the gateway's JSON form, and its version."""

    value: Any
    version: int


def problem_error(problem: Mapping[str, Any]) -> HeadraceError:
    """Return the error of a JSON problem: GatewayUnavailable if a retry may work, else GatewayRefused."""
    status, detail = int(problem.get("status", 0)), str(problem.get("detail", problem.get("title", "")))
    if status in (429, 503, *_PROXYS):
        is_known = bool(problem.get("outcome_known", status not in _PROXYS))
        return GatewayUnavailable(status, detail, outcome_known=is_known)
    return GatewayRefused(status, detail, dict(problem))


class HttpRequests:
    """Sends requests with the token. Raises GatewayRefused and GatewayUnavailable."""

    def __init__(
        self, http: httpx.AsyncClient, token: Callable[[], Awaitable[str | None]], *, has_fresh_tokens: bool = False
    ) -> None:
        self.http = http
        self.has_fresh_tokens = has_fresh_tokens
        self._token = token

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str | None] | None = None,
        body: Any = None,  # noqa: ANN401
        or_none: bool = False,
    ) -> httpx.Response | None:
        """Return the response; None for 404, if that is an answer (`or_none`)."""
        import httpx

        content = None if body is None else json_text(body, "body").encode()
        given = await self.headers({"accept": "application/json", **(headers or {})})
        if content is not None:
            given["content-type"] = "application/json"
        try:
            params = {name: each for name, each in (query or {}).items() if each is not None}
            response = await self.http.request(method, path, params=params, headers=given, content=content)
        except httpx.TransportError as error:
            raise GatewayUnavailable(0, str(error) or type(error).__name__, outcome_known=method == "GET") from error
        if response.is_success:
            return response
        if or_none and response.status_code == 404:
            return None
        raise problem_error(problem_of_response(response.status_code, response.content))

    async def json(self, method: str, path: str, **given: Any) -> Any:  # noqa: ANN401
        """Return what the response holds; None if that is nothing."""
        response = await self.send(method, path, **given)
        return None if response is None or response.status_code == 204 else response.json()

    async def headers(self, given: Mapping[str, str | None]) -> dict[str, str]:
        """Return headers with the token, without those that are None."""
        token = await self._token()
        found = {name: value for name, value in given.items() if value is not None}
        return found if token is None else {**found, "authorization": f"Bearer {token}"}


def problem_of_response(status: int, content: bytes) -> dict[str, Any]:
    """Return the problem in a body; a body that is none, such as a proxy's page, is its detail."""
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return {**found, "status": status}
    return {"status": status, "detail": content[:200].decode(errors="replace")}


class GatewayState:
    """One state of a keyspace: values by key, and subscriptions. Keys with parts are tuples or lists."""

    def __init__(self, requests: HttpRequests, connection: ClientConnection, keyspace: str, name: str) -> None:
        self._requests = requests
        self._connection = connection
        self._keyspace = keyspace
        self._name = name

    async def get(self, key: Any, *, max_staleness_s: float | None = None) -> VersionedValue | None:  # noqa: ANN401
        """Return a value with its version; None if the key has none."""
        query = {"max_staleness_s": max_staleness_s}
        response = await self._requests.send("GET", self._key_path(key), query=query, or_none=True)
        if response is None:
            return None
        # A proxy that compresses answers marks their ETags as weak.
        return VersionedValue(response.json(), int(response.headers["etag"].removeprefix("W/").strip('"')))

    async def put(
        self,
        key: Any,  # noqa: ANN401
        value: Any,  # noqa: ANN401
        *,
        version: int | Literal["none"] | None = None,
        ttl_s: float | None = None,
    ) -> None:
        """Set a value; with `version`, only if the key still has it, with "none" only if it has no value."""
        headers, query = _condition(version), {"ttl_s": ttl_s}
        await self._requests.send("PUT", self._key_path(key), body=value, headers=headers, query=query)

    async def delete(self, key: Any, *, version: int | None = None) -> None:  # noqa: ANN401
        """Delete a key."""
        await self._requests.send("DELETE", self._key_path(key), headers=_condition(version))

    async def page(self, prefix: Sequence[Any], *, after: Any = None, limit: int | None = None) -> dict[str, Any]:  # noqa: ANN401
        """Return a page of the keys with these first parts; its `next` is the `after` of the next one."""
        query = {
            "prefix": json_text(list(prefix), "prefix"),
            "after": None if after is None else key_text(after),
            "limit": limit,
        }
        return dict(await self._requests.json("GET", self._path(), query=query))

    async def count(self) -> int:
        """Return how many keys have a value."""
        path = f"/keyspaces/{path_segment(self._keyspace)}/counts/{path_segment(self._name)}"
        return int((await self._requests.json("GET", path))["count"])

    async def find(self, index: str, value: Any, *, limit: int | None = None) -> list[dict[str, Any]]:  # noqa: ANN401
        """Return the pairs that an index has under a value."""
        path = f"/keyspaces/{path_segment(self._keyspace)}/indexes/{path_segment(self._name)}/{path_segment(index)}"
        found = await self._requests.json("GET", path, query={"value": json_text(value, "value"), "limit": limit})
        return list(found["pairs"])

    def subscribe(
        self,
        key: Any,  # noqa: ANN401
        *,
        after: str | None = None,
        token: str | None = None,
        format: Literal["json", "avro"] = "json",  # noqa: A002 - as on the wire
        deltas: bool = False,
        apply_delta: ApplyDelta | None = None,
        max_waiting: int = _MOST_WAITING,
    ) -> KeySubscription:
        """Follow a key; with a consistency `token` the first value shows what it names.

        With `deltas` changes may come as increments; `apply_delta(value, delta)` makes them whole.
        """
        request = {**self._request("subscribe", format, deltas), "key": key_text(key), "token": token}
        if after is not None and not isinstance(after, str):
            raise BadArgument("after", after, "it must be the offset of a change, which is text")
        subscription = KeySubscription(
            self._connection.new_number(),
            request,
            self._connection.remove,
            after=after,
            apply_delta=apply_delta,
            limit=max_waiting,
        )
        self._connection.add(subscription)
        return subscription

    def collect(
        self,
        *,
        prefix: Any = None,  # noqa: ANN401
        start: Any = None,  # noqa: ANN401
        end: Any = None,  # noqa: ANN401
        format: Literal["json", "avro"] = "json",  # noqa: A002 - as on the wire
        deltas: bool = False,
        apply_delta: ApplyDelta | None = None,
        max_waiting: int = _MOST_WAITING,
    ) -> CollectionSubscription:
        """Follow all keys, those of a prefix, or those from `start` on and before `end`."""
        request = {**self._request("collect", format, deltas), "prefix": prefix, "start": start, "end": end}
        subscription = CollectionSubscription(
            self._connection.new_number(), request, self._connection.remove, apply_delta=apply_delta, limit=max_waiting
        )
        self._connection.add(subscription)
        return subscription

    def _request(self, op: str, form: str, deltas: bool) -> dict[str, Any]:
        if form not in ("json", "avro"):
            raise BadArgument("format", form, "it must be json or avro")
        return {"op": op, "keyspace": self._keyspace, "state": self._name, "format": form, "deltas": deltas}

    def _path(self) -> str:
        return f"/keyspaces/{path_segment(self._keyspace)}/states/{path_segment(self._name)}"

    def _key_path(self, key: Any) -> str:  # noqa: ANN401
        return f"{self._path()}/{path_segment(key_text(key))}"


class GatewayEngine:
    """The aggregates of an engine."""

    def __init__(self, requests: HttpRequests, name: str) -> None:
        self._requests = requests
        self._path = f"/engines/{path_segment(name)}"

    async def get(self, aggregate: str) -> dict[str, Any] | None:
        """Return the committed state of an aggregate with `state`, `version` and `since`; None if there is none."""
        found = await self._requests.json("GET", f"{self._path}/{path_segment(aggregate)}", or_none=True)
        return None if found is None else dict(found)

    async def command(
        self,
        aggregate: str,
        command: str,
        data: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        version: int | None = None,
        since: str | None = None,
    ) -> dict[str, Any]:
        """Send a command and return what it led to. It is done once, however often it is sent with one key."""
        key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
        headers = {**repeatable(key), **_condition(version)}
        path = f"{self._path}/{path_segment(aggregate)}/commands/{path_segment(command)}"
        return dict(await self._requests.json("POST", path, headers=headers, body=dict(data), query={"since": since}))


class GatewayJournal:
    """The journals of a topic."""

    def __init__(self, requests: HttpRequests, topic: str) -> None:
        self._requests = requests
        self._path = f"/journals/{path_segment(topic)}"

    async def read(
        self, key: str, *, start: int | None = None, to: int | None = None, limit: int | None = None
    ) -> dict[str, Any]:
        """Return a page of events; its `next` is the `start` of the next one."""
        query = {"from": start, "to": to, "limit": limit}
        return dict(await self._requests.json("GET", self._one(key), query=query))

    async def append(
        self,
        key: str,
        events: Sequence[Mapping[str, Any]],
        *,
        expected: int | None = None,
        idempotency_key: str | None = None,
    ) -> dict[str, Any]:
        """Append events, all or none. With an `idempotency_key`, and `expected`, it may be repeated."""
        body = {"events": list(events), **({} if expected is None else {"expected": expected})}
        return dict(await self._requests.json("POST", self._one(key), body=body, headers=repeatable(idempotency_key)))

    async def pointer(self, key: str) -> dict[str, Any] | None:
        """Return what is known of the last event; None if there is no journal."""
        found = await self._requests.json("GET", f"{self._one(key)}/pointer", or_none=True)
        return None if found is None else dict(found)

    async def delete(self, key: str, to: int) -> Any:  # noqa: ANN401
        """Delete the events up to a number."""
        return await self._requests.json("DELETE", self._one(key), query={"to": to})

    async def purge(self, key: str) -> Any:  # noqa: ANN401
        """Remove the journal."""
        return await self._requests.json("POST", f"{self._one(key)}/purge")

    def _one(self, key: str) -> str:
        return f"{self._path}/{path_segment(key)}"


async def tagged_events(
    requests: HttpRequests, tags: Sequence[str] | str, after: str | None, backoff: Backoff
) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of tags as they are written: server-sent events, resumed after the last one that came.

    A stream whose token has ended is resumed with a new one, if the token is a function. Raises GatewayRefused if
    coming back would not help, as with 410: the events were removed because of their age.
    """
    import httpx

    retries = Retries(backoff)
    while True:
        headers = await requests.headers({"accept": "text/event-stream", "last-event-id": after})
        opened_s: float | None = None
        try:
            timeout = httpx.Timeout(10.0, read=_SILENCE_S)
            async with requests.http.stream(
                "GET", "/events", params={"tag": tag_list(tags)}, headers=headers, timeout=timeout
            ) as response:
                if not response.is_success:
                    raise problem_error(problem_of_response(response.status_code, await response.aread()))
                opened_s = time.monotonic()
                async for event in server_events(_lines(response.aiter_bytes())):
                    if event["event"] == "problem":
                        raise problem_error(json.loads(event["data"]))
                    yield {**json.loads(event["data"]), "tag_offset": event["id"]}
                    after = event["id"]
        except (httpx.TransportError, GatewayUnavailable) as error:
            _logger.debug("stream of events lost", error=repr(error))
        except GatewayRefused as error:
            if error.status != 401 or not requests.has_fresh_tokens or not retries.may_renew_token():
                raise
        await retries.wait(0.0 if opened_s is None else time.monotonic() - opened_s)


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the lines of a stream. Other characters that end lines of text, such as U+2028, may stand in a payload."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()


async def server_events(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, str]]:
    """Yield server-sent events, as `id`, `event` and `data`; comments are left out."""
    found: dict[str, str] = {}
    async for line in lines:
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            found[name] = f"{found[name]}\n{value}" if name == "data" and name in found else value
        else:
            if "data" in found:
                yield {"id": found.get("id", ""), "event": found.get("event", "message"), "data": found["data"]}
            found = {}


def key_text(key: Any) -> str:  # noqa: ANN401
    """Return a key as it stands in a path: the text itself, or a JSON list for keys with parts. Raises BadArgument."""
    if isinstance(key, tuple | list):
        return json_text(list(key), "key")
    if isinstance(key, _NO_KEYS):
        raise BadArgument("key", repr(key)[:60], "a key is text, a number, or a list of its parts")
    return str(key)


def tag_list(tags: Sequence[str] | str) -> list[str]:
    """Return the tags as a list; a text is one tag, and not its letters."""
    return [tags] if isinstance(tags, str) else list(tags)


def repeatable(key: str | None) -> dict[str, str | None]:
    """Return the header that lets a request be repeated. Raises BadArgument for a key that no header can carry."""
    if key is None:
        return {}
    if not isinstance(key, str) or not key or not key.isascii() or not key.isprintable() or key != key.strip():
        rule = "it stands in a header: text of visible ASCII characters, without space around it"
        raise BadArgument("idempotency_key", repr(key)[:60], rule)
    return {"idempotency-key": key}


def path_segment(text: str) -> str:
    """Return a text as a segment of a path. Raises BadArgument for one that no path can hold."""
    try:
        found = quote(text, safe="")
    except (TypeError, UnicodeEncodeError) as error:
        raise BadArgument("name", repr(text)[:60], "a name, a key or an id is text of whole characters") from error
    if not found:
        raise BadArgument("name", text, "an empty name, key or id can't stand in a path")
    # Dots alone would lead to another place; as codes they stand for themselves.
    return found if found.strip(".") or len(found) > 2 else found.replace(".", "%2E")


def _condition(version: int | Literal["none"] | None) -> dict[str, str | None]:
    if version is None:
        return {}
    return {"if-none-match": "*"} if version == "none" else {"if-match": f'"{version}"'}
