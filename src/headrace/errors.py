"""The errors that Headrace raises, in families by what the caller can do about them.

    HeadraceError
    ├── Refused                     the request is wrong as it stands; don't retry it unchanged
    │   ├── BadArgument             a value that no call accepts
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
    │   ├── NoSuchRoute             a path, or a method of a path, that the gateway does not serve
    │   ├── NotFound                the gateway serves such things, and has none with this name
    │   ├── PreconditionFailed      the value is not the one that the request names
    │   ├── RejectedCommand         an engine's application does not accept the command
    │   ├── BodyTooLarge            a request with more bytes than the gateway takes
    │   ├── WrongMediaType          a request in, or for, a form that the route does not have
    │   ├── ReadOnlyHandle          a write through something that was opened for reading
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
    │   ├── Busy                    as many requests are in flight as may be
    │   ├── GatewaySuspended        partitions that requests need have no owner
    │   ├── GatewayUnavailable      the gateway can't answer its client now
    │   ├── RateExceeded            a caller sends requests faster than it may
    │   └── WorkerFailed
    └── Misconfigured               an operator must act; the message ends with what to run
        ├── InvalidSettings
        ├── MissingExtra
        ├── UnknownBackend
        ├── ImpossibleTopicChange
        ├── WrongPartitionCount
        ├── ForeignCluster          another cluster uses the same topics and prefix
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
        ├── NothingThere            a folder holds no log, store or registry
        ├── FolderUnusable          a folder can't be created
        ├── PortUnusable            metrics can't be served at that port
        ├── ListenFailed            the gateway can't listen at its address
        ├── GatewayUnprotected      the gateway would serve other machines without authentication
        ├── GrpcUnprotected         a node would take commands of other machines without authentication
        ├── GrpcListenFailed        a node can't take commands at its address
        ├── KeysUnusable            keys for tokens or signatures can't be read
        ├── IntegrityBroken         the store holds rows that no log could have caused
        ├── TagsDisabled            views by tag are switched off
        ├── TagsInUse               the store keeps views by tag, and this process would not
        ├── TagsIncomplete          the store has journals that its views by tag lack
        ├── WrongBucketSize         views by tag were made with another size
        ├── TagViewsLost            tables of views by tag were emptied or replaced
        ├── TagGap                  an event under a tag is missing
        ├── ProjectionChanged       a projection's definition has changed since it ran
        ├── OffsetAhead             a projection's offset is in the future
        ├── DeadLettersFull         no more events can be set aside
        ├── StateBroken             a state's folder can't be read
        ├── StateLocked             another process uses a state's folder
        ├── StateDiskFull           a state's folder has no space left
        ├── StateAhead              a state has records that its changelog lost
        ├── WrongStateTopic         a changelog that can't become what its state needs
        ├── WrongEngineTopic        a topic that an engine can't use as it is
        ├── FetchFailed
        ├── ChecksumMismatch
        ├── UnsupportedPlatform
        └── ServiceFailed

Each message is made from the error's fields. All errors survive pickling, because Spark workers and child processes
return them to their parents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

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
    "HandlerFailed",
    "HeadraceError",
    "ImpossibleTopicChange",
    "IncompatibleData",
    "IncompatibleSchema",
    "IntegrityBroken",
    "InvalidSettings",
    "JournalHeld",
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
    "NoStateYet",
    "NoSuchRoute",
    "NotDecodable",
    "NotEncodable",
    "NotFound",
    "NotFramed",
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
    "RequestFailed",
    "RetentionTooLong",
    "ServiceFailed",
    "SettingsProblem",
    "SeveralStores",
    "SlotsMoved",
    "SocketRefused",
    "StateAhead",
    "StateBroken",
    "StateConflict",
    "StateDiskFull",
    "StateLocked",
    "StateOffline",
    "StateReadOnly",
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
    "TransactionFailed",
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


def _rebuild(kind: type[HeadraceError], fields: Mapping[str, Any]) -> HeadraceError:
    error = kind.__new__(kind)
    error.__dict__.update(fields)
    return error


class HeadraceError(Exception):
    """The root of all errors that Headrace raises on purpose."""

    says: ClassVar[str] = "Headrace failed"

    def __str__(self) -> str:
        return self.says.format_map(vars(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), dict(vars(self)))


class Refused(HeadraceError):
    """The request is wrong as it stands; sending it again unchanged will be refused again."""


class Unavailable(HeadraceError):
    """Something is not available; a retry may work. Nothing was done unless `outcome_known` is False."""

    outcome_known: bool = True


class Misconfigured(HeadraceError):
    """An operator must act; the message ends with what to do."""


_COMMIT_UNKNOWN = "it may or may not have been committed; take the id again, then read what is there"


def _suffix(outcome_known: bool) -> str:
    return "nothing was done" if outcome_known else "it may or may not have happened"


@dataclass(eq=False)
class BadArgument(Refused):
    """A value that no call accepts."""

    name: str
    value: object
    rule: str
    says: ClassVar[str] = "{name} is {value!r}, but {rule}"


@dataclass(eq=False)
class UnknownTopic(Refused):
    """The topic does not exist."""

    topic: str
    says: ClassVar[str] = (
        "there is no topic {topic!r}; create it first (log.admin.create, or `headrace topic create {topic}`, "
        "for journals `headrace topic create {topic} --journal`)"
    )


@dataclass(eq=False)
class TopicExists(Refused):
    """A topic of that name exists already."""

    topic: str
    says: ClassVar[str] = "topic {topic!r} exists already; use it, configure it, or choose another name"


@dataclass(eq=False)
class UnknownPartition(Refused):
    """The topic has no such partition."""

    topic: str
    partition: int
    partitions: int
    says: ClassVar[str] = "topic {topic!r} has no partition {partition}; it has {partitions}, numbered from 0"


@dataclass(eq=False)
class OffsetOutOfRange(Refused):
    """The log does not hold that offset; `start` and `end` (exclusive) are what it holds."""

    topic: str
    partition: int
    offset: int
    start: int
    end: int

    def __str__(self) -> str:
        where = f"offset {self.offset} of {self.topic}[{self.partition}]"
        held = f"the log holds [{self.start}, {self.end})"
        if self.offset < self.start:
            lost = f"{self.start - self.offset} records from {self.offset} to {self.start - 1} are gone"
            return f"{where} is out of range: {held}; {lost}, start at {self.start} or restore them"
        return f"{where} is out of range: {held}; nothing was ever written there, start at {self.end} or lower"


@dataclass(eq=False)
class UnreadableRecord(Refused):
    """The log holds something at an offset that is not a record; all records before it were returned, none after it."""

    topic: str
    partition: int
    offset: int
    reason: str

    def __str__(self) -> str:
        return (
            f"offset {self.offset} of {self.topic}[{self.partition}] holds no readable record: {self.reason}; "
            f"go on at {self.offset + 1} to leave it out (a member of a group commits that offset)"
        )


@dataclass(eq=False)
class RecordTooLarge(Refused):
    """A record is larger than its topic allows."""

    topic: str
    size_bytes: int
    limit_bytes: int
    says: ClassVar[str] = (
        "a record of {size_bytes} bytes does not fit topic {topic!r}, which takes {limit_bytes}; "
        "split it, or raise max_record_bytes of the topic"
    )


@dataclass(eq=False)
class TimestampTooFarAhead(Refused):
    """A record's timestamp is further in the future than its topic allows."""

    topic: str
    timestamp_ms: int | None
    bound_ms: int
    says: ClassVar[str] = (
        "a record for topic {topic!r} is stamped {timestamp_ms}, more than {bound_ms} ms ahead of the log's clock; "
        "check this machine's clock"
    )


@dataclass(eq=False)
class Fenced(Refused):
    """This owner of a transactional id is not its owner any more, and must stop.

    A successor took the id over, or the log ended a transaction that was open for too long. Nothing of what this
    owner still had open was written, unless `outcome_known` is False: then a commit was on its way, and may have come
    first.
    """

    transactional_id: str
    outcome_known: bool = True

    def __str__(self) -> str:
        ended = "nothing it had open was written" if self.outcome_known else _COMMIT_UNKNOWN
        return (
            f"transactional id {self.transactional_id!r} was taken over by a newer owner, or its transaction was open "
            f"for too long; this owner must stop: {ended}"
        )


@dataclass(eq=False)
class TagTrimmed(Refused):
    """Events that a query would have to return were removed from the tag's view because of their age."""

    tag: str
    asked_from: str
    before_ms: int
    last: str

    def __str__(self) -> str:
        time = datetime.fromtimestamp(self.before_ms / 1000, UTC).isoformat()
        return (
            f"the events of tag {self.tag!r} from before {time} were removed, up to offset {self.last}, and "
            f"{self.asked_from} is before that; to skip them, begin after {self.last} (queries: skip_trimmed; "
            f"headrace projection offset set, or rebuild --from)"
        )


@dataclass(eq=False)
class SlotsMoved(Refused):
    """A projection's offsets have changed since this worker stored them; its current work was not stored."""

    projection: str
    says: ClassVar[str] = (
        "offsets of projection {projection!r} were moved by another worker or a command; "
        "load them again and continue from there"
    )


@dataclass(eq=False)
class BadToken(Refused):
    """A text that is no consistency token of this log."""

    reason: str
    says: ClassVar[str] = (
        "the consistency token can't be used: {reason}; pass on, unchanged, what an append, a command or a write gave"
    )


@dataclass(eq=False)
class TokenOfOtherTopic(Refused):
    """A consistency token names a topic by an id that the topic of this name does not have.

    `found_topic_id` is empty if there is no topic of this name.
    """

    topic: str
    topic_id: str
    found_topic_id: str

    def __str__(self) -> str:
        found = f"that topic has the id {self.found_topic_id!r}" if self.found_topic_id else "there is no such topic"
        return (
            f"the consistency token is of topic {self.topic!r} with the id {self.topic_id!r}, and {found} here: the "
            "topic was deleted since, or the token is of another cluster; take the token of a newer write"
        )


@dataclass(eq=False)
class TokenAhead(Refused):
    """A consistency token names a record that the log does not have: acknowledged records were lost, or it was made up.

    `end` is the offset that the next record gets.
    """

    topic: str
    partition: int
    offset: int
    end: int
    says: ClassVar[str] = (
        "the consistency token names offset {offset} of {topic}[{partition}], which ends at {end}: the log has lost "
        "records, or never had this one; read without the token to see what is there"
    )


@dataclass(eq=False)
class NotOwner(Refused):
    """This member does not own the partitions that it tried to commit."""

    group: str
    detail: str
    says: ClassVar[str] = "group {group!r} refused the commit: {detail}; the new owner starts from the last commit"


@dataclass(eq=False)
class NotPartitionOwner(Refused):
    """This node does not own the partition, and did nothing; `owner` is the node that the log names, or empty."""

    topic: str
    partition: int
    node: str
    owner: str

    def __str__(self) -> str:
        where = f"ask node {self.owner!r}" if self.owner else "nobody is known to own it yet, ask again"
        return f"node {self.node!r} does not own {self.topic}[{self.partition}]; nothing was done: {where}"


@dataclass(eq=False)
class RefusedByPeer(Refused):
    """A handler at another node refused, with an error of the application's own."""

    peer: str
    reason: str
    says: ClassVar[str] = "node {peer!r} refused the request: {reason}"


@dataclass(eq=False)
class PartitionClosed(Refused):
    """The partition was closed for good when its topic was replaced by one with another number of partitions."""

    topic: str
    partition: int
    epoch: int
    says: ClassVar[str] = (
        "{topic}[{partition}] was closed after epoch {epoch}: its topic was replaced; use the topic that replaced it"
    )


@dataclass(eq=False)
class TransactionMisused(Refused):
    """The calls of a transaction came in the wrong order."""

    transactional_id: str
    problem: str
    says: ClassVar[str] = "transaction {transactional_id!r}: {problem}"


@dataclass(eq=False)
class WrongSeqNr(Refused):
    """The journal is not at the expected number: another process wrote to it, or the caller is behind."""

    key: str
    expected: int
    actual: int
    says: ClassVar[str] = (
        "cannot append to {key!r}: expected seq_nr {expected}, journal is at {actual}; reload and decide again"
    )


@dataclass(eq=False)
class TopicShared(Refused):
    """A checked append to a shared topic: the topic's other readers would show events that were refused."""

    topic: str
    operation: str
    says: ClassVar[str] = (
        "{operation} is refused in topic {topic!r}: it is shared with services that don't know checked appends, "
        "and would show events that were refused; append without expected, from one writer for each journal"
    )


@dataclass(eq=False)
class VoidAppend(Refused):
    """The append was written after a record that makes it void; its events will never be read."""

    key: str
    reason: str
    says: ClassVar[str] = "the append to {key!r} is void: {reason}; reload and decide again"


@dataclass(eq=False)
class AppendIdReused(Refused):
    """An append id names one append: its retries carry the same events, and no other append carries it."""

    key: str
    append_id: str
    says: ClassVar[str] = (
        "append id {append_id!r} was used for other events of {key!r}; "
        "give every append an id of its own, and repeat it only with the same events"
    )


@dataclass(eq=False)
class TopicClaimed(Refused):
    """A command engine is the only writer of the topic's journals; others would make its events void."""

    topic: str
    engine: str
    operation: str
    says: ClassVar[str] = (
        "{operation} is refused in topic {topic!r}: engine {engine!r} is the only writer of its journals; "
        "send the engine a command instead"
    )


@dataclass(eq=False)
class UnknownCommand(Refused):
    """An engine was sent a command or an event that it has no handler for."""

    engine: str
    kind: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        known = ", ".join(self.known) or "none"
        return f"engine {self.engine!r} has no handler for {self.kind}; it has handlers for {known}"


@dataclass(eq=False)
class CommandFailed(Refused):
    """A handler of the application raised an error, or made something that can't be stored. Nothing was done."""

    engine: str
    aggregate: str
    command: str
    stage: str
    reason: str
    says: ClassVar[str] = (
        "command {command} for {aggregate!r} of engine {engine!r} failed in its {stage}, and nothing was done: "
        "{reason}; correct the handler or the command, and send it with another command id"
    )


@dataclass(eq=False)
class CommandTooLarge(Refused):
    """A part of what a command wants to write, or its reply, is larger than it may be. Nothing was done."""

    engine: str
    aggregate: str
    part: str
    size_bytes: int
    limit_bytes: int
    says: ClassVar[str] = (
        "a command for {aggregate!r} of engine {engine!r} was not done: its {part} takes {size_bytes} bytes, "
        "{limit_bytes} are allowed; make it smaller, or raise the limit of the topic"
    )


@dataclass(eq=False)
class CommandIdReused(Refused):
    """A command id names one command: its retries are equal to it, and no other command has it."""

    aggregate: str
    command_id: str
    says: ClassVar[str] = (
        "command id {command_id!r} was used for another command of {aggregate!r}, and nothing was done; "
        "give every command an id of its own, and repeat it only unchanged"
    )


@dataclass(eq=False)
class CommandTooLate(Refused):
    """A retry that came so late that its command id may have been forgotten; this attempt did nothing."""

    aggregate: str
    command_id: str
    since: str
    forgotten: str
    says: ClassVar[str] = (
        "command id {command_id!r} of {aggregate!r} was first sent after batch {since}, and ids up to batch "
        "{forgotten} were forgotten; this attempt did nothing. If no other attempt was made, send it again without "
        "`since`; else look at the aggregate to find out what became of it"
    )


@dataclass(eq=False)
class UpcastFailed(Refused):
    """An event of an old version that an engine's upcasters do not make into an event of its present classes."""

    engine: str
    place: str
    event: str
    version: int
    reason: str
    says: ClassVar[str] = (
        "engine {engine!r} can't read version {version} of {event} ({place}): {reason}; "
        "declare or correct its upcaster (@engine.upcast)"
    )


@dataclass(eq=False)
class FoldFailed(Refused):
    """An event of a journal that an engine's event handler, or the codec of its state, does not take."""

    engine: str
    aggregate: str
    seq_nr: int
    event: str
    reason: str
    says: ClassVar[str] = (
        "event {seq_nr} of {aggregate!r}, {event}, can't be applied by engine {engine!r}: {reason}; "
        "correct the event handler, or declare an upcaster"
    )


@dataclass(eq=False)
class EventsMissing(Refused):
    """A journal does not hold all events from number 1 on, so that no state can be made from it."""

    engine: str
    aggregate: str
    expected: int
    found: int
    says: ClassVar[str] = (
        "the journal of {aggregate!r} in engine {engine!r} has event {found} where event {expected} should be, so its "
        "state can't be made from it; events were deleted or lost, see `headrace journal history`"
    )


@dataclass(eq=False)
class RebuildRefused(Refused):
    """An engine's state can't be rebuilt as things are. Nothing was written, unless `reason` says so."""

    engine: str
    reason: str
    next_step: str
    says: ClassVar[str] = "the state of engine {engine!r} is not rebuilt: {reason}; {next_step}"


@dataclass(eq=False)
class WrongVersion(Refused):
    """The aggregate is not at the version that the command expects; nothing was done."""

    aggregate: str
    expected: int
    actual: int
    says: ClassVar[str] = (
        "a command for {aggregate!r} expects version {expected}, it is at {actual}; read its state and decide again"
    )


@dataclass(eq=False)
class TargetDiffers(Refused):
    """The target of a copy has an event that the source does not have."""

    topic: str
    key: str
    seq_nr: int
    reason: str
    says: ClassVar[str] = (
        "cannot copy onto journal {key!r} of topic {topic!r}: the target has event {seq_nr}, and {reason}; "
        "copy into an empty target, or, if the target's journal may be removed, run there: "
        "headrace journal purge {topic} {key}"
    )


@dataclass(eq=False)
class NoSchemaFor(Refused):
    """The Avro schema of a class can't be inferred."""

    owner: str
    field: str
    reason: str
    says: ClassVar[str] = "no Avro schema for field {field!r} of {owner}: {reason}"


@dataclass(eq=False)
class BadSchema(Refused):
    """A schema is not valid Avro."""

    where: str
    reason: str
    says: ClassVar[str] = "not a valid Avro schema, at {where}: {reason}"


@dataclass(eq=False)
class IncompatibleSchema(Refused):
    """A schema breaks the compatibility that its subject promises; field, version and rule are of the first problem."""

    subject: str
    level: str
    field: str
    version: int
    rule: str
    problems: tuple[str, ...]

    def __str__(self) -> str:
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        return (
            f"the schema is not {self.level} compatible under {self.subject!r}:{lines}\n"
            "give new and removed fields defaults, keep types, rename through aliases, or use another subject"
        )


@dataclass(eq=False)
class UnknownSchema(Refused):
    """The registry has no schema with that id."""

    schema_id: int
    registry: str
    says: ClassVar[str] = "there is no schema with id {schema_id} in {registry}; was it written with another registry?"


@dataclass(eq=False)
class UnknownSubject(Refused):
    """The registry does not have that subject, or that version of it."""

    subject: str
    registry: str
    version: int | None = None

    def __str__(self) -> str:
        what = f"no version {self.version} of subject" if self.version is not None else "no subject"
        return f"there is {what} {self.subject!r} in {self.registry}; see: headrace schema list"


@dataclass(eq=False)
class NotRegistered(Refused):
    """The subject has no version with this schema, and automatic registration is off."""

    subject: str
    schema: str
    says: ClassVar[str] = (
        "the schema of {schema} is not registered under {subject!r}, and automatic registration is off; "
        "run: headrace schema register {subject} FILE"
    )


@dataclass(eq=False)
class NotEncodable(Refused):
    """A value does not fit its Avro schema."""

    schema: str
    field: str
    reason: str
    says: ClassVar[str] = "can't write {schema} as Avro: at {field!r}: {reason}"


@dataclass(eq=False)
class NotFramed(Refused):
    """The bytes do not begin like framed Avro: a zero, then four bytes of schema id."""

    size_bytes: int
    reason: str
    says: ClassVar[str] = "{size_bytes} bytes are not framed Avro: {reason}"


@dataclass(eq=False)
class NotDecodable(Refused):
    """Avro data does not follow its schema, or its reader can't decode it."""

    schema: str
    field: str
    reason: str
    says: ClassVar[str] = "can't read {schema} from Avro: at {field!r}: {reason}"


@dataclass(eq=False)
class PublishedTooLate(Refused):
    """A message was published too late for its transaction; the commit fails, so that the message is not lost."""

    topic: str
    count: int
    reason: str
    says: ClassVar[str] = (
        "{count} message(s) for topic {topic!r} were published too late for the transaction: {reason}; "
        "publish before the commit, at the latest in a before_commit or mapper event"
    )


@dataclass(eq=False)
class NotStorable(Refused):
    """A key or a value of another type than its state has, or outside of what can be written."""

    what: str
    value: str
    reason: str
    says: ClassVar[str] = "{what} {value} can't be written: {reason}"


@dataclass(eq=False)
class NotReadable(Refused):
    """Bytes that a state did not write, or that were damaged since."""

    what: str
    data: str
    reason: str
    says: ClassVar[str] = "{data} can't be read as {what}: {reason}; see who else writes to its topic"


@dataclass(eq=False)
class KeyPresent(Refused):
    """An insert found a value."""

    state: str
    key: str
    says: ClassVar[str] = "cannot insert {key} into state {state!r}: it has a value already; put or update replaces it"


@dataclass(eq=False)
class NotUnique(Refused):
    """Another key of the partition has the value that must be unique."""

    state: str
    index: str
    value: str
    key: str
    holder: str
    says: ClassVar[str] = (
        "cannot write {key} to state {state!r}: {index} {value} belongs to {holder}; choose another, or delete that one"
    )


@dataclass(eq=False)
class StateReadOnly(Refused):
    """A write to a copy: nothing was written."""

    state: str
    reason: str
    says: ClassVar[str] = "cannot write to state {state!r}: {reason}"


@dataclass(eq=False)
class Unauthenticated(Refused):
    """A request has no credentials, or credentials that are wrong or out of date."""

    reason: str
    says: ClassVar[str] = "the request is not authenticated: {reason}"


@dataclass(eq=False)
class NoSuchRoute(Refused):
    """The gateway serves no such path, or not with this method; `allowed` has the methods that it has."""

    method: str
    path: str
    allowed: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.allowed:
            return f"{self.path} can't be used with {self.method}; it takes {', '.join(self.allowed)}"
        return f"there is nothing at {self.path}; see /openapi.json for what is served"


@dataclass(eq=False)
class NotFound(Refused):
    """There is no thing with the name, number or id of a request's path."""

    what: str
    says: ClassVar[str] = "there is no {what}"


@dataclass(eq=False)
class PreconditionFailed(Refused):
    """A write names the version that it replaces, and the key has another one; nothing was written."""

    key: str
    says: ClassVar[str] = "{key} is not as the request expects it; nothing was written, read it and decide again"


@dataclass(eq=False)
class RejectedCommand(Refused):
    """The application of an engine does not accept a command, as the gateway answers it; nothing was done."""

    code: str
    message: str
    details: object

    def __str__(self) -> str:
        return self.message or f"the command was rejected: {self.code}"


@dataclass(eq=False)
class BodyTooLarge(Refused):
    """The body of a request is larger than the gateway takes."""

    limit_bytes: int
    says: ClassVar[str] = "the request's body is larger than {limit_bytes} bytes; split it, or raise max_body_bytes"


@dataclass(eq=False)
class WrongMediaType(Refused):
    """A request's body, or the answer that it asks for, has a form that the route does not offer."""

    header: str
    value: str
    offered: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.header} is {self.value!r}, this route has {', '.join(self.offered)}"


@dataclass(eq=False)
class GatewayRefused(Refused):
    """The gateway refused a request of its client; `problem` is its whole answer (RFC 9457)."""

    status: int
    detail: str
    problem: object
    says: ClassVar[str] = "the gateway refused the request with status {status}: {detail}"


@dataclass(eq=False)
class SocketRefused(Refused):
    """The gateway closed a socket with a code that says: the same would be refused again."""

    code: int
    reason: str
    says: ClassVar[str] = "the gateway closed the socket with code {code}: {reason}"


@dataclass(eq=False)
class PushRefused(Refused):
    """An outside service will never take this push, as for a device that is gone; a push hook raises it."""

    service: str
    reason: str
    says: ClassVar[str] = "{service} refused the push: {reason}"


@dataclass(eq=False)
class UnknownMessage(Refused):
    """No handler of the keyspace takes messages of this type."""

    keyspace: str
    message: str
    known: str
    says: ClassVar[str] = "keyspace {keyspace!r} has no handler for {message}; it handles {known}"


@dataclass(eq=False)
class RequestFailed(Refused):
    """A handler raised an error of the application's own. Nothing that it had written was kept."""

    keyspace: str
    message: str
    kind: str
    reason: str
    says: ClassVar[str] = "{message} was not handled by keyspace {keyspace!r}: {kind}: {reason}; nothing was written"


@dataclass(eq=False)
class WritesInRead(Refused):
    """A handler that is marked as a read has written. A read may be done twice, so nothing was kept."""

    keyspace: str
    handler: str
    says: ClassVar[str] = (
        "handler {handler!r} of keyspace {keyspace!r} is marked read=True and wants to write; nothing was written: "
        "leave the mark away"
    )


@dataclass(eq=False)
class AskCycle(Refused):
    """A handler asked a key whose own handler waits for it: neither would ever end."""

    chain: str
    says: ClassVar[str] = "the requests go round in a circle: {chain}; tell one of them instead of asking it"


@dataclass(eq=False)
class MessageIdReused(Refused):
    """The same id came with another message before; nothing was done with this one."""

    keyspace: str
    message_id: str
    says: ClassVar[str] = "message id {message_id!r} was used in keyspace {keyspace!r} for another message"


@dataclass(eq=False)
class ReplyNotKept(Refused):
    """The message with this id was handled before. Its reply was too large to be kept."""

    keyspace: str
    message_id: str
    says: ClassVar[str] = "message {message_id!r} was handled by keyspace {keyspace!r} before; its reply was not kept"


@dataclass(eq=False)
class Forbidden(Refused):
    """The server refuses this user the operation."""

    operation: str
    reason: str
    says: ClassVar[str] = "not allowed to {operation}: {reason}; grant it or use other credentials"


@dataclass(eq=False)
class ReadOnlyHandle(Refused):
    """A write was tried through something that was opened read-only."""

    operation: str
    what: str
    says: ClassVar[str] = "cannot {operation}: {what} was opened read-only; open it without read_only to write"


@dataclass(eq=False)
class NoStateYet(Refused):
    """A snapshot's number is above the journal's, or the journal does not exist."""

    key: str
    seq_nr: int
    pointer: int
    says: ClassVar[str] = (
        "cannot save a snapshot of {key!r} as of seq_nr {seq_nr}: the journal is at {pointer}; "
        "save the state as of a number that the journal has reached"
    )


@dataclass(eq=False)
class Closed(Refused):
    """Something was used after it was closed."""

    what: str
    says: ClassVar[str] = "{what} is closed; open a new one"


@dataclass(eq=False)
class Unreachable(Unavailable):
    """No server answers at the address."""

    address: str
    reason: str
    outcome_known: bool = True

    def __str__(self) -> str:
        tail = _suffix(self.outcome_known)
        return f"cannot reach {self.address}: {self.reason}; {tail}. Is the server up, and the address right?"


@dataclass(eq=False)
class FileUnusable(Unavailable):
    """A file of this machine can't be read or written: permissions, a full disk, or a failing disk."""

    path: str
    reason: str
    outcome_known: bool = True

    def __str__(self) -> str:
        done = _suffix(self.outcome_known)
        return f"cannot use {self.path}: {self.reason}; {done}. Check the file's permissions, and the space on its disk"


@dataclass(eq=False)
class TimedOut(Unavailable):
    """The operation did not finish in time."""

    operation: str
    timeout_s: float
    outcome_known: bool = True

    def __str__(self) -> str:
        return f"{self.operation} did not finish within {self.timeout_s:g} s; {_suffix(self.outcome_known)}"


@dataclass(eq=False)
class TransactionFailed(Unavailable):
    """A transaction failed. With `outcome_known` nothing of it was committed, and it can be tried again.

    Otherwise its commit was sent and not acknowledged. Take the id again, which settles the outcome; then read what was
    committed.
    """

    transactional_id: str
    reason: str
    outcome_known: bool = True

    def __str__(self) -> str:
        ended = "nothing of it was committed" if self.outcome_known else _COMMIT_UNKNOWN
        return f"transaction {self.transactional_id!r} failed: {self.reason}; {ended}"


@dataclass(eq=False)
class OperationFailed(Unavailable):
    """The operation failed with an error that has no class of its own here."""

    operation: str
    reason: str
    outcome_known: bool = True

    def __str__(self) -> str:
        return f"{self.operation} failed: {self.reason}; {_suffix(self.outcome_known)}"


@dataclass(eq=False)
class ReplicationStalled(Unavailable):
    """A replication with an end has waited too long for the stored offsets to move. What it replicated stays."""

    selection: str
    waited_s: float
    lag: int
    reason: str
    says: ClassVar[str] = (
        "replication of {selection} has not moved for {waited_s:.0f} s, and {lag:,} records are waiting: {reason}; "
        "what was replicated stays, run it again (pipeline.once_timeout_s sets the wait)"
    )


@dataclass(eq=False)
class ReadAgain(Unavailable):
    """A journal, or its topic, changed while it was being read."""

    key: str
    reason: str
    says: ClassVar[str] = "{key!r} changed while it was being read: {reason}; drop what was read and read again"


@dataclass(eq=False)
class TagBuilding(Unavailable):
    """A tag is being back-filled; its events have no numbers before that is done."""

    tag: str
    function: str
    says: ClassVar[str] = (
        "tag {tag!r} is being back-filled by {function}; ask again later, or, if no back-fill is running, "
        "run: headrace tags backfill {tag} {function} --again"
    )


@dataclass(eq=False)
class StateOffline(Unavailable):
    """The partition's state is not whole yet, or not settled."""

    state: str
    reason: str
    says: ClassVar[str] = "state {state!r} is offline: {reason}; ask again later, or ask another replica"


@dataclass(eq=False)
class StateConflict(Unavailable):
    """A unit of work has read a key that was changed before it could commit; nothing of it was written."""

    state: str
    key: str
    says: ClassVar[str] = "{key} of state {state!r} changed meanwhile; nothing was written, do the work again"


@dataclass(eq=False)
class StateStale(Unavailable):
    """This copy is older than the read allows, or has not come as far as the read asks for."""

    state: str
    reason: str
    says: ClassVar[str] = "this copy of state {state!r} is too old: {reason}; ask the owner, or allow more"


@dataclass(eq=False)
class SubscriptionEnded(Unavailable):
    """The changes that follow could have holes; what was delivered is right."""

    state: str
    after: int | None
    reason: str

    def __str__(self) -> str:
        resume = "subscribe again" if self.after is None else f"resume after offset {self.after}"
        return f"the subscription to state {self.state!r} ended: {self.reason}; {resume}"


@dataclass(eq=False)
class HandlerFailed(Unavailable):
    """A projection's handler raised. Earlier events are done; the projection has stopped before this one."""

    projection: str
    tag: str
    topic: str
    id: str
    seq_nr: int
    tag_offset: str
    attempts: int
    reason: str
    says: ClassVar[str] = (
        "projection {projection!r} can't handle event {seq_nr} of {id!r} in {topic!r} (tag {tag!r}, offset "
        "{tag_offset}), attempts: {attempts}: {reason}; fix the handler, choose a recovery, or pass the event with: "
        "headrace projection offset skip"
    )


@dataclass(eq=False)
class ProjectionRebuilding(Unavailable):
    """A rebuild holds a projection's offsets and has not finished."""

    projection: str
    says: ClassVar[str] = (
        "projection {projection!r} is being rebuilt; its workers continue after the reset. "
        "If no rebuild is running, the last one was interrupted: run headrace projection rebuild again"
    )


@dataclass(eq=False)
class CommandExpired(Unavailable):
    """A command's deadline passed before it was handled."""

    engine: str
    aggregate: str
    timeout_s: float
    says: ClassVar[str] = (
        "a command for {aggregate!r} of engine {engine!r} was not handled within {timeout_s:g} s; "
        "nothing was done, send it again"
    )


@dataclass(eq=False)
class OutcomeUnknown(Unavailable):
    """A command was on its way into the log when its time was up, or the log can't tell what became of it."""

    engine: str
    aggregate: str
    reason: str
    outcome_known: bool = False
    says: ClassVar[str] = (
        "a command for {aggregate!r} of engine {engine!r} may or may not have been done: {reason}; "
        "send it again with the same command id, or look at the aggregate"
    )


@dataclass(eq=False)
class Busy(Unavailable):
    """As many requests are in flight as may be; this one was not taken."""

    what: str
    limit: int
    says: ClassVar[str] = "{what} has {limit} requests in flight and takes no more; nothing was done, try again later"


@dataclass(eq=False)
class GatewaySuspended(Unavailable):
    """Partitions have no owner at the moment, and the gateway is set to refuse what needs them."""

    missing: str
    says: ClassVar[str] = "nobody owns {missing} at the moment; nothing was done, try again later"


@dataclass(eq=False)
class GatewayUnavailable(Unavailable):
    """The gateway can't answer a request of its client now, or can't be reached; `status` is 0 then."""

    status: int
    detail: str
    outcome_known: bool = True

    def __str__(self) -> str:
        answer = f"the gateway answered with status {self.status}" if self.status else "the gateway can't be reached"
        return f"{answer}: {self.detail}; {_suffix(self.outcome_known)}, try again later"


@dataclass(eq=False)
class RateExceeded(Unavailable):
    """A caller sends more requests than it may; this one was not taken."""

    retry_in_s: float
    says: ClassVar[str] = "too many requests; nothing was done, try again in {retry_in_s:g} s"


@dataclass(eq=False)
class WorkerFailed(Unavailable):
    """A worker failed for good, or was never started."""

    worker: str
    reason: str
    says: ClassVar[str] = "worker {worker!r} failed: {reason}"


@dataclass(frozen=True, slots=True)
class SettingsProblem:
    """One mistake in the settings: its source, its key, and the problem."""

    source: str
    key: str
    problem: str

    def __str__(self) -> str:
        return f"{self.source}: {self.key}: {self.problem}"


@dataclass(eq=False)
class InvalidSettings(Misconfigured):
    """All mistakes of all layers at once, each with its source and key."""

    problems: tuple[SettingsProblem, ...]

    def __str__(self) -> str:
        count = len(self.problems)
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        return f"{count} problem{'s' if count != 1 else ''} in the settings:{lines}\ncorrect them and start again"


@dataclass(eq=False)
class MissingExtra(Misconfigured):
    """A driver is not installed."""

    module: str
    extra: str
    says: ClassVar[str] = "{module} is not installed; run: pip install 'headrace[{extra}]'"


@dataclass(eq=False)
class UnknownBackend(Misconfigured):
    """No installed package serves that address."""

    room: str
    address: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"no {self.room} backend serves {self.address!r}; known: {', '.join(self.known)}. "
            "Correct the address, or install the package that brings the backend"
        )


@dataclass(eq=False)
class ImpossibleTopicChange(Misconfigured):
    """The log can't change the topic as requested."""

    topic: str
    change: str
    next_step: str
    says: ClassVar[str] = "topic {topic!r} can't be changed: {change}; {next_step}"


@dataclass(eq=False)
class ForeignCluster(Misconfigured):
    """Another cluster owns a partition that this one is configured to own."""

    topic: str
    partition: int
    cluster_id: str
    found_cluster_id: str
    found_node: str
    says: ClassVar[str] = (
        "{topic}[{partition}] is owned by node {found_node!r} of cluster {found_cluster_id!r}, and this is cluster "
        "{cluster_id!r}; give each cluster a name of its own, or, if that one is gone, set cluster.id to its id"
    )


@dataclass(eq=False)
class DuplicateNode(Misconfigured):
    """Another process runs as this node, and was there first."""

    node: str
    process: str
    other_process: str
    says: ClassVar[str] = (
        "node id {node!r} is in use by process {other_process!r}, which was there before this one ({process!r}); "
        "stop that process, or give this node an id of its own"
    )


@dataclass(eq=False)
class WrongPartitionCount(Misconfigured):
    """The topic does not have the requested number of partitions."""

    topic: str
    expected: int
    actual: int

    def __str__(self) -> str:
        known = f"topic {self.topic!r} has {self.actual} partitions, {self.expected} were requested"
        if self.expected > self.actual:
            return f"{known}; run: headrace topic grow {self.topic} --partitions {self.expected}"
        return f"{known}; partitions can't be removed: ask for {self.actual}, or copy into a new topic"


@dataclass(eq=False)
class WrongGroupSize(Misconfigured):
    """A node was started with another number of partitions than its cluster has."""

    group: str
    expected: int
    actual: int
    says: ClassVar[str] = (
        "group {group!r} has {actual} partitions in this cluster, this node was started with {expected}; "
        "start it with {actual}"
    )


@dataclass(eq=False)
class IncompatibleData(Misconfigured):
    """Stored data has a format that this version can't read."""

    path: str
    found: str
    supported: str
    says: ClassVar[str] = (
        "{path} can't be used: found {found}, this version reads {supported}; "
        "install the version that wrote it, or use another address"
    )


def _migrate(database: str, table_prefix: str) -> str:
    variable = "" if table_prefix == "kafka_" else f"HEADRACE__OUTBOX__TABLE_PREFIX={table_prefix} "
    return f"{variable}headrace outbox migrate --database '{database}'"


@dataclass(eq=False)
class MissingTables(Misconfigured):
    """The database has no outbox tables."""

    database: str
    table_prefix: str = "kafka_"

    def __str__(self) -> str:
        return (
            f"there is no outbox with tables {self.table_prefix}… in {self.database}; "
            f"run: {_migrate(self.database, self.table_prefix)}"
        )


@dataclass(eq=False)
class OutdatedTables(Misconfigured):
    """The outbox tables are of an earlier version, and lack what a relay needs."""

    database: str
    version: str
    needed: str
    table_prefix: str = "kafka_"

    def __str__(self) -> str:
        return (
            f"the outbox with tables {self.table_prefix}… in {self.database} is at version {self.version}, "
            f"this relay needs {self.needed}; run: {_migrate(self.database, self.table_prefix)}"
        )


@dataclass(eq=False)
class RecordsLost(Misconfigured):
    """Records were removed from the log before they were replicated."""

    topic: str
    partition: int
    first: int
    last: int
    says: ClassVar[str] = (
        "offsets {first} to {last} of {topic}[{partition}] are gone from the log and were never replicated; "
        "restore the log, or accept the loss with: headrace pipeline replicate --accept-loss {topic}:{partition}:{last}"
    )


@dataclass(eq=False)
class JournalTopicExpires(Misconfigured):
    """The topic's configuration drops records of journals whether or not they were replicated."""

    topic: str
    reason: str
    says: ClassVar[str] = (
        "topic {topic!r} can't hold journals: {reason}, replicated or not; "
        "run: headrace topic configure {topic} --journal (or --shared if other services own the topic)"
    )


@dataclass(eq=False)
class RecordsExpireSoon(Misconfigured):
    """A shared topic is about to drop records that were not replicated."""

    topic: str
    partition: int
    left_s: float
    says: ClassVar[str] = (
        "records of {topic}[{partition}] that the store lacks leave the log in {left_s:.0f} s; "
        "run: headrace pipeline replicate --topics {topic}"
    )


@dataclass(eq=False)
class SeveralStores(Misconfigured):
    """Several stores replicate a topic, so one of them can't remove records: the others may not have them yet."""

    topic: str
    store: str
    others: tuple[str, ...]

    def __str__(self) -> str:
        others = ", ".join(self.others)
        return (
            f"topic {self.topic!r} is replicated by this store ({self.store}) and by {others}, which may lack what "
            f"this one has, so nothing is removed; run: headrace topic configure {self.topic} --shared for each store, "
            f"or, if the others are gone for good: headrace topic configure {self.topic} --journal --only-store"
        )


@dataclass(eq=False)
class RetentionTooLong(Misconfigured):
    """The log keeps records for longer than the store remembers deletions and purges."""

    topic: str
    retention_s: float
    setting: str
    kept_s: float
    says: ClassVar[str] = (
        "topic {topic!r} keeps replicated records for {retention_s:g} s, but the store remembers deletions for "
        "{kept_s:g} s only: a replay would bring deleted events back; raise {setting} above the retention, or run: "
        "headrace topic configure {topic} --journal --retention-ms MILLISECONDS"
    )


@dataclass(eq=False)
class ReplayTooOld(Misconfigured):
    """A partition would be replicated again from records that are older than the deletions that the store remembers."""

    topic: str
    partition: int
    age_s: float
    kept_s: float
    says: ClassVar[str] = (
        "the store has journals of {topic!r} but not how far {topic}[{partition}] is replicated, and the log begins "
        "{age_s:.0f} s ago; deletions are remembered for {kept_s:g} s, so a replay from there could bring deleted "
        "events back; restore the row of {topic}[{partition}] in pointer2, or replicate into an empty store"
    )


@dataclass(eq=False)
class LayoutLost(Misconfigured):
    """The store does not have the topic's layout, and it can't be read from the log."""

    topic: str
    reason: str
    says: ClassVar[str] = (
        "the layout of topic {topic!r} is not in the store and can't be read from the log: {reason}; restore the "
        "setting 'topic/{topic}' of the store from a backup, or copy the journals into a new topic"
    )


@dataclass(eq=False)
class JournalHeld(Misconfigured):
    """A record of the journal can't be decoded; later records are ignored until an operator releases or skips it."""

    key: str
    topic: str
    partition: int
    offset: int
    reason: str
    says: ClassVar[str] = (
        "journal {key!r} is held from offset {offset} of {topic}[{partition}]: {reason}; "
        "see: headrace pipeline quarantine list"
    )


@dataclass(eq=False)
class IntegrityBroken(Misconfigured):
    """Rows of the store contradict one another."""

    key: str
    seq_nr: int
    reason: str
    says: ClassVar[str] = (
        "journal {key!r} is broken in the store at seq_nr {seq_nr}: {reason}; run: headrace pipeline audit --repair, "
        "and delete by hand the rows that it lists and can't remove"
    )


@dataclass(eq=False)
class KeyspaceMissing(Misconfigured):
    """Cassandra does not have the keyspace, and creating it is not enabled."""

    keyspace: str
    address: str
    says: ClassVar[str] = (
        "there is no keyspace {keyspace!r} at {address}; correct the name, "
        "or let it be created: HEADRACE__STORE__CASSANDRA__CREATE_KEYSPACE=true"
    )


@dataclass(eq=False)
class NothingThere(Misconfigured):
    """A command that needs existing data was given a folder without any."""

    what: str
    address: str
    path: str
    command: str
    says: ClassVar[str] = (
        "there is no {what} at {address}: {path} does not exist; correct the address, or create one with: {command}"
    )


@dataclass(eq=False)
class FolderUnusable(Misconfigured):
    """A folder does not exist and can't be created."""

    path: str
    reason: str
    says: ClassVar[str] = (
        "the folder {path} can't be created: {reason}; correct the address, or choose a folder "
        "that this user may write to"
    )


@dataclass(eq=False)
class PortUnusable(Misconfigured):
    """Metrics can't be served at the port: another process uses it, or this user is not allowed to."""

    host: str
    port: int
    reason: str
    says: ClassVar[str] = (
        "metrics can't be served at {host}:{port}: {reason}; stop the process that listens there, or set "
        "observe.metrics_port to another port (0 takes a free one)"
    )


@dataclass(eq=False)
class ListenFailed(Misconfigured):
    """The gateway can't listen: another process uses the address, or this user is not allowed to."""

    host: str
    port: int
    reason: str
    says: ClassVar[str] = (
        "the gateway can't listen at {host}:{port}: {reason}; stop the process that listens there, or set "
        "gateway.listen to another address (port 0 takes a free one)"
    )


@dataclass(eq=False)
class GatewayUnprotected(Misconfigured):
    """The gateway would listen beyond this machine, and nobody would have to authenticate."""

    host: str
    says: ClassVar[str] = (
        "the gateway would serve {host} without authentication; set gateway.jwt.jwks or gateway.signatures.secrets, "
        "or listen at 127.0.0.1, or, if everybody who reaches it may do everything, set "
        "gateway.allow_unauthenticated = true"
    )


@dataclass(eq=False)
class GrpcUnprotected(Misconfigured):
    """A node would take commands over gRPC from beyond this machine, and nobody would have to authenticate."""

    host: str
    says: ClassVar[str] = (
        "the node would take commands at {host} without authentication; set grpc.jwt.jwks, or listen at 127.0.0.1, or, "
        "if everybody who reaches it may do everything, set grpc.allow_unauthenticated = true"
    )


@dataclass(eq=False)
class GrpcListenFailed(Misconfigured):
    """A node can't listen for commands: another process uses the address, or this user is not allowed to."""

    listen: str
    reason: str
    says: ClassVar[str] = (
        "the node can't take commands at {listen}: {reason}; stop the process that listens there, or set grpc.listen "
        "to another address (port 0 takes a free one)"
    )


@dataclass(eq=False)
class KeysUnusable(Misconfigured):
    """Keys that are needed to check tokens or signatures can't be read, or are of no use."""

    where: str
    reason: str
    says: ClassVar[str] = "the keys in {where} can't be used: {reason}; correct them and start again"


@dataclass(eq=False)
class TagsDisabled(Misconfigured):
    """Views by tag are switched off here."""

    operation: str
    says: ClassVar[str] = "cannot {operation}: tags are disabled; set tags.enabled, or HEADRACE__TAGS__ENABLED=true"


@dataclass(eq=False)
class TagsInUse(Misconfigured):
    """A process whose tags are disabled tried to replicate into a store that keeps views by tag."""

    says: ClassVar[str] = (
        "cannot replicate without views by tag: this store keeps them, and they would never get these events; "
        "set tags.enabled, or HEADRACE__TAGS__ENABLED=true, or stop keeping views with: headrace tags off"
    )


@dataclass(eq=False)
class TagsIncomplete(Misconfigured):
    """Journals were replicated while tags were disabled: their events are in no view."""

    says: ClassVar[str] = (
        "this store has journals that were replicated while tags were disabled, and views by tag would lack their "
        "events; stop replication and run: headrace tags rebuild --all"
    )


@dataclass(eq=False)
class WrongBucketSize(Misconfigured):
    """The bucket size of views by tag can't be changed after the first event."""

    stored: str
    configured: str
    says: ClassVar[str] = (
        "the views by tag were made with buckets of a {stored}, the settings say {configured}; "
        "set tags.bucket = {stored!r}, or use another store"
    )


@dataclass(eq=False)
class TagViewsLost(Misconfigured):
    """Tables of views by tag were emptied or replaced; continuing would give numbers twice."""

    tables: tuple[str, ...]

    def __str__(self) -> str:
        lost = ", ".join(self.tables)
        return f"the epoch of {lost} is missing: emptied, or restored from elsewhere; run: headrace tags rebuild --all"


@dataclass(eq=False)
class TagGap(Misconfigured):
    """Numbers of (pid, tag) are missing in the store."""

    tag: str
    topic: str
    pid: str
    expected: int
    found: int
    waited_s: float

    def __str__(self) -> str:
        missing = self.found - self.expected
        which = f"number {self.expected}" if missing == 1 else f"{missing} numbers from {self.expected} on"
        waited = f" after {self.waited_s:g} s" if self.waited_s else ""
        return (
            f"tag {self.tag!r} of {self.pid!r} in {self.topic!r}: {which} missing{waited}, expected {self.expected}, "
            f"found {self.found}; run: headrace tags rebuild {self.tag} --topic {self.topic} --id {self.pid}"
        )


@dataclass(eq=False)
class ProjectionChanged(Misconfigured):
    """A projection's tag has changed, so its stored offsets can't be used."""

    projection: str
    stored: str
    defined: str
    says: ClassVar[str] = (
        "projection {projection!r} has run with tag {stored!r} and is defined with {defined!r}; give it another name, "
        "or start it again under the new tag with: headrace projection rebuild (or: headrace projection offset clear)"
    )


@dataclass(eq=False)
class OffsetAhead(Misconfigured):
    """A stored offset is further in the future than the log accepts records."""

    projection: str
    tag_offset: str
    ahead_s: float
    says: ClassVar[str] = (
        "projection {projection!r} is at {tag_offset}, {ahead_s:g} s ahead of this machine's clock: it would skip "
        "all events until then; check the clock, or run: headrace projection offset set"
    )


@dataclass(eq=False)
class DeadLettersFull(Misconfigured):
    """A projection without a database has as many dead letters as the store allows."""

    projection: str
    limit: int
    says: ClassVar[str] = (
        "projection {projection!r} has {limit} dead letters, which is the limit without a database; "
        "run: headrace projection dead-letters replay, or purge"
    )


@dataclass(eq=False)
class StateBroken(Misconfigured):
    """The folder of a state's store can't be read or written."""

    folder: str
    reason: str
    says: ClassVar[str] = (
        "the state in {folder} can't be used: {reason}; nothing is lost, the log has it all: "
        "stop this node, move the folder away, and start again to have it rebuilt"
    )


@dataclass(eq=False)
class StateLocked(Misconfigured):
    """The folder of a state's store is open elsewhere."""

    folder: str
    says: ClassVar[str] = (
        "the state in {folder} is in use by another process; stop that one, or give each node a folder of its own"
    )


@dataclass(eq=False)
class StateDiskFull(Misconfigured):
    """The folder of a state's store can't grow."""

    folder: str
    reason: str
    says: ClassVar[str] = (
        "the state in {folder} can't be written: {reason}; what was committed is in the log: "
        "free some space (or raise the limit of the file's size), then start this node again"
    )


@dataclass(eq=False)
class StateAhead(Misconfigured):
    """The store has applied records that the log does not have any more: the log lost acknowledged data."""

    topic: str
    partition: int
    stored: int
    end: int
    says: ClassVar[str] = (
        "the state of {topic}[{partition}] was applied up to offset {stored}, but the log ends at {end}: the log lost "
        "acknowledged records; nothing was wiped. Restore the log, or, to accept the loss, move the state's folder away"
    )


@dataclass(eq=False)
class WrongStateTopic(Misconfigured):
    """The changelog of a state can't be changed into what the state declares."""

    topic: str
    problem: str
    next_step: str
    says: ClassVar[str] = "topic {topic!r} can't be the changelog of this state: {problem}; {next_step}"


@dataclass(eq=False)
class WrongEngineTopic(Misconfigured):
    """A topic that an engine can't use: another engine's, or one with journals that it does not know."""

    engine: str
    topic: str
    problem: str
    next_step: str
    says: ClassVar[str] = "engine {engine!r} can't use topic {topic!r}: {problem}; {next_step}"


@dataclass(eq=False)
class FetchFailed(Misconfigured):
    """A package could not be fetched."""

    package: str
    reason: str
    says: ClassVar[str] = "cannot fetch {package}: {reason}; check the network and run the command again"


@dataclass(eq=False)
class ChecksumMismatch(Misconfigured):
    """A downloaded file is not the pinned one."""

    path: str
    expected: str
    actual: str
    says: ClassVar[str] = "{path} has SHA-256 {actual}, pinned is {expected}; it was removed, run the command again"


@dataclass(eq=False)
class UnsupportedPlatform(Misconfigured):
    """The machine lacks something that is needed."""

    need: str
    found: str
    next_step: str
    says: ClassVar[str] = "{need} is needed, found {found}; {next_step}"


@dataclass(eq=False)
class ServiceFailed(Misconfigured):
    """A server did not start, or ended."""

    service: str
    reason: str
    log_tail: str

    def __str__(self) -> str:
        tail = f"\nlast lines of its log:\n{self.log_tail}" if self.log_tail else ""
        return f"{self.service} failed: {self.reason}; see: headrace services logs {self.service}{tail}"
