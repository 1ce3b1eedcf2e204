"""Metrics of the gateway."""

from __future__ import annotations

from prometheus_client import Histogram

from headrace.observe import counter, gauge, histogram

__all__ = ["CONNECTIONS", "HELD", "IN_FLIGHT", "REFUSED", "REQUESTS", "SOCKETS", "STREAMS", "RequestClocks"]

REQUESTS = histogram("gateway", "request", "Time to the end of an answer.", ("method", "route", "status"))
IN_FLIGHT = gauge("gateway", "in_flight", "requests", "Requests that are being answered.")
HELD = gauge("gateway", "held", "requests", "Requests that wait for missing partitions.")
STREAMS = gauge("gateway", "open", "streams", "Streams that are open.")
SOCKETS = gauge("gateway", "open", "sockets", "WebSockets that are open.")
CONNECTIONS = gauge("gateway", "open", "connections", "Connections that are open.")
REFUSED = counter("gateway", "refused", "Requests and connections that were refused, by reason.", ("reason",))


class RequestClocks:
    """The histograms of `REQUESTS` by their labels, which are looked up once: every request needs one of them."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int], Histogram] = {}

    def of(self, method: str, route: str, status: int) -> Histogram:
        """Return the histogram of a method, a route and a status. There are few of each: callers can't make them up."""
        found = self._found.get((method, route, status))
        if found is None:
            found = self._found[method, route, status] = REQUESTS.labels(method, route, str(status))
        return found
