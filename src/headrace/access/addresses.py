"""Addresses to listen at, and whether other machines reach them."""

from __future__ import annotations

from headrace.errors import BadArgument

__all__ = ["host_and_port", "is_loopback"]

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def host_and_port(listen: str, setting: str = "gateway.listen") -> tuple[str, int]:
    """Return the parts of HOST:PORT or [HOST]:PORT. Raises BadArgument with the name of the setting."""
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise BadArgument(setting, listen, "it must be HOST:PORT, as in 127.0.0.1:8080")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches the host."""
    return host in _LOOPBACK or host.startswith("127.")
