"""The gateway: keyspaces, journals, events by tag and schemas over HTTP and WebSocket, for browsers and services.

Promises: every failure is answered as a JSON problem, and harms no other request; what a caller may not see is in no
answer; a stream of events resumes after the last offset that the client got; an append with an Idempotency-Key happens
once, at whichever gateway it is repeated. Routes of the application are plain ASGI beside these.
Does not promise: an answer before a request's deadline; it says then whether the outcome is known.
Needs the extra `gateway`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.access import Caller as Caller
    from headrace.gateway.app import CALLER as CALLER
    from headrace.gateway.app import GatewayApp as GatewayApp
    from headrace.gateway.console import ConsoleOutbox as ConsoleOutbox
    from headrace.gateway.console import ConsoleParts as ConsoleParts
    from headrace.gateway.console import JournalLine as JournalLine
    from headrace.gateway.console import LogTopics as LogTopics
    from headrace.gateway.console import PartitionOffsets as PartitionOffsets
    from headrace.gateway.console import TopicFacts as TopicFacts
    from headrace.gateway.keyspaces import ServedKeyspace as ServedKeyspace
    from headrace.gateway.ports import GatewayParts as GatewayParts
    from headrace.gateway.ports import ServedJournal as ServedJournal
    from headrace.gateway.ports import ServedTags as ServedTags
    from headrace.gateway.requests import GatewayRequest as GatewayRequest
    from headrace.gateway.routes import GatewayRoute as GatewayRoute
    from headrace.gateway.routes import Needs as Needs
    from headrace.gateway.routes import RouteAnswer as RouteAnswer
    from headrace.gateway.routes import RouteParameter as RouteParameter
    from headrace.gateway.server import RunningGateway as RunningGateway
    from headrace.gateway.server import check_protected as check_protected
    from headrace.gateway.server import serving as serving
    from headrace.gateway.signatures import SignedParts as SignedParts
    from headrace.gateway.signatures import sign_request as sign_request

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "headrace.access": "Caller",
        "headrace.gateway.app": "CALLER GatewayApp",
        "headrace.gateway.console": "ConsoleOutbox ConsoleParts JournalLine LogTopics PartitionOffsets TopicFacts",
        "headrace.gateway.keyspaces": "ServedKeyspace",
        "headrace.gateway.ports": "GatewayParts ServedJournal ServedTags",
        "headrace.gateway.requests": "GatewayRequest",
        "headrace.gateway.routes": "GatewayRoute Needs RouteAnswer RouteParameter",
        "headrace.gateway.server": "RunningGateway check_protected serving",
        "headrace.gateway.signatures": "SignedParts sign_request",
    },
    extras=dict.fromkeys(("httptools", "jwt", "starlette", "uvicorn", "uvloop", "websockets"), "gateway"),
)
