"""TLS to the nodes."""

from __future__ import annotations

import ssl

from headrace.config import CassandraStoreSettings
from headrace.errors import BadArgument

__all__ = ["tls_context"]

_SECTION = "store.cassandra"


def tls_context(settings: CassandraStoreSettings) -> ssl.SSLContext | None:
    """Return how to encrypt, None where TLS is off. Raises BadArgument for files that are not there or no PEM."""
    if not settings.tls:
        return None
    context = _trusting(settings)
    if settings.certificate_location is not None:
        _add_certificate(context, settings)
    return context


def _trusting(settings: CassandraStoreSettings) -> ssl.SSLContext:
    try:
        # The content wins: it is what a worker gets, whose machine may not have the file.
        file = None if settings.ca_pem else settings.ca_location
        return ssl.create_default_context(cafile=file, cadata=settings.ca_pem)
    except (OSError, ValueError) as error:  # ssl's errors are OSErrors
        where = "ca_pem" if settings.ca_pem else "ca_location"
        raise BadArgument(f"{_SECTION}.{where}", settings.ca_location, f"it must be certificates: {error}") from error


def _add_certificate(context: ssl.SSLContext, settings: CassandraStoreSettings) -> None:
    # An empty one instead of none: OpenSSL would ask at the terminal.
    password = settings.key_password.get_secret_value() if settings.key_password else ""
    try:
        context.load_cert_chain(settings.certificate_location or "", settings.key_location, password)
    except (OSError, ValueError) as error:
        files = (settings.certificate_location, settings.key_location)
        rule = f"they must be a certificate and its key as PEM, and key_password must open it: {error}"
        raise BadArgument(f"{_SECTION}.certificate_location and key_location", files, rule) from error
