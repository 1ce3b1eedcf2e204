"""Where a job's log and store are, in a form that travels to Spark's workers.

Settings are imported where they are needed: they cost a third of a second, and most workers only pass places on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import BadArgument

if TYPE_CHECKING:
    from headrace.config import HeadraceSettings, LogSettings, StoreSettings, TagSettings

__all__ = ["PLACES_OPTION", "Places"]

# Spark shows the options of a source unless their name says that they are secret.
PLACES_OPTION = "headracesecretplaces"


class Places(msgspec.Struct, frozen=True):
    """The addresses of a log and a store, with the settings that open them. Secrets included: never to be shown."""

    log: str
    store: str
    log_settings: dict[str, Any] = {}
    store_settings: dict[str, Any] = {}
    tag_settings: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Places({self.log!r}, {self.store!r})"

    @classmethod
    def of(
        cls, address: str | None = None, *, store: str | None = None, settings: HeadraceSettings | None = None
    ) -> Places:
        """Return the places that `headrace.connect` with the same arguments would open."""
        from headrace.config import HeadraceSettings, StoreSettings
        from headrace.pipeline.spark.certificates import carried_to_cassandra, carried_to_kafka

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
    def unpack(cls, text: str) -> Places:
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
