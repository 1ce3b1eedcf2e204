"""A client of the gateway, over HTTP and one WebSocket, for programs that are no nodes.

Its names are those of the JavaScript client.
Promises: a subscription goes on over lost connections, from the place where it stood, in order and without repeats;
where changes may be missing it says so. A published message is handled once, over as many connections as it takes.
Does not promise: that a program which reads too slowly sees every change; it gets the newest value, marked as lagged.
Needs the extra `client`.
"""

from headrace.client.frames import CloseMeaning, SocketFrame, close_meaning, parse_frame
from headrace.client.gateway_client import GatewayClient
from headrace.client.key_socket import KeySocket
from headrace.client.requests import GatewayEngine, GatewayJournal, GatewayState, VersionedValue
from headrace.client.subscriptions import CollectedChange, CollectionSubscription, KeyChange, KeySubscription

__all__ = [
    "CloseMeaning",
    "CollectedChange",
    "CollectionSubscription",
    "GatewayClient",
    "GatewayEngine",
    "GatewayJournal",
    "GatewayState",
    "KeyChange",
    "KeySocket",
    "KeySubscription",
    "SocketFrame",
    "VersionedValue",
    "close_meaning",
    "parse_frame",
]
