"""Settings of the eventual store: where it is, and how its two backends are used."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from headrace.config.settings import Count, Seconds, Section

__all__ = ["CassandraStoreSettings", "EmbeddedStoreSettings", "StoreSettings"]

Consistency = Literal["ONE", "LOCAL_ONE", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL"]


class EmbeddedStoreSettings(Section):
    """The eventual store in one folder of this machine."""

    create_folder: bool = Field(default=True, description="Create the folder, and the store in it, if there is none.")
    fsync: bool = Field(
        default=True, description="Wait for the disk at each commit; without it a power cut may lose the last commits."
    )
    housekeeping_interval_s: Seconds = Field(
        default=600.0, description="Time between runs that forget deletions older than store.gc_grace_s."
    )


class CassandraStoreSettings(Section):
    """The eventual store in Apache Cassandra."""

    username: str | None = Field(default=None, description="User to log in as; unset: no login.")
    password: SecretStr | None = Field(default=None, description="The user's password.")
    tls: bool = Field(default=False, description="Use TLS, and verify the nodes' certificates.")
    ca_location: str | None = Field(
        default=None, description="File with the certificates to trust; unset: those of the system."
    )
    ca_pem: str | None = Field(default=None, description="The certificates to trust, as PEM; wins over the file.")
    certificate_location: str | None = Field(default=None, description="File with our own certificate, for mutual TLS.")
    key_location: str | None = Field(default=None, description="File with the key of our certificate.")
    key_password: SecretStr | None = Field(default=None, description="Password of that key.")
    local_dc: str | None = Field(
        default=None, description="The data centre whose nodes are used; unset: that of the first node that answers."
    )
    consistency: Consistency = Field(
        default="LOCAL_QUORUM", description="Replicas that must answer, for reads and for writes."
    )
    create_keyspace: bool = Field(default=True, description="Create the keyspace if it does not exist.")
    replication_factor: Count | None = Field(
        default=None,
        description="Copies of each row, by data centre, in a new keyspace; unset: as many as nodes, up to 3.",
    )
    replication: dict[str, int] = Field(
        default={}, description="Copies of each row by data centre in a new keyspace, as in {dc1 = 3}; wins."
    )
    request_timeout_s: Seconds = Field(default=10.0, description="Longest wait for an answer, retries included.")
    attempt_timeout_s: Seconds = Field(default=4.0, description="Longest wait for one attempt before it is repeated.")
    speculate_after_s: Seconds | None = Field(
        default=0.5, description="Ask another node too if one has not answered for this long; unset: never."
    )
    max_requests_in_flight: int = Field(default=256, ge=1, description="Most requests on their way at a time.")
    batch_max_rows: int = Field(default=50, ge=1, description="Most rows of one partition written together.")
    batch_max_bytes: int = Field(
        default=40_000, ge=1, description="Most bytes written together; below the servers' batch_size_fail_threshold."
    )
    shared_batch_max_bytes: int = Field(
        default=5_000,
        ge=0,
        description="Most bytes of small journals written together; below the servers' batch_size_warn_threshold.",
    )
    meta_segments: int = Field(
        default=10_000, ge=1, description="Partitions of the metajournal by topic; fixed when the keyspace is created."
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
