"""Where a job's log and store are, in a form that travels to Spark's workers: files by content, secrets not shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.config import CassandraStoreSettings
from headrace.errors import BadArgument

if TYPE_CHECKING:
    from headrace.config import HeadraceSettings, LogSettings, StoreSettings, TagSettings

__all__ = [
    "PLACES_OPTION",
    "SECRET_NAMES",
    "Endpoints",
    "carried_to_cassandra",
    "carried_to_kafka",
    "is_secret",
    "pem_of",
]

# What a person should not find in a log, a plan or a web page: passwords, SASL lines, and places, which may hold them.
# Spark's own list lacks the last four.
SECRET_NAMES = "(?i)secret|password|token|access[.]?key|credential|jaas|sasl|ssl"  # noqa: S105 - names


def is_secret(name: str) -> bool:
    """Say whether a property of that name may hold a secret."""
    return re.search(SECRET_NAMES, name) is not None


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


# Spark shows the options of a source unless their name says that they are secret.
PLACES_OPTION = "headracesecretplaces"


class Endpoints(msgspec.Struct, frozen=True):
    """The addresses of a log and a store, with the settings that open them. Secrets included: never to be shown."""

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
        """Return the places that `headrace.connect` with the same arguments would open."""
        from headrace.config import HeadraceSettings, StoreSettings

        settings = settings or HeadraceSettings.load()
        log = address or settings.log.address
        if store is None:
            store = log if log.startswith("embedded:") else settings.store.address
        if not log.startswith("embedded:") and store == StoreSettings().address:
            raise BadArgument("store", None, "a log on Kafka needs a store; name one, as cassandra://host/keyspace")
        log_settings = _revealed(settings.log)
        log_settings["kafka"]["client"] = carried_to_kafka(settings.log.kafka.client)
        store_settings = _revealed(settings.store)
        store_settings["cassandra"] = _revealed(carried_to_cassandra(settings.store.cassandra))
        return cls(log, store, log_settings, store_settings, _revealed(settings.tags))

    @classmethod
    def unpack(cls, text: str) -> Endpoints:
        """Read what `pack` wrote."""
        return msgspec.json.decode(text, type=cls)

    def pack(self) -> str:
        """Return it as text, for an option of a data source."""
        return msgspec.json.encode(self).decode()

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


def _revealed(value: object) -> Any:  # noqa: ANN401 - plain JSON values
    from pydantic import BaseModel, SecretStr

    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, BaseModel):
        return {name: _revealed(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {name: _revealed(each) for name, each in value.items()}
    return value
