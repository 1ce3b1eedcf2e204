"""Metrics of the gateway."""

from __future__ import annotations

from headrace.observe import counter, gauge, histogram

__all__ = ["CONNECTIONS", "HELD", "IN_FLIGHT", "REFUSED", "REQUESTS", "SOCKETS", "STREAMS"]

REQUESTS = histogram("gateway", "request", "Time to the end of an answer.", ("method", "route", "status"))
IN_FLIGHT = gauge("gateway", "in_flight", "requests", "Requests that are being answered.")
HELD = gauge("gateway", "held", "requests", "Requests that wait for missing partitions.")
STREAMS = gauge("gateway", "open", "streams", "Streams that are open.")
SOCKETS = gauge("gateway", "open", "sockets", "WebSockets that are open.")
CONNECTIONS = gauge("gateway", "open", "connections", "Connections that are open.")
REFUSED = counter("gateway", "refused", "Requests and connections that were refused, by reason.", ("reason",))
