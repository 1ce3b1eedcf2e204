"""The errors that Headrace raises, in families by what the caller can do about them.

    HeadraceError
    ├── Refused                     the request is wrong as it stands; don't retry it unchanged
    │   ├── BadArgument             a value that no call accepts
    │   ├── NotGiven                something that a call or a command needs is missing
    │   ├── UnknownTopic
    │   ├── TopicExists
    │   ├── UnknownPartition
    │   ├── OffsetOutOfRange        the log does not hold that offset (any more, or yet)
    │   ├── UnreadableRecord        the log holds a record that can't be decoded
    │   ├── RecordTooLarge
    │   ├── TimestampTooFarAhead
    │   ├── Fenced                  another process took over; this owner must stop
    │   ├── TagTrimmed              events under a tag were removed because of their age
    │   ├── SlotsMoved              another worker, or a command, moved a projection's offsets
    │   ├── TransactionEnded        a handler tried to end the SQL transaction that it is called in
    │   ├── TransactionLost         a handler has ended the SQL transaction that it is called in
    │   ├── BadToken                a consistency token that this log never gave
    │   ├── TokenOfOtherTopic       a consistency token of a topic that is gone, or of another cluster
    │   ├── TokenAhead              a consistency token of a record that the log does not have
    │   ├── NotOwner                the group gave the partition to another member
    │   ├── NotPartitionOwner       another node of the cluster owns the partition
    │   ├── RefusedByPeer           another node refused, with an error that has no name of its own here
    │   ├── PartitionClosed         the partition's topic was replaced by another one
    │   ├── TransactionMisused      begin, append, commit or abort out of order
    │   ├── WrongSeqNr              the journal is not at the number that the append expects
    │   ├── TopicShared             other services read the topic, and would not understand the operation
    │   ├── VoidAppend              the append is in the log, and is ignored
    │   ├── AppendIdReused          the append id belongs to other events
    │   ├── JournalPurged           the journal that a live read follows has ended
    │   ├── TopicClaimed            a command engine writes the topic's journals, and nobody else may
    │   ├── UnknownCommand          an engine has no handler for this kind of command
    │   ├── CommandFailed           the application's handler, or an event handler, raised an error
    │   ├── CommandTooLarge         what a command wants to write, or its reply, is too large
    │   ├── CommandIdReused         the command id belongs to another command
    │   ├── CommandTooLate          a retry whose command id may have been forgotten already
    │   ├── WrongVersion            the aggregate is not at the version that the command expects
    │   ├── UpcastFailed            an old event that an engine's upcasters can't read
    │   ├── FoldFailed              an event of a journal that an engine's event handler can't apply
    │   ├── EventsMissing           a journal that lacks events which a state follows from
    │   ├── RebuildRefused          an engine's state can't be rebuilt as things are
    │   ├── TargetDiffers           the target of a copy has events that the source lacks
    │   ├── NoSchemaFor             a class that Avro can't describe
    │   ├── BadSchema               not a valid Avro schema
    │   ├── IncompatibleSchema      a schema that would break readers or writers of another version
    │   ├── UnknownSchema           the registry has no schema with that id
    │   ├── UnknownSubject
    │   ├── NotRegistered           a schema that its subject lacks, and that may not be registered automatically
    │   ├── NotEncodable            a value that does not fit its schema
    │   ├── NotFramed               bytes that are not framed Avro
    │   ├── NotDecodable            Avro that its reader can't decode
    │   ├── PublishedTooLate        a message for a transaction that is being committed already
    │   ├── NoStateYet              a snapshot as of a number that its journal has not reached
    │   ├── NotStorable             a key or a value that does not fit its state
    │   ├── NotReadable             stored bytes that are no key, value or checkpoint of a state
    │   ├── KeyPresent              an insert of a key that has a value
    │   ├── NotUnique               a value that another key of the state has claimed
    │   ├── StateReadOnly           a write to a state that this process does not own
    │   ├── Unauthenticated         a request without credentials, or with wrong ones
    │   ├── GatewayRefused          the gateway refused a request of its client
    │   ├── PushRefused             an outside service will never take a push
    │   ├── SocketRefused           the gateway closed a socket for good
    │   ├── UnknownMessage          a keyspace has no handler for it
    │   ├── RequestFailed           a keyspace's handler raised; nothing was written
    │   ├── WritesInRead            a keyspace's handler is marked as a read, and wrote
    │   ├── AskCycle                a handler asks a key that waits for it
    │   ├── MessageIdReused         the message id belongs to another message
    │   ├── ReplyNotKept            the message was handled before, and its reply was not kept
    │   ├── Forbidden               the server refuses this user
    │   ├── OriginRefused           a web page or a host name that the gateway does not answer
    │   ├── NoSuchRoute             a path, or a method of a path, that the gateway does not serve
    │   ├── NotFound                the gateway serves such things, and has none with this name
    │   ├── PreconditionFailed      the value is not the one that the request names
    │   ├── RejectedCommand         an engine's application does not accept the command
    │   ├── BodyTooLarge            a request with more bytes than the gateway takes
    │   ├── WrongMediaType          a request in, or for, a form that the route does not have
    │   ├── ReadOnlyHandle          a write through something that was opened for reading
    │   ├── ContextEnded            a handler's context was used after the handler had returned
    │   └── Closed                  used after it was closed
    ├── Unavailable                 retry later; `outcome_known` says whether it may have happened
    │   ├── Unreachable
    │   ├── FileUnusable            a file of this machine could not be read or written
    │   ├── TimedOut
    │   ├── TransactionFailed
    │   ├── ReadAgain               the journal changed under the reader
    │   ├── ReplicationStalled      a replication with an end has waited too long for the store to move
    │   ├── OperationFailed         the server answered with an error that has no class here
    │   ├── TagBuilding             a tag is being back-filled
    │   ├── StateOffline            a state is being restored from its changelog
    │   ├── StateConflict           a key of a state changed under a unit of work
    │   ├── StateStale              a copy of a state is further behind than the read allows
    │   ├── SubscriptionEnded       a subscriber must resume after the last offset it got
    │   ├── HandlerFailed           a projection's handler could not handle an event
    │   ├── ProjectionRebuilding    a rebuild holds a projection's offsets
    │   ├── CommandExpired          a command's deadline passed before it was handled
    │   ├── OutcomeUnknown          a command was sent to the log, and nobody can tell whether it was committed
    │   ├── ReplyNotReadable        it was handled, and the caller can't read the reply
    │   ├── Busy                    as many requests are in flight as may be
    │   ├── GatewaySuspended        partitions that requests need have no owner
    │   ├── GatewayUnavailable      the gateway can't answer its client now
    │   ├── RateExceeded            a caller sends requests faster than it may
    │   └── WorkerFailed
    └── Misconfigured               an operator must act; the message ends with what to run
        ├── InvalidSettings
        ├── MissingExtra
        ├── NoStore                 journals on Kafka, and no store was named
        ├── UnknownBackend
        ├── ImpossibleTopicChange
        ├── WrongPartitionCount
        ├── ForeignCluster          another cluster uses the same topics and prefix
        ├── NodeListenFailed        a node can't listen at its address
        ├── WrongGroupSize          nodes disagree on the partitions of a group
        ├── DuplicateNode           another process has this node's id
        ├── IncompatibleData        the folder was written by another version
        ├── MissingTables           the database has no outbox yet
        ├── OutdatedTables          the database's outbox is of an earlier version
        ├── RecordsLost             the log dropped what the store never got
        ├── JournalTopicExpires     a journal's topic is configured to drop records, replicated or not
        ├── RecordsExpireSoon       a shared topic is about to drop what the store lacks
        ├── SeveralStores           another store replicates a topic, and may lack what this one has
        ├── RetentionTooLong        the log keeps records for longer than the store remembers deletions
        ├── ReplayTooOld            the store has forgotten deletions that a replay would need
        ├── LayoutLost              neither log nor store knows a topic's layout any more
        ├── JournalHeld             a record of the journal can't be decoded
        ├── KeyspaceMissing         Cassandra has no such keyspace
        ├── NoServer                no server of `headrace services` was started, or none is up
        ├── NothingThere            a folder holds no log, store or registry
        ├── FolderUnusable          a folder can't be created
        ├── PortUnusable            metrics can't be served at that port
        ├── ListenFailed            the gateway can't listen at its address
        ├── GatewayUnprotected      the gateway would serve other machines without authentication
        ├── GrpcUnprotected         a node would take commands of other machines without authentication
        ├── GrpcListenFailed        a node can't take commands at its address
        ├── KeysUnusable            keys for tokens or signatures can't be read
        ├── IntegrityBroken         the store holds rows that no log could have caused
        ├── SnapshotDamaged         the store holds a snapshot that can't be decoded
        ├── TagsDisabled            views by tag are switched off
        ├── TagsInUse               the store keeps views by tag, and this process would not
        ├── TagsIncomplete          the store has journals that its views by tag lack
        ├── WrongBucketSize         views by tag were made with another size
        ├── TagViewsLost            tables of views by tag were emptied or replaced
        ├── TagGap                  an event under a tag is missing
        ├── HandlerCommitted        a projection's handler committed in the middle of a batch
        ├── ProjectionChanged       a projection's definition has changed since it ran
        ├── OffsetAhead             a projection's offset is in the future
        ├── DeadLettersFull         no more events can be set aside
        ├── StateBroken             a state's folder can't be read
        ├── StateLocked             another process uses a state's folder
        ├── StateDiskFull           a state's folder has no space left
        ├── StateOutOfFiles         too many files are open to open a state's
        ├── StateAhead              a state has records that its changelog lost
        ├── StateRedeclared         a state that is declared with another type than it was written with
        ├── WrongStateTopic         a changelog that can't become what its state needs
        ├── InputRecordsLost        a topic ends before what an engine has read of it
        ├── WrongEngineTopic        a topic that an engine can't use as it is
        ├── FetchFailed
        ├── ChecksumMismatch
        ├── UnsupportedPlatform
        └── ServiceFailed

Each message is made from the error's fields. All errors survive pickling, because Spark workers and child processes
return them to their parents.
"""

from __future__ import annotations

from headrace.errors.cluster import (
    DuplicateNode,
    ForeignCluster,
    NodeListenFailed,
    NotPartitionOwner,
    PartitionClosed,
    RefusedByPeer,
    WrongGroupSize,
)
from headrace.errors.engines import (
    CommandExpired,
    CommandFailed,
    CommandIdReused,
    CommandTooLarge,
    CommandTooLate,
    EventsMissing,
    FoldFailed,
    InputRecordsLost,
    OutcomeUnknown,
    RebuildRefused,
    RejectedCommand,
    ReplyNotReadable,
    UnknownCommand,
    UpcastFailed,
    WrongEngineTopic,
    WrongVersion,
)
from headrace.errors.families import (
    BadArgument,
    Busy,
    Closed,
    ContextEnded,
    FileUnusable,
    Forbidden,
    HeadraceError,
    Misconfigured,
    NotGiven,
    OperationFailed,
    ReadOnlyHandle,
    Refused,
    TimedOut,
    Unavailable,
    Unreachable,
    WorkerFailed,
)
from headrace.errors.gateway import (
    BodyTooLarge,
    GatewayRefused,
    GatewaySuspended,
    GatewayUnavailable,
    GatewayUnprotected,
    GrpcListenFailed,
    GrpcUnprotected,
    KeysUnusable,
    ListenFailed,
    NoSuchRoute,
    NotFound,
    OriginRefused,
    PreconditionFailed,
    PushRefused,
    RateExceeded,
    SocketRefused,
    Unauthenticated,
    WrongMediaType,
)
from headrace.errors.journals import (
    AppendIdReused,
    IntegrityBroken,
    JournalHeld,
    JournalPurged,
    JournalTopicExpires,
    KeyspaceMissing,
    LayoutLost,
    NoStateYet,
    ReadAgain,
    RecordsExpireSoon,
    RecordsLost,
    ReplayTooOld,
    ReplicationStalled,
    RetentionTooLong,
    SeveralStores,
    SnapshotDamaged,
    TargetDiffers,
    TopicClaimed,
    TopicShared,
    VoidAppend,
    WrongSeqNr,
)
from headrace.errors.keyspaces import (
    AskCycle,
    KeyPresent,
    MessageIdReused,
    NotReadable,
    NotStorable,
    NotUnique,
    ReplyNotKept,
    RequestFailed,
    StateAhead,
    StateBroken,
    StateConflict,
    StateDiskFull,
    StateLocked,
    StateOffline,
    StateOutOfFiles,
    StateReadOnly,
    StateRedeclared,
    StateStale,
    SubscriptionEnded,
    UnknownMessage,
    WritesInRead,
    WrongStateTopic,
)
from headrace.errors.log import (
    BadToken,
    Fenced,
    ImpossibleTopicChange,
    NotOwner,
    OffsetOutOfRange,
    RecordTooLarge,
    TimestampTooFarAhead,
    TokenAhead,
    TokenOfOtherTopic,
    TopicExists,
    TransactionFailed,
    TransactionMisused,
    UnknownPartition,
    UnknownTopic,
    UnreadableRecord,
    WrongPartitionCount,
)
from headrace.errors.outbox import MissingTables, OutdatedTables, PublishedTooLate
from headrace.errors.projections import (
    DeadLettersFull,
    HandlerCommitted,
    HandlerFailed,
    OffsetAhead,
    ProjectionChanged,
    ProjectionRebuilding,
    SlotsMoved,
    TransactionEnded,
    TransactionLost,
)
from headrace.errors.schemas import (
    BadSchema,
    IncompatibleSchema,
    NoSchemaFor,
    NotDecodable,
    NotEncodable,
    NotFramed,
    NotRegistered,
    UnknownSchema,
    UnknownSubject,
)
from headrace.errors.setup import (
    ChecksumMismatch,
    FetchFailed,
    FolderUnusable,
    IncompatibleData,
    InvalidSettings,
    MissingExtra,
    NoServer,
    NoStore,
    NothingThere,
    PortUnusable,
    ServiceFailed,
    SettingsProblem,
    UnknownBackend,
    UnsupportedPlatform,
)
from headrace.errors.tags import (
    TagBuilding,
    TagGap,
    TagsDisabled,
    TagsIncomplete,
    TagsInUse,
    TagTrimmed,
    TagViewsLost,
    WrongBucketSize,
)

__all__ = [
    "AppendIdReused",
    "AskCycle",
    "BadArgument",
    "BadSchema",
    "BadToken",
    "BodyTooLarge",
    "Busy",
    "ChecksumMismatch",
    "Closed",
    "CommandExpired",
    "CommandFailed",
    "CommandIdReused",
    "CommandTooLarge",
    "CommandTooLate",
    "ContextEnded",
    "DeadLettersFull",
    "DuplicateNode",
    "EventsMissing",
    "Fenced",
    "FetchFailed",
    "FileUnusable",
    "FoldFailed",
    "FolderUnusable",
    "Forbidden",
    "ForeignCluster",
    "GatewayRefused",
    "GatewaySuspended",
    "GatewayUnavailable",
    "GatewayUnprotected",
    "GrpcListenFailed",
    "GrpcUnprotected",
    "HandlerCommitted",
    "HandlerFailed",
    "HeadraceError",
    "ImpossibleTopicChange",
    "IncompatibleData",
    "IncompatibleSchema",
    "InputRecordsLost",
    "IntegrityBroken",
    "InvalidSettings",
    "JournalHeld",
    "JournalPurged",
    "JournalTopicExpires",
    "KeyPresent",
    "KeysUnusable",
    "KeyspaceMissing",
    "LayoutLost",
    "ListenFailed",
    "MessageIdReused",
    "Misconfigured",
    "MissingExtra",
    "MissingTables",
    "NoSchemaFor",
    "NoServer",
    "NoStateYet",
    "NoStore",
    "NoSuchRoute",
    "NodeListenFailed",
    "NotDecodable",
    "NotEncodable",
    "NotFound",
    "NotFramed",
    "NotGiven",
    "NotOwner",
    "NotPartitionOwner",
    "NotReadable",
    "NotRegistered",
    "NotStorable",
    "NotUnique",
    "NothingThere",
    "OffsetAhead",
    "OffsetOutOfRange",
    "OperationFailed",
    "OriginRefused",
    "OutcomeUnknown",
    "OutdatedTables",
    "PartitionClosed",
    "PortUnusable",
    "PreconditionFailed",
    "ProjectionChanged",
    "ProjectionRebuilding",
    "PublishedTooLate",
    "PushRefused",
    "RateExceeded",
    "ReadAgain",
    "ReadOnlyHandle",
    "RebuildRefused",
    "RecordTooLarge",
    "RecordsExpireSoon",
    "RecordsLost",
    "Refused",
    "RefusedByPeer",
    "RejectedCommand",
    "ReplayTooOld",
    "ReplicationStalled",
    "ReplyNotKept",
    "ReplyNotReadable",
    "RequestFailed",
    "RetentionTooLong",
    "ServiceFailed",
    "SettingsProblem",
    "SeveralStores",
    "SlotsMoved",
    "SnapshotDamaged",
    "SocketRefused",
    "StateAhead",
    "StateBroken",
    "StateConflict",
    "StateDiskFull",
    "StateLocked",
    "StateOffline",
    "StateOutOfFiles",
    "StateReadOnly",
    "StateRedeclared",
    "StateStale",
    "SubscriptionEnded",
    "TagBuilding",
    "TagGap",
    "TagTrimmed",
    "TagViewsLost",
    "TagsDisabled",
    "TagsInUse",
    "TagsIncomplete",
    "TargetDiffers",
    "TimedOut",
    "TimestampTooFarAhead",
    "TokenAhead",
    "TokenOfOtherTopic",
    "TopicClaimed",
    "TopicExists",
    "TopicShared",
    "TransactionEnded",
    "TransactionFailed",
    "TransactionLost",
    "TransactionMisused",
    "Unauthenticated",
    "Unavailable",
    "UnknownBackend",
    "UnknownCommand",
    "UnknownMessage",
    "UnknownPartition",
    "UnknownSchema",
    "UnknownSubject",
    "UnknownTopic",
    "Unreachable",
    "UnreadableRecord",
    "UnsupportedPlatform",
    "UpcastFailed",
    "VoidAppend",
    "WorkerFailed",
    "WritesInRead",
    "WrongBucketSize",
    "WrongEngineTopic",
    "WrongGroupSize",
    "WrongMediaType",
    "WrongPartitionCount",
    "WrongSeqNr",
    "WrongStateTopic",
    "WrongVersion",
]
