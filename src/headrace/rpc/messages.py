"""The messages of `engines.proto` and `health.proto`, as classes.

They are made from the compiled descriptors in `messages.binpb` (`make protos`), in a pool of their own: so they work
with every version of protobuf, and beside a client in the same process that was generated from the same files.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from headrace.errors import BadArgument

__all__ = [
    "ENGINES",
    "HEALTH",
    "EventMessage",
    "FailedMessage",
    "HealthReply",
    "HealthRequest",
    "ReadMessage",
    "ReadReplyMessage",
    "RejectedMessage",
    "SendMessage",
    "SendReplyMessage",
    "SuccessMessage",
    "decoded",
]

ENGINES = "headrace.engine.v1.Engines"
HEALTH = "grpc.health.v1.Health"


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    compiled = resources.files("headrace.rpc").joinpath("messages.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        pool.Add(file)
    return pool


_POOL = _pool()


def _message(name: str) -> Any:  # noqa: ANN401 - a class that is made from a descriptor
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


SendMessage = _message("headrace.engine.v1.SendRequest")
SendReplyMessage = _message("headrace.engine.v1.SendReply")
SuccessMessage = _message("headrace.engine.v1.Success")
EventMessage = _message("headrace.engine.v1.Event")
RejectedMessage = _message("headrace.engine.v1.Rejected")
FailedMessage = _message("headrace.engine.v1.Failed")
ReadMessage = _message("headrace.engine.v1.ReadRequest")
ReadReplyMessage = _message("headrace.engine.v1.ReadReply")
HealthRequest = _message("grpc.health.v1.HealthCheckRequest")
HealthReply = _message("grpc.health.v1.HealthCheckResponse")


def decoded(kind: Any, data: bytes) -> Any:  # noqa: ANN401 - a message of this class
    """Return the message in these bytes. Raises BadArgument."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise BadArgument("request", f"{len(data)} bytes", f"they are no {kind.DESCRIPTOR.full_name}") from error
