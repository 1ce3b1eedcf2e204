"""Hosts and origins: which web pages may use the gateway from a browser, and by which names it may be called.

Browsers send requests of any page to any address, also to this machine's own. So a page of another origin is refused
unless the settings name it; and a gateway without authentication answers only to names that nobody else can own, or
a page could have its own name lead here and be of the same origin.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from headrace.access import host_and_port, is_loopback
from headrace.config import GatewaySettings
from headrace.errors import OriginRefused
from headrace.gateway.metrics import REFUSED

__all__ = ["Origins", "host_and_port", "is_loopback"]

_ALL = "*"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_READS = ("GET", "HEAD")
_PREFLIGHT_S = 600
_MOST_SHOWN = 200  # characters of a header in a message


@lru_cache(maxsize=1024)
def _name_in(host: str) -> str:
    """Return the name in a header Host, without its port; nothing if there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # brackets that hold no address
        return ""


class Origins:
    """Checks the headers Host and Origin, and makes the headers of CORS."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.origins)
        self._hosts = frozenset(host.lower() for host in settings.hosts)
        if not self._hosts and not settings.has_authentication and not settings.allow_unauthenticated:
            self._hosts = frozenset({*_LOOPBACK, host_and_port(settings.listen)[0].lower()})

    def check(self, method: str, scheme: str, headers: Headers) -> None:
        """Raise OriginRefused for a request that a page without permission may have caused."""
        host = headers.get("host", "").lower()
        if not self.has_known_host(headers):
            REFUSED.labels("host").inc()
            raise OriginRefused("Host", host[:_MOST_SHOWN], "gateway.hosts")
        origin = headers.get("origin")
        if origin is None or method in _READS or self._is_allowed(origin):
            return
        if origin.lower() != f"{scheme}://{host}":
            REFUSED.labels("origin").inc()
            raise OriginRefused("Origin", origin[:_MOST_SHOWN], "gateway.origins")

    def has_known_host(self, headers: Headers) -> bool:
        """Return True if the gateway may be called by the name in the header Host."""
        given = headers.getlist("host")
        return not self._hosts or (len(given) < 2 and _name_in(given[0].lower() if given else "") in self._hosts)

    def check_socket(self, scheme: str, headers: Headers) -> None:
        """Raise OriginRefused for a WebSocket of a page without permission: browsers don't ask before they open one."""
        self.check("POST", {"ws": "http", "wss": "https"}.get(scheme, scheme), headers)

    def headers(self, headers: Headers) -> dict[str, str]:
        """Return the headers that let a page of an allowed origin read the answer."""
        if not self._origins:
            return {}
        origin = headers.get("origin")
        if origin is None or not self._is_allowed(origin):
            return {"vary": "origin"}
        return {
            "vary": "origin",
            "access-control-allow-origin": origin,
            "access-control-expose-headers": "etag, headrace-token, retry-after, x-request-id",
        }

    def preflight(self, headers: Headers) -> dict[str, str] | None:
        """Return the answer to a browser's question whether a page may send a request; None if it is no such question.

        It goes with what `headers` returns, as every answer does: a browser refuses one that says so twice. A page that
        is not allowed gets no headers, and its browser does not send the request.
        """
        method = headers.get("access-control-request-method")
        if method is None or "origin" not in headers:
            return None
        if "access-control-allow-origin" not in self.headers(headers):
            return {}
        return {
            "access-control-allow-methods": "GET, POST, PUT, DELETE",
            "access-control-allow-headers": headers.get("access-control-request-headers", ""),
            "access-control-max-age": str(_PREFLIGHT_S),
        }

    def _is_allowed(self, origin: str) -> bool:
        return _ALL in self._origins or origin.lower() in self._origins
