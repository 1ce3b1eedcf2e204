"""The connection between two nodes: gRPC with plain bytes, one stream for each pair of asking and asked node.

What server and client share: the names on the wire, options, certificates. grpcio is imported when it is first needed.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from headrace.config import ClusterTlsSettings
from headrace.errors import InvalidSettings, MissingExtra, SettingsProblem

__all__ = [
    "CLUSTER",
    "EXPECTED",
    "METHOD",
    "NODE",
    "SERVICE",
    "STREAM",
    "CertificateFiles",
    "channel_options",
    "client_credentials",
    "grpc_library",
    "server_credentials",
    "server_options",
]

SERVICE = "headrace.cluster.v1"
STREAM = "Frames"
METHOD = f"/{SERVICE}/{STREAM}"
# Names in the metadata of a stream.
NODE, CLUSTER, EXPECTED = "headrace-node", "headrace-cluster", "headrace-expected"

_FRAME_OVERHEAD_BYTES = 1024
_PING_EVERY_MS = 5000
_PING_TIMEOUT_MS = 5000


class CertificateFiles(Protocol):
    """Where the certificates of a server are, as settings name them."""

    @property
    def ca_location(self) -> str | None:
        """File with the certificates to trust."""
        ...

    @property
    def certificate_location(self) -> str | None:
        """File with the server's certificate."""
        ...

    @property
    def key_location(self) -> str | None:
        """File with the key of that certificate."""
        ...


@cache
def grpc_library() -> Any:  # noqa: ANN401 - a module
    """Return grpc, with its asynchronous half. Raises MissingExtra."""
    # It prints lines about connections that end as they should; read once, when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # A fork here is one that starts another program. grpc's handlers would end that child before it begins, for example
    # the Java process of Spark.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        import grpc
        import grpc.aio
    except ImportError as error:
        raise MissingExtra("grpcio", "cluster") from error
    return grpc


def channel_options(*, max_message_bytes: int, server_name: str | None = None) -> list[tuple[str, Any]]:
    """Return what a client's channel is set to."""
    options = [
        *_size_options(max_message_bytes),
        ("grpc.keepalive_time_ms", _PING_EVERY_MS),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        # Channels of one address share connections and back-off otherwise; a lost one shall be opened again at once.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    ]
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    return options


def server_options(*, max_message_bytes: int) -> list[tuple[str, Any]]:
    """Return what a server is set to."""
    return [
        *_size_options(max_message_bytes),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_EVERY_MS // 5),
        ("grpc.http2.max_ping_strikes", 0),
        # Two nodes on one port would share its connections, and nobody would know whom they ask.
        ("grpc.so_reuseport", 0),
    ]


def client_credentials(tls: ClusterTlsSettings) -> Any | None:  # noqa: ANN401 - grpc's
    """Return what a client trusts and shows; None for plain text."""
    if not _is_on(tls, "cluster.tls"):
        return None
    return grpc_library().ssl_channel_credentials(
        root_certificates=_read(tls.ca_location, "cluster.tls.ca_location"),
        private_key=_read(tls.key_location, "cluster.tls.key_location"),
        certificate_chain=_read(tls.certificate_location, "cluster.tls.certificate_location"),
    )


def server_credentials(tls: CertificateFiles, section: str = "cluster.tls") -> Any | None:  # noqa: ANN401 - grpc's
    """Return what a server shows, and which clients it takes; None for plain text. `section` is that of the settings.

    Raises InvalidSettings.
    """
    if not _is_on(tls, section):
        return None
    key = _read(tls.key_location, f"{section}.key_location")
    certificate = _read(tls.certificate_location, f"{section}.certificate_location")
    ca = _read(tls.ca_location, f"{section}.ca_location")
    return grpc_library().ssl_server_credentials(
        [(key, certificate)], root_certificates=ca, require_client_auth=ca is not None
    )


def _size_options(max_message_bytes: int) -> list[tuple[str, Any]]:
    size = max_message_bytes + _FRAME_OVERHEAD_BYTES
    return [("grpc.max_send_message_length", size), ("grpc.max_receive_message_length", size)]


def _is_on(tls: CertificateFiles, section: str) -> bool:
    """Return True if certificates are set. Raises InvalidSettings if a part of them is missing."""
    parts = {"certificate_location": tls.certificate_location, "key_location": tls.key_location}
    if not any((*parts.values(), tls.ca_location)):
        return False
    problem = "a node that speaks TLS needs a certificate and its key"
    missing = [SettingsProblem("settings", f"{section}.{name}", problem) for name, value in parts.items() if not value]
    if missing:
        raise InvalidSettings(tuple(missing))
    return True


def _read(location: str | None, name: str) -> bytes | None:
    if location is None:
        return None
    try:
        return Path(location).read_bytes()
    except OSError as error:
        problem = SettingsProblem("settings", name, f"{location} can't be read: {error.strerror}")
        raise InvalidSettings((problem,)) from error
