"""Headrace's own settings. Their defaults stand here and, for reading, in defaults.toml; a test keeps them equal."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr

from headrace.config.settings import Section, Settings

__all__ = [
    "CassandraStoreSettings",
    "EmbeddedLogSettings",
    "EmbeddedStoreSettings",
    "HeadraceSettings",
    "KafkaLogSettings",
    "LogSettings",
    "ObserveSettings",
    "ServicesSettings",
    "StoreSettings",
]

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
Consistency = Literal["ONE", "LOCAL_ONE", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL"]
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
    delivery_timeout_s: Seconds = Field(
        default=30.0, description="Longest time for an append to be acknowledged, retries included."
    )
    linger_ms: float = Field(
        default=1.0, ge=0, description="How long a producer waits for more records to send together."
    )
    queue_records: int = Field(
        default=100_000, ge=1, description="Most records on their way in one producer; further appends wait."
    )
    metadata_max_age_s: Seconds = Field(
        default=60.0, description="How long a topic's description is trusted before it is asked for again."
    )
    idle_consumers: int = Field(
        default=8, ge=0, description="Consumers of a kind that are kept open between two reads."
    )


class LogSettings(Section):
    """Where the log is and how it is used."""

    address: str = Field(
        default="embedded:./data", description="embedded:FOLDER, kafka://HOST:PORT, or a plug-in's address."
    )
    embedded: EmbeddedLogSettings = EmbeddedLogSettings()
    kafka: KafkaLogSettings = KafkaLogSettings()


class EmbeddedStoreSettings(Section):
    """The eventual store in one folder of this machine."""

    fsync: bool = Field(
        default=True, description="Wait for the disk at each commit; without it a power cut may lose the last."
    )
    housekeeping_interval_s: Seconds = Field(
        default=600.0, description="Time between runs that forget deletions older than store.gc_grace_s."
    )


class CassandraStoreSettings(Section):
    """The eventual store in Apache Cassandra."""

    username: str | None = Field(default=None, description="Who logs in; unset: nobody does.")
    password: SecretStr | None = Field(default=None, description="The user's password.")
    local_dc: str | None = Field(
        default=None, description="The data centre whose nodes are asked; unset: that of the first that answers."
    )
    consistency: Consistency = Field(default="LOCAL_QUORUM", description="How many replicas must answer, both ways.")
    create_keyspace: bool = Field(default=True, description="Make the keyspace when it is not there.")
    replication_factor: int = Field(
        default=1, ge=1, description="Copies of each row in a keyspace made here; ignored where replication is set."
    )
    replication: dict[str, int] = Field(
        default={}, description="Copies of each row by data centre in a keyspace made here, as in {dc1 = 3}."
    )
    request_timeout_s: Seconds = Field(default=10.0, description="Longest wait for an answer, retries included.")
    attempt_timeout_s: Seconds = Field(default=4.0, description="Longest wait for one attempt before it is repeated.")
    max_requests_in_flight: int = Field(default=256, ge=1, description="Most requests on their way at a time.")
    batch_max_rows: int = Field(default=50, ge=1, description="Most rows of one partition written together.")
    batch_max_bytes: int = Field(
        default=40_000, ge=1, description="Most bytes written together; below the servers' batch_size_fail_threshold."
    )
    meta_segments: int = Field(
        default=10_000, ge=1, description="Partitions of the metajournal by topic; fixed when the keyspace is made."
    )


class StoreSettings(Section):
    """Where the eventual store is and how it is used."""

    address: str = Field(
        default="embedded:./data",
        description="embedded:FOLDER, cassandra://HOST[:PORT][,HOST]/KEYSPACE, or a plug-in's address.",
    )
    marker_ttl_s: Seconds = Field(
        default=2_592_000.0, description="How long a purge is remembered; longer than the log keeps its records."
    )
    gc_grace_s: Seconds = Field(
        default=864_000.0, description="How long deletions are kept against late writers; longer than the log's."
    )
    embedded: EmbeddedStoreSettings = EmbeddedStoreSettings()
    cassandra: CassandraStoreSettings = CassandraStoreSettings()


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
    store: StoreSettings = StoreSettings()
    services: ServicesSettings = ServicesSettings()
    observe: ObserveSettings = ObserveSettings()
