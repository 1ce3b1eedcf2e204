"""Settings of the log: where it is, and how its two backends are used."""

from __future__ import annotations

from pydantic import Field

from headrace.config.settings import Count, Seconds, Section

__all__ = ["EmbeddedLogSettings", "KafkaLogSettings", "LogSettings"]


class EmbeddedLogSettings(Section):
    """The log in one folder of this machine."""

    create_folder: bool = Field(default=True, description="Create the folder, and the log in it, if there is none.")
    fsync: bool = Field(
        default=True, description="Wait for the disk at each commit; without it a power cut may lose the last commits."
    )
    group_commit_max_records: int = Field(default=1000, ge=1, description="Most records that are committed together.")
    poll_interval_ms: int = Field(
        default=2,
        ge=1,
        description="How often a waiting reader looks for other processes' appends; a tenth as often when idle.",
    )
    housekeeping_interval_s: Seconds = Field(default=60.0, description="Time between runs of retention and compaction.")


class KafkaLogSettings(Section):
    """The log in Apache Kafka."""

    client: dict[str, str] = Field(
        default={},
        repr=False,
        description="Properties for every Kafka client, as librdkafka names them (security, tuning).",
    )
    connect_timeout_s: Seconds = Field(
        default=5.0, description="How long connections may fail when the log is opened before it counts as unreachable."
    )
    request_timeout_s: Seconds = Field(
        default=30.0, description="Longest wait for an answer of the brokers, attempts at other brokers included."
    )
    attempt_timeout_s: Seconds = Field(
        default=5.0, description="Longest wait for one broker; then its connection is closed and others are asked."
    )
    delivery_timeout_s: Seconds = Field(
        default=30.0, description="Longest time for an append to be acknowledged, retries included."
    )
    replication_factor: Count | None = Field(
        default=None, description="Copies of each record in a new topic; unset: as many as brokers, up to 3."
    )
    min_in_sync_replicas: Count | None = Field(
        default=None, description="Copies that an append to a new topic waits for; unset: all but one of them."
    )
    linger_ms: float = Field(
        default=1.0, ge=0, description="How long a producer waits for more records to send together."
    )
    queue_records: int = Field(
        default=100_000, ge=1, description="Most records on their way in one producer; further appends wait."
    )
    metadata_max_age_s: Seconds = Field(default=60.0, description="How long a topic's description is cached.")
    idle_consumers: int = Field(default=8, ge=0, description="Most consumers that are kept open between two reads.")


class LogSettings(Section):
    """Where the log is and how it is used."""

    address: str = Field(
        default="embedded:./data", description="embedded:FOLDER, kafka://HOST:PORT, or a plug-in's address."
    )
    embedded: EmbeddedLogSettings = EmbeddedLogSettings()
    kafka: KafkaLogSettings = KafkaLogSettings()
