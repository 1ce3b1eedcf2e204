"""Headrace's own settings. Their defaults are here and, for readers, in defaults.toml; a test keeps them equal."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr

from headrace.config.gateway_settings import GatewaySettings
from headrace.config.grpc_settings import GrpcSettings
from headrace.config.settings import Section, Settings

__all__ = [
    "CassandraStoreSettings",
    "ClusterSettings",
    "ClusterTlsSettings",
    "EmbeddedLogSettings",
    "EmbeddedStoreSettings",
    "HeadraceSettings",
    "HttpRegistrySettings",
    "JournalHeadSettings",
    "JournalSettings",
    "KafkaLogSettings",
    "KeyspaceSettings",
    "LogSettings",
    "ObserveSettings",
    "OutboxSettings",
    "PipelineSettings",
    "RegistrySettings",
    "ServicesSettings",
    "StoreSettings",
    "TagSettings",
]

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
OutboxBackend = Literal["db", "kafka", "kafka_async"]
OutboxDelivery = Literal["at_least_once", "exactly_once"]
OutboxPoison = Literal["skip", "block_key", "block_topic"]
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
Consistency = Literal["ONE", "LOCAL_ONE", "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL"]
CompatibilityLevel = Literal[
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"
]
Port = Annotated[int, Field(ge=0, le=65_535)]


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


class OutboxSettings(Section):
    """Publishing in the application's own SQL transaction, and sending from there."""

    database: SecretStr | None = Field(
        default=None, description="The database, as SQLAlchemy names it: postgresql://…, mysql://…, sqlite:///file."
    )
    table_prefix: str = Field(
        default="kafka_", pattern="^[a-z_][a-z0-9_]{0,29}$", description="Prefix of the table names."
    )
    backend: OutboxBackend = Field(
        default="db", description="db: the outbox; kafka: send at once and wait for acks; kafka_async: don't wait."
    )
    buckets: Count = Field(default=1, description="Parts of a topic that are sent in parallel; a key stays in one.")
    buckets_by_topic: dict[str, Count] = Field(default={}, description="The same for single topics.")
    max_message_bytes: Count = Field(
        default=1_048_588, description="The brokers' limit on a record; larger ones are refused at publish."
    )
    max_message_bytes_by_topic: dict[str, Count] = Field(default={}, description="The same for single topics.")
    threads: int | None = Field(default=1, description="Workers of a relay.")
    batch_size: Count = Field(default=1000, description="Most messages that are sent and deleted together.")
    batch_bytes: Count = Field(default=16_777_216, description="Most bytes of a batch; a single message may be larger.")
    turn_batches: Count = Field(default=10, description="Full batches of a topic before others have their turn.")
    poll_interval_s: Seconds = Field(default=0.5, description="Longest time between two looks at an idle table.")
    lease_s: Seconds = Field(default=60.0, description="A lease that was not renewed for this long is free.")
    send_timeout_s: Seconds = Field(default=30.0, description="Longest wait for the log before a topic is held back.")
    first_retry_s: Seconds = Field(default=0.1, description="Wait after the first error of a topic; it doubles.")
    max_retry_s: Seconds = Field(default=60.0, description="Longest wait after an error of a topic.")
    compact_topics: list[str] = Field(
        default=[], description="Topics of which only a key's last message in a batch is sent."
    )
    log_topics: list[str] = Field(default=[], description="Topics whose messages are logged, decoded.")
    poison: OutboxPoison = Field(
        default="skip", description="What a message that can't be sent holds back: nothing, its key, its topic."
    )
    poison_by_topic: dict[str, OutboxPoison] = Field(default={}, description="The same for single topics.")
    delivery: OutboxDelivery = Field(default="at_least_once", description="exactly_once uses transactions of the log.")
    source: str = Field(
        default="", description="Name of this database among all outboxes of the log; exactly_once needs it."
    )
    keep_sent_topics: list[str] = Field(
        default=[], description='Topics whose messages are kept after they were sent, for audit; "*" for all.'
    )
    keep_sent_s: Seconds = Field(default=604_800.0, description="How long sent messages are kept.")
    metrics_interval_s: Seconds = Field(default=15.0, description="Time between two counts of what is pending.")

    def buckets_of(self, topic: str) -> int:
        """Return how many buckets the topic has."""
        return self.buckets_by_topic.get(topic, self.buckets)

    def limit_of(self, topic: str) -> int:
        """Return the largest record the topic takes."""
        return self.max_message_bytes_by_topic.get(topic, self.max_message_bytes)

    def keeps_sent(self, topic: str) -> bool:
        """Return True if messages of the topic are kept after they were sent."""
        return topic in self.keep_sent_topics or "*" in self.keep_sent_topics

    def poison_policy_of(self, topic: str) -> OutboxPoison:
        """Return what a poison message of the topic holds back."""
        return self.poison_by_topic.get(topic, self.poison)


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
        default=None, description="Where fetched packages are kept; unset: the user's cache folder."
    )
    data_dir: str | None = Field(
        default=None, description="Where servers keep their data; unset: below the cache folder."
    )


class ObserveSettings(Section):
    """What the headrace command shows of itself."""

    log_level: LogLevel = Field(default="INFO", description="Lowest level that is shown.")
    log_format: Literal["console", "json"] = Field(default="console", description="Readable lines, or JSON lines.")
    metrics_port: Port | None = Field(
        default=None, description="Port for Prometheus on loopback; 0: any free one; unset: none."
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
