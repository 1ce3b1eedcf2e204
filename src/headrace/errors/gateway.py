"""Errors of the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headrace.errors.families import Misconfigured, Refused, Unavailable, outcome_text

__all__ = [
    "BodyTooLarge",
    "GatewayRefused",
    "GatewaySuspended",
    "GatewayUnavailable",
    "GatewayUnprotected",
    "GrpcListenFailed",
    "GrpcUnprotected",
    "KeysUnusable",
    "ListenFailed",
    "NoSuchRoute",
    "NotFound",
    "OriginRefused",
    "PreconditionFailed",
    "PushRefused",
    "RateExceeded",
    "SocketRefused",
    "Unauthenticated",
    "WrongMediaType",
]


@dataclass(eq=False)
class Unauthenticated(Refused):
    """A request has no credentials, or credentials that are wrong or out of date."""

    reason: str
    says: ClassVar[str] = "the request is not authenticated: {reason}"


@dataclass(eq=False)
class NoSuchRoute(Refused):
    """The gateway serves no such path, or not with this method; `allowed` has the methods that it has."""

    method: str
    path: str
    allowed: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.allowed:
            return f"{self.path} can't be used with {self.method}; it takes {', '.join(self.allowed)}"
        return f"there is nothing at {self.path}; see /openapi.json for what is served"


@dataclass(eq=False)
class NotFound(Refused):
    """There is no thing with the name, number or id of a request's path."""

    what: str
    says: ClassVar[str] = "there is no {what}"


@dataclass(eq=False)
class PreconditionFailed(Refused):
    """A write names the version that it replaces, and the key has another one; nothing was written."""

    key: str
    says: ClassVar[str] = "{key} is not as the request expects it; nothing was written, read it and decide again"


@dataclass(eq=False)
class BodyTooLarge(Refused):
    """The body of a request is larger than the gateway takes."""

    limit_bytes: int
    says: ClassVar[str] = "the request's body is larger than {limit_bytes} bytes; split it, or raise max_body_bytes"


@dataclass(eq=False)
class OriginRefused(Refused):
    """A web page, or a host name in a request, that the gateway's settings do not list."""

    header: str
    value: str
    setting: str
    says: ClassVar[str] = (
        "{header} is {value!r}, which is not one of {setting}; if it may use this gateway, add it there"
    )


@dataclass(eq=False)
class WrongMediaType(Refused):
    """A request's body, or the answer that it asks for, has a form that the route does not offer."""

    header: str
    value: str
    offered: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.header} is {self.value!r}, this route has {', '.join(self.offered)}"


@dataclass(eq=False)
class GatewayRefused(Refused):
    """The gateway refused a request of its client; `problem` is its whole answer (RFC 9457)."""

    status: int
    detail: str
    problem: object
    says: ClassVar[str] = "the gateway refused the request with status {status}: {detail}"


@dataclass(eq=False)
class SocketRefused(Refused):
    """The gateway closed a socket with a code that says: the same would be refused again."""

    code: int
    reason: str
    says: ClassVar[str] = "the gateway closed the socket with code {code}: {reason}"


@dataclass(eq=False)
class PushRefused(Refused):
    """An outside service will never take this push, as for a device that is gone; a push hook raises it."""

    service: str
    reason: str
    says: ClassVar[str] = "{service} refused the push: {reason}"


@dataclass(eq=False)
class GatewaySuspended(Unavailable):
    """Partitions have no owner at the moment, and the gateway is set to refuse what needs them."""

    missing: str
    says: ClassVar[str] = "nobody owns {missing} at the moment; nothing was done, try again later"


@dataclass(eq=False)
class GatewayUnavailable(Unavailable):
    """The gateway can't answer a request of its client now, or can't be reached; `status` is 0 then."""

    status: int
    detail: str
    outcome_known: bool = True

    def __str__(self) -> str:
        answer = f"the gateway answered with status {self.status}" if self.status else "the gateway can't be reached"
        return f"{answer}: {self.detail}; {outcome_text(self.outcome_known)}, try again later"


@dataclass(eq=False)
class RateExceeded(Unavailable):
    """A caller sends more requests than it may; this one was not taken."""

    retry_in_s: float
    says: ClassVar[str] = "too many requests; nothing was done, try again in {retry_in_s:g} s"


@dataclass(eq=False)
class ListenFailed(Misconfigured):
    """The gateway can't listen: another process uses the address, or this user is not allowed to."""

    host: str
    port: int
    reason: str
    says: ClassVar[str] = (
        "the gateway can't listen at {host}:{port}: {reason}; stop the process that listens there, or set "
        "gateway.listen to another address (port 0 takes a free one)"
    )


@dataclass(eq=False)
class GatewayUnprotected(Misconfigured):
    """The gateway would listen beyond this machine, and nobody would have to authenticate."""

    host: str
    says: ClassVar[str] = (
        "the gateway would serve {host} without authentication; set gateway.jwt.jwks or gateway.signatures.secrets, "
        "or listen at 127.0.0.1, or, if everybody who reaches it may do everything, set "
        "gateway.allow_unauthenticated = true"
    )


@dataclass(eq=False)
class GrpcUnprotected(Misconfigured):
    """A node would take commands over gRPC from beyond this machine, and nobody would have to authenticate."""

    host: str
    says: ClassVar[str] = (
        "the node would take commands at {host} without authentication; set grpc.jwt.jwks, or listen at 127.0.0.1, or, "
        "if everybody who reaches it may do everything, set grpc.allow_unauthenticated = true"
    )


@dataclass(eq=False)
class GrpcListenFailed(Misconfigured):
    """A node can't listen for commands: another process uses the address, or this user is not allowed to."""

    listen: str
    reason: str
    says: ClassVar[str] = (
        "the node can't take commands at {listen}: {reason}; stop the process that listens there, or set grpc.listen "
        "to another address (port 0 takes a free one)"
    )


@dataclass(eq=False)
class KeysUnusable(Misconfigured):
    """Keys that are needed to check tokens or signatures can't be read, or are of no use."""

    where: str
    reason: str
    says: ClassVar[str] = "the keys in {where} can't be used: {reason}; correct them and start again"
