"""Certificates and keys by content instead of by file: a worker's machine need not have the files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.config import CassandraStoreSettings
from headrace.errors import BadArgument

__all__ = ["carried_to_cassandra", "carried_to_kafka", "pem_of"]

_BY_CONTENT = {
    "ssl.ca.location": "ssl.ca.pem",
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
}
_BEGIN_CERTIFICATE = "-----BEGIN CERTIFICATE-----"


def carried_to_kafka(client: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with what their files hold, as far as librdkafka takes it so."""
    carried = dict(client)
    for location, content in _BY_CONTENT.items():
        if location not in client or not Path(client[location]).is_file():
            continue  # a folder, or librdkafka's word "probe"; what is wrong it says itself
        pem = pem_of(client, location)
        # Of a chain given by content librdkafka would take the first certificate only.
        if location == "ssl.certificate.location" and pem.count(_BEGIN_CERTIFICATE) > 1:
            continue
        carried[content] = pem
        del carried[location]
    return carried


def carried_to_cassandra(settings: CassandraStoreSettings) -> CassandraStoreSettings:
    """Return the settings with the certificates to trust in them."""
    if not settings.tls or settings.ca_location is None or settings.ca_pem is not None:
        return settings
    pem = _read("store.cassandra.ca_location", settings.ca_location)
    return settings.model_copy(update={"ca_pem": pem})


def pem_of(client: Mapping[str, str], location: str) -> str:
    """Return what the file that the property names holds. Raises BadArgument if it can't be read."""
    return _read(f"log.kafka.client {location}", client[location])


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadArgument(name, path, f"it must be a file in PEM format that can be read: {reason}") from error
