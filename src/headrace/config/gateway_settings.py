"""The settings of the gateway."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from headrace.config.settings import Section

__all__ = ["GatewayJwtSettings", "GatewaySettings", "GatewaySignatureSettings", "GatewayTlsSettings"]

_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1)]
# Only algorithms with a public key: with a shared one, everybody who can check tokens could make them.
_Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class GatewayTlsSettings(Section):
    """The certificate of the gateway; without one it speaks plain HTTP."""

    certificate_location: str | None = Field(default=None, description="File with the certificate, and its chain.")
    key_location: str | None = Field(default=None, description="File with the key of that certificate.")
    key_password: SecretStr | None = Field(default=None, description="Password of that key.")
    ca_location: str | None = Field(
        default=None, description="File with certificates; clients must then show one that these have signed."
    )


class GatewayJwtSettings(Section):
    """Tokens that callers send as `Authorization: Bearer`."""

    jwks: str | None = Field(
        default=None, description="File or https:// address of the keys that sign tokens (JWKS); unset: no tokens."
    )
    issuer: str | None = Field(default=None, description="What tokens must name as their issuer; unset: any.")
    audience: str | None = Field(default=None, description="What tokens must name as their audience; unset: none.")
    algorithms: list[_Algorithm] = Field(
        default=["RS256", "ES256", "EdDSA"], description="Algorithms that tokens may be signed with."
    )
    leeway_s: Annotated[float, Field(ge=0, le=300)] = Field(
        default=30.0, description="How far the issuer's clock may differ from this machine's."
    )
    roles_claim: str = Field(default="roles", description="The claim with the caller's roles: a list, or text.")
    refresh_s: _Seconds = Field(default=300.0, description="How long keys are cached before they are read again.")
    timeout_s: _Seconds = Field(default=5.0, description="Longest wait for the keys' address.")


class GatewaySignatureSettings(Section):
    """Requests that callers sign with a shared secret (RFC 9421, hmac-sha256)."""

    secrets: dict[str, SecretStr] = Field(
        default={}, repr=False, description="The secret of each key id, as base64 of 32 bytes or more."
    )
    window_s: Annotated[float, Field(ge=1, le=3600)] = Field(
        default=300.0, description="How old a signature may be; within that time its nonce is refused again."
    )


class GatewaySettings(Section):
    """HTTP for browsers, phones and services."""

    listen: str = Field(default="127.0.0.1:8080", description="HOST:PORT to listen at; port 0: any free one.")
    allow_unauthenticated: bool = Field(
        default=False, description="Serve other machines although nobody has to authenticate."
    )
    grants: dict[str, list[str]] = Field(
        default={},
        description='What callers may do: by subject, by role as "role:NAME", or for everybody as "*"; see gateway.md.',
    )
    origins: list[str] = Field(
        default=[], description='Web pages that may use the gateway, as "https://shop.example"; "*": all.'
    )
    hosts: list[str] = Field(
        default=[],
        description="Host names that requests may name; empty: any, or without authentication those of this machine.",
    )
    create_topics: bool = Field(default=False, description="Let an append create the topic that it names.")
    request_timeout_s: _Seconds = Field(default=30.0, description="Longest time for an answer, streams excepted.")
    header_timeout_s: _Seconds = Field(default=10.0, description="Longest time for a request's line and headers.")
    slow_client_s: _Seconds = Field(
        default=30.0, description="A stream whose client takes nothing for this long is ended."
    )
    heartbeat_s: _Seconds = Field(default=15.0, description="Time between two signs of life on an idle stream.")
    shutdown_s: _Seconds = Field(default=10.0, description="How long requests may go on after the signal to stop.")
    max_body_bytes: _Count = Field(default=12_582_912, description="Largest body of a request.")
    max_header_bytes: Annotated[int, Field(ge=1024)] = Field(
        default=65_536, description="Largest request line and headers of a request together."
    )
    max_connections: _Count = Field(default=10_000, description="Most connections; further ones are closed at once.")
    max_connections_per_address: _Count = Field(default=1_000, description="The same for one address.")
    max_requests_in_flight: _Count = Field(
        default=1_000, description="Most requests that are answered at a time; further ones get 503."
    )
    missing_partitions: Literal["hold", "refuse", "ignore"] = Field(
        default="hold",
        description="What requests get while partitions have no owner: a wait, 503, or each waits for its own one.",
    )
    max_held_requests: _Count = Field(
        default=1_000, description="Most requests that wait for missing partitions; further ones get 503."
    )
    max_requests_in_flight_per_caller: _Count = Field(
        default=500, description="The same for one caller: a subject, or an address without credentials."
    )
    max_bodies_bytes: _Count = Field(
        default=268_435_456, description="Most bytes of all bodies that are in memory; further ones get 503."
    )
    max_streams: _Count = Field(default=1_000, description="Most streams at a time; further ones get 503.")
    max_streams_per_caller: _Count = Field(default=500, description="The same for one caller.")
    max_sockets: _Count = Field(default=10_000, description="Most WebSockets at a time; further ones are refused.")
    max_subscriptions_per_socket: _Count = Field(default=1_000, description="Most keys that one WebSocket follows.")
    max_frame_bytes: _Count = Field(default=1_048_576, description="Largest frame that a WebSocket takes.")
    max_waiting_changes: _Count = Field(
        default=100, description="Changes of a key that wait for a slow WebSocket; more are conflated."
    )
    slow_socket: Literal["conflate", "close"] = Field(
        default="conflate", description="What a WebSocket that is too slow gets: the newest value, or its end."
    )
    requests_per_s: _Seconds | None = Field(
        default=None, description="Most requests of one caller in a second, on average; unset: no limit."
    )
    burst: _Count = Field(default=100, description="Requests that a caller may send at once, above that average.")
    page_limit: _Count = Field(default=1_000, description="Most events of a page.")
    console: bool = Field(default=True, description="Serve the console at /console.")
    console_sample_s: Annotated[float, Field(ge=0.1, le=600)] = Field(
        default=10.0, description="Time between two points of the console's charts, which show the last hour."
    )
    tls: GatewayTlsSettings = GatewayTlsSettings()
    jwt: GatewayJwtSettings = GatewayJwtSettings()
    signatures: GatewaySignatureSettings = GatewaySignatureSettings()

    @property
    def has_authentication(self) -> bool:
        """True if callers can authenticate, so that nobody may do anything without a grant."""
        return self.jwt.jwks is not None or bool(self.signatures.secrets)
