"""Endpoints: the addresses and settings of a job's log and store, serializable for Spark's workers.

Files are carried by content, and secrets are never shown. Settings are imported where they are used: the import takes
a third of a second, and most workers only pass endpoints on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import BadArgument

if TYPE_CHECKING:
    from headrace.config import CassandraStoreSettings, HeadraceSettings, LogSettings, StoreSettings, TagSettings

__all__ = [
    "ENDPOINTS_OPTION",
    "SECRET_NAMES",
    "Endpoints",
    "is_secret",
    "pem_of",
    "with_cassandra_pem_contents",
    "with_kafka_pem_contents",
]

# Names of properties whose values must not appear in a log, a plan or a web page. Endpoints may hold passwords too.
# Spark's own list lacks the last four.
SECRET_NAMES = "(?i)secret|password|token|access[.]?key|credential|jaas|sasl|ssl"  # noqa: S105 - names


def is_secret(name: str) -> bool:
    """Return True if a property of this name may hold a secret."""
    return re.search(SECRET_NAMES, name) is not None


_BY_CONTENT = {
    "ssl.ca.location": "ssl.ca.pem",
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
}
_BEGIN_CERTIFICATE = "-----BEGIN CERTIFICATE-----"


def with_kafka_pem_contents(client: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with PEM files replaced by their contents, where librdkafka accepts that."""
    carried = dict(client)
    for location, content in _BY_CONTENT.items():
        if location not in client or not Path(client[location]).is_file():
            continue  # a folder, or librdkafka's word "probe"; librdkafka reports what is wrong
        pem = pem_of(client, location)
        # librdkafka would use only the first certificate of a chain that is given by content.
        if location == "ssl.certificate.location" and pem.count(_BEGIN_CERTIFICATE) > 1:
            continue
        carried[content] = pem
        del carried[location]
    return carried


def with_cassandra_pem_contents(settings: CassandraStoreSettings) -> CassandraStoreSettings:
    """Return the settings with the content of the file of trusted certificates."""
    if not settings.tls or settings.ca_location is None or settings.ca_pem is not None:
        return settings
    pem = _read("store.cassandra.ca_location", settings.ca_location)
    return settings.model_copy(update={"ca_pem": pem})


def pem_of(client: Mapping[str, str], location: str) -> str:
    """Return the content of the file that a property names. Raises BadArgument if it can't be read."""
    return _read(f"log.kafka.client {location}", client[location])


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadArgument(name, path, f"it must be a file in PEM format that can be read: {reason}") from error


# Spark shows the options of a source unless their name says that they are secret.
ENDPOINTS_OPTION = "headracesecretendpoints"


class Endpoints(msgspec.Struct, frozen=True):
    """The addresses of a log and a store, and the settings to open them. It holds secrets and must not be shown."""

    log: str
    store: str
    log_settings: dict[str, Any] = {}
    store_settings: dict[str, Any] = {}
    tag_settings: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Endpoints({self.log!r}, {self.store!r})"

    @classmethod
    def of(
        cls, address: str | None = None, *, store: str | None = None, settings: HeadraceSettings | None = None
    ) -> Endpoints:
        """Return the endpoints that `headrace.connect` would open with the same arguments.

        Raises UnknownBackend for an address that nothing serves, and BadArgument if a store is missing.
        """
        from headrace.config import HeadraceSettings, StoreSettings
        from headrace.runtime import load_backend

        settings = settings or HeadraceSettings.load()
        log = address or settings.log.address
        load_backend("log", log)
        if store is None:
            store = log if log.startswith("embedded:") else settings.store.address
        if not log.startswith("embedded:") and store == StoreSettings().address:
            raise BadArgument("store", None, "a log on Kafka needs a store; name one, as cassandra://host/keyspace")
        log_settings = _revealed(settings.log)
        log_settings["kafka"]["client"] = with_kafka_pem_contents(settings.log.kafka.client)
        store_settings = _revealed(settings.store)
        store_settings["cassandra"] = _revealed(with_cassandra_pem_contents(settings.store.cassandra))
        return cls(log, store, log_settings, store_settings, _revealed(settings.tags))

    @classmethod
    def unpack(cls, text: str) -> Endpoints:
        """Return the endpoints that `pack` serialized."""
        return msgspec.json.decode(text, type=cls)

    def pack(self) -> str:
        """Serialize the endpoints as text, for an option of a data source.

        Folders are absolute in it: workers, and the server of a Spark Connect session, may run in other folders.
        """
        placed = msgspec.structs.replace(self, log=_absolute(self.log), store=_absolute(self.store))
        return msgspec.json.encode(placed).decode()

    def settings_of_log(self) -> LogSettings:
        """Return the log's settings, typed."""
        from headrace.config import LogSettings

        return LogSettings.model_validate(self.log_settings)

    def settings_of_store(self) -> StoreSettings:
        """Return the store's settings, typed."""
        from headrace.config import StoreSettings

        return StoreSettings.model_validate(self.store_settings)

    def settings_of_tags(self) -> TagSettings:
        """Return the settings of events by tag, typed."""
        from headrace.config import TagSettings

        return TagSettings.model_validate(self.tag_settings)


def _absolute(address: str) -> str:
    scheme, is_embedded, folder = address.partition("embedded:")
    return f"embedded:{Path(folder).absolute()}" if is_embedded and folder and not scheme else address


def _revealed(value: object) -> Any:  # noqa: ANN401 - plain JSON values
    from pydantic import BaseModel, SecretStr

    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, BaseModel):
        return {name: _revealed(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {name: _revealed(each) for name, each in value.items()}
    return value
