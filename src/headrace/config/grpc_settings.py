"""The settings of the door for commands of programs in other languages."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from headrace.config.gateway_settings import GatewayJwtSettings
from headrace.config.settings import Section

__all__ = ["GrpcSettings", "GrpcTlsSettings"]

_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1)]


class GrpcTlsSettings(Section):
    """The certificate of the door; without one it speaks plain text."""

    certificate_location: str | None = Field(default=None, description="File with the certificate, and its chain.")
    key_location: str | None = Field(default=None, description="File with the key of that certificate.")
    ca_location: str | None = Field(
        default=None, description="File with certificates; clients must then show one that these have signed."
    )


class GrpcSettings(Section):
    """Commands of programs in other languages, over gRPC."""

    listen: str | None = Field(
        default=None, description="HOST:PORT where a node takes commands; port 0: any free one; unset: it takes none."
    )
    allow_unauthenticated: bool = Field(
        default=False, description="Take commands of other machines although nobody has to authenticate."
    )
    grants: dict[str, list[str]] = Field(
        default={},
        description='What callers may do: by subject, by role as "role:NAME", or for everybody as "*"; see engine.md.',
    )
    request_timeout_s: _Seconds = Field(default=30.0, description="Longest time for an answer.")
    shutdown_s: _Seconds = Field(default=10.0, description="How long requests may go on after the signal to stop.")
    max_message_bytes: _Count = Field(default=4_194_304, description="Largest request.")
    max_requests_in_flight: _Count = Field(
        default=1_000, description="Most requests that are answered at a time; further ones get RESOURCE_EXHAUSTED."
    )
    requests_per_s: _Seconds | None = Field(
        default=None, description="Most requests of one caller in a second, on average; unset: no limit."
    )
    burst: _Count = Field(default=100, description="Requests that a caller may send at once, above that average.")
    tls: GrpcTlsSettings = GrpcTlsSettings()
    jwt: GatewayJwtSettings = GatewayJwtSettings()

    @property
    def has_authentication(self) -> bool:
        """True if callers can authenticate, so that nobody may do anything without a grant."""
        return self.jwt.jwks is not None
