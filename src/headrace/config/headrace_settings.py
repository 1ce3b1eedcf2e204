"""Headrace's own settings. Their defaults stand here and, for reading, in defaults.toml; a test keeps them equal."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from headrace.config.settings import Section, Settings

__all__ = [
    "EmbeddedLogSettings",
    "HeadraceSettings",
    "KafkaLogSettings",
    "LogSettings",
    "ObserveSettings",
    "ServicesSettings",
]

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
Port = Annotated[int, Field(ge=0, le=65_535)]


class EmbeddedLogSettings(Section):
    """The log in one folder of this machine."""

    fsync: bool = Field(
        default=True, description="Wait for the disk at each commit; without it a power cut may lose the last."
    )
    group_commit_max_records: int = Field(default=1000, ge=1, description="Most records that are committed together.")
    poll_interval_ms: int = Field(
        default=2, ge=1, description="How often a waiting reader looks for other processes' appends."
    )
    housekeeping_interval_s: Seconds = Field(default=60.0, description="Time between runs of retention and compaction.")


class KafkaLogSettings(Section):
    """The log in Apache Kafka."""

    client: dict[str, str] = Field(
        default={},
        repr=False,
        description="Properties for every Kafka client, as librdkafka names them (security, tuning).",
    )
    request_timeout_s: Seconds = Field(default=30.0, description="Longest wait for an answer of the brokers.")
    linger_ms: float = Field(
        default=5.0, ge=0, description="How long a producer waits for more records to send together."
    )
    transaction_timeout_s: Seconds = Field(
        default=60.0, description="The brokers abort a transaction that is open for longer."
    )


class LogSettings(Section):
    """Where the log is and how it is used."""

    address: str = Field(
        default="embedded:./data", description="embedded:FOLDER, kafka://HOST:PORT, or a plug-in's address."
    )
    embedded: EmbeddedLogSettings = EmbeddedLogSettings()
    kafka: KafkaLogSettings = KafkaLogSettings()


class ServicesSettings(Section):
    """Real servers for development and tests."""

    cache_dir: str | None = Field(
        default=None, description="Where fetched packages are kept; unset: the user's cache folder."
    )
    data_dir: str | None = Field(
        default=None, description="Where servers keep their data; unset: below the cache folder."
    )


class ObserveSettings(Section):
    """What the headrace command shows of itself."""

    log_level: LogLevel = Field(default="INFO", description="Least level shown.")
    log_format: Literal["console", "json"] = Field(default="console", description="Lines for people, or JSON lines.")
    metrics_port: Port | None = Field(
        default=None, description="Port for Prometheus on loopback; 0: any free one; unset: none."
    )


class HeadraceSettings(Settings):
    """All settings of Headrace. An application may derive from it, or use it as a section of its own."""

    packaged_defaults: ClassVar[tuple[str, str] | None] = ("headrace.config", "defaults.toml")

    log: LogSettings = LogSettings()
    services: ServicesSettings = ServicesSettings()
    observe: ObserveSettings = ObserveSettings()
