"""Headrace's own settings: all sections, and those that have no file of their own.

Their defaults are here and, for readers, in defaults.toml; a test keeps them equal.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr

from headrace.config.gateway_settings import GatewaySettings
from headrace.config.grpc_settings import GrpcSettings
from headrace.config.log_settings import LogSettings
from headrace.config.outbox_settings import OutboxSettings
from headrace.config.settings import Count, Seconds, Section, Settings
from headrace.config.store_settings import StoreSettings

__all__ = [
    "ClusterSettings",
    "ClusterTlsSettings",
    "HeadraceSettings",
    "HttpRegistrySettings",
    "JournalHeadSettings",
    "JournalSettings",
    "KeyspaceSettings",
    "ObserveSettings",
    "PipelineSettings",
    "RegistrySettings",
    "ServicesSettings",
    "TagSettings",
]

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
CompatibilityLevel = Literal[
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"
]
Port = Annotated[int, Field(ge=0, le=65_535)]


class JournalHeadSettings(Section):
    """The cache of records that are not replicated yet, so that reads need not look for them in the log."""

    max_actions: int = Field(
        default=100_000, ge=1, description="Most actions kept; journals beyond that are looked for in the log."
    )
    max_record_bytes: int = Field(
        default=33_554_432,
        ge=0,
        description="Most bytes of records kept, the newest; others are read from the log. 0: none.",
    )
    idle_s: Seconds = Field(default=300.0, description="A partition that is not read for this long is dropped.")
    trim_every_s: Seconds = Field(
        default=1.0, description="Time between two reads of the replicated offset, to drop records that the store has."
    )


class JournalSettings(Section):
    """The journals of an application."""

    partitions: int = Field(default=8, ge=1, description="Partitions of a topic that is created by its first append.")
    lease_s: Seconds = Field(
        default=5.0, description="How long a topic's layout is cached; `headrace topic grow` must wait for it."
    )
    read_timeout_s: Seconds = Field(
        default=70.0, description="Longest wait of a read for the log; above a transaction's time-out by 10 s."
    )
    snapshots_kept: int = Field(default=3, ge=1, description="Snapshots that are kept for each journal.")
    slow_s: Seconds = Field(
        default=1.0, description="Operations that take longer are logged, with the part that was slow."
    )
    head: JournalHeadSettings = JournalHeadSettings()


class PipelineSettings(Section):
    """The jobs on Spark."""

    master: str = Field(
        default="local[*]", description="Spark's master: local[N], or a cluster's; spark-submit sets its own."
    )
    interval_s: float = Field(
        default=0.5, ge=0, description="Shortest time between the starts of two micro-batches; 0: none."
    )
    max_records: int = Field(default=200_000, ge=1, description="Most records of a micro-batch, over all partitions.")
    discover_every_s: Seconds = Field(
        default=5.0, description="Time between looks for new topics and partitions while replication runs."
    )
    remove_every_s: Seconds = Field(
        default=60.0, description="Time between removals of records that are replicated and older than the retention."
    )
    attempts: int = Field(
        default=8,
        ge=1,
        description="Failed attempts in a row before replication gives up; waiting does not count.",
    )
    once_timeout_s: Seconds = Field(
        default=60.0,
        description="How long a run with an end waits while nothing moves; ten times that for a running micro-batch.",
    )
    driver_memory: str = Field(default="1g", description="Memory of Spark's driver, as the JVM writes it.")
    ui: bool = Field(default=False, description="Serve Spark's web page while a job runs.")
    spark: dict[str, str] = Field(
        default={}, repr=False, description="Further properties of the Spark session, as Spark names them."
    )


class TagSettings(Section):
    """Events by tag."""

    enabled: bool = Field(default=True, description="Keep views by tag, and answer queries from them.")
    bucket: Literal["DAY", "HOUR", "MINUTE"] = Field(
        default="HOUR", description="What one partition of a tag's view holds; fixed when the first event is written."
    )
    gap_timeout_s: Seconds = Field(
        default=10.0, description="How long a query looks for an event that is missing before it fails."
    )
    gap_limit: int = Field(
        default=5000, ge=1, description="Most missing events of a journal that a query looks for; more fail at once."
    )
    page_size: int = Field(default=500, ge=1, description="Events that a query fetches at a time.")
    gather_ms: float = Field(
        default=2.0, ge=0, description="How long a query lets waiting events gather before it writes Marks for them."
    )
    redact: list[str] = Field(
        default=[], description="Tags whose events lose their payload when their journal's events are deleted."
    )
    retention_s: dict[str, Seconds] = Field(
        default={}, description="How long views keep events, by tag; `*` is for all other tags. Unset: forever."
    )


class HttpRegistrySettings(Section):
    """A schema registry that speaks Confluent's protocol."""

    username: str | None = Field(default=None, description="User to log in as (basic authentication); unset: no login.")
    password: SecretStr | None = Field(default=None, description="The user's password.")
    ca_location: str | None = Field(
        default=None, description="File with the certificates to trust; unset: those of the system."
    )
    certificate_location: str | None = Field(default=None, description="File with our own certificate, for mutual TLS.")
    key_location: str | None = Field(default=None, description="File with the key of our certificate.")
    key_password: SecretStr | None = Field(default=None, description="Password of that key.")
    timeout_s: Seconds = Field(default=10.0, description="Longest wait for an answer.")
    retries: int = Field(default=3, ge=0, description="How often a failed request is sent again.")


class RegistrySettings(Section):
    """Where Avro schemas are kept."""

    address: str = Field(
        default="log:headrace-schemas",
        description="log:TOPIC, folder:PATH, memory:, http(s)://HOST:PORT, or a plug-in's address.",
    )
    level: CompatibilityLevel = Field(
        default="FULL_TRANSITIVE", description="Compatibility level of subjects that have none of their own."
    )
    http: HttpRegistrySettings = HttpRegistrySettings()


class ClusterTlsSettings(Section):
    """Certificates of the connections between nodes; without them the nodes speak plain text."""

    ca_location: str | None = Field(
        default=None, description="File with the certificates to trust; nodes must show one signed by them."
    )
    certificate_location: str | None = Field(default=None, description="File with this node's certificate.")
    key_location: str | None = Field(default=None, description="File with the key of that certificate.")
    server_name: str | None = Field(
        default=None, description="The name that the nodes' certificates carry; unset: the host of each address."
    )


class ClusterSettings(Section):
    """Nodes that share partitions."""

    name: str = Field(
        default="headrace",
        pattern="^[A-Za-z0-9._-]{1,100}$",
        description="The cluster's name: what its topics, files and paths at the coordinator begin with.",
    )
    id: str | None = Field(
        default=None,
        pattern="^[A-Za-z0-9._-]{1,100}$",
        description="The cluster's id, which its partitions' logs carry; unset: its first leader makes one up.",
    )
    node_id: str | None = Field(
        default=None, description="This node's id, the same after a restart; unset: its host and port."
    )
    coordinator: str | None = Field(
        default=None,
        description="embedded:FOLDER, zookeeper://HOST:PORT, kafka://HOST:PORT; unset: where the log is.",
    )
    listen: str = Field(
        default="127.0.0.1:0", description="HOST:PORT where this node takes requests of others; port 0: any free one."
    )
    advertise: str | None = Field(
        default=None, description="HOST:PORT where others reach this node; unset: where it listens."
    )
    weight: Annotated[float, Field(gt=0, lt=1e9)] = Field(
        default=1.0, description="How much this node holds compared with others."
    )
    session_s: Annotated[float, Field(ge=1.0, le=300)] = Field(
        default=6.0, description="A node that is silent for so long is missed by the coordinator; fail-over is faster."
    )
    lease_s: Annotated[float, Field(ge=0.1, le=60)] = Field(
        default=0.5, description="How long an owner may answer reads after the log last confirmed its lease."
    )
    longest_lease_s: Annotated[float, Field(ge=0.1, le=60)] = Field(
        default=4.0,
        description="How long a lease may become where renewals are slow; at most cluster.lease_s: it never grows.",
    )
    absence_s: Seconds = Field(
        default=60.0, description="How long the place of a node that left is kept while other replicas are there."
    )
    rebalance_threshold: Annotated[float, Field(ge=0, le=10)] = Field(
        default=0.2, description="Share by which a node may be above or below its load before partitions move."
    )
    request_timeout_s: Seconds = Field(default=10.0, description="Deadline of a request that has none of its own.")
    max_requests_in_flight: Count = Field(
        default=10_000, description="Most requests on their way to one node; further ones are refused as Busy."
    )
    max_message_bytes: Count = Field(default=16_777_216, description="Largest request or reply between nodes.")
    tls: ClusterTlsSettings = ClusterTlsSettings()


class KeyspaceSettings(Section):
    """State by key, kept on the nodes that own it."""

    partitions: Count = Field(
        default=8, description="Partitions of a keyspace that names no number; it can't be changed later."
    )
    replicas: Count = Field(default=2, description="Nodes that have a copy of each partition, the owner included.")
    state_dir: str | None = Field(
        default=None,
        description="Where nodes keep copies; unset: in the embedded log's folder, or ./headrace-state.",
    )
    replies_kept_s: Seconds = Field(
        default=600.0, description="How long the reply to a message with an id is kept: a repeat gets it again."
    )
    reply_bytes_kept: Count = Field(default=16_384, description="Largest reply that is kept for repeats.")
    expire_every_s: Seconds = Field(default=1.0, description="How often an owner removes values that are due.")


class ServicesSettings(Section):
    """Real servers for development and tests."""

    cache_dir: str | None = Field(
        default=None,
        description="Where the command keeps fetched packages; unset: HEADRACE_CACHE, or the user's cache folder.",
    )
    data_dir: str | None = Field(
        default=None,
        description="Where `services up` keeps data; unset: HEADRACE_SERVICES_DIR, or ./.headrace/services.",
    )


class ObserveSettings(Section):
    """What the headrace command shows of itself."""

    log_level: LogLevel = Field(default="INFO", description="Lowest level that is shown.")
    log_format: Literal["console", "json"] = Field(default="console", description="Readable lines, or JSON lines.")
    metrics_port: Port | None = Field(
        default=None,
        description="Port for Prometheus on loopback, of the replication and the outbox's relay; 0: any free one.",
    )


class HeadraceSettings(Settings):
    """All settings of Headrace. An application may derive from it, or use it as a section of its own."""

    packaged_defaults: ClassVar[tuple[str, str] | None] = ("headrace.config", "defaults.toml")
    other_variables: ClassVar[frozenset[str]] = frozenset(
        {
            "HEADRACE_CACHE",
            "HEADRACE_CONFIG",
            "HEADRACE_CRASH_AT",
            "HEADRACE_CRASH_FILE",
            "HEADRACE_MAVEN_REPOSITORY",
            "HEADRACE_PYTHON",
            "HEADRACE_SERVICES_DIR",
        }
    )

    log: LogSettings = LogSettings()
    store: StoreSettings = StoreSettings()
    journal: JournalSettings = JournalSettings()
    pipeline: PipelineSettings = PipelineSettings()
    tags: TagSettings = TagSettings()
    registry: RegistrySettings = RegistrySettings()
    outbox: OutboxSettings = OutboxSettings()
    cluster: ClusterSettings = ClusterSettings()
    gateway: GatewaySettings = GatewaySettings()
    grpc: GrpcSettings = GrpcSettings()
    keyspace: KeyspaceSettings = KeyspaceSettings()
    services: ServicesSettings = ServicesSettings()
    observe: ObserveSettings = ObserveSettings()
