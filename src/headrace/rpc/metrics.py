"""What is measured of calls over gRPC."""

from __future__ import annotations

from headrace.observe import counter, gauge, histogram

__all__ = ["CALLS", "IN_FLIGHT", "REFUSED"]

CALLS = histogram("grpc", "call", "Time to the end of a call, by method and status.", ("method", "status"))
IN_FLIGHT = gauge("grpc", "in_flight", "calls", "Calls that are being answered.")
REFUSED = counter("grpc", "refused", "Calls that were refused, by reason.", ("reason",))
