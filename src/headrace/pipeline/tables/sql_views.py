"""SQL views of journals, heads, offsets and topics. A view is made only if the statement names it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from headrace.errors import BadArgument, HeadraceError, OperationFailed
from headrace.journal import wait_until_replicated
from headrace.log import wait_for_token
from headrace.model import ConsistencyToken
from headrace.pipeline.logs.plan import Selection
from headrace.pipeline.spark.endpoints import Endpoints
from headrace.pipeline.spark.process import log_of, run, store_of
from headrace.pipeline.spark.session import is_connect, is_jvm_gone, provide_avro
from headrace.pipeline.tables.frames import journal_frame, meta_frame, pointer_frame, reading_of_selection, with_reading
from headrace.pipeline.tables.state_frames import state_frame
from headrace.pipeline.topics.avro_read import decoded, reading_of_topic
from headrace.pipeline.topics.frames import compact, place, topic_frame
from headrace.serde import BlockingRegistry, Part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["TopicViewKind", "query", "query_error", "table_names", "topic_of_view", "topic_view", "view_name"]

TopicViewKind: TypeAlias = Literal["topic", "compact", "state"]

# A record may have several headers of one name, which Spark's maps refuse: the last one counts.
_LAST_HEADERS = (
    "filter(headers, (h, i) -> NOT exists(slice(headers, i + 2, size(headers)), later -> later.key = h.key))"
)
_HEADERS = f"map_from_entries(transform({_LAST_HEADERS}, h -> struct(h.key, CAST(h.value AS STRING))))"
_COLUMNS = (
    "partition",
    "offset",
    "timestamp",
    "key",
    "value",
    "key_bytes",
    "value_bytes",
    f"{_HEADERS} AS headers",
)


def topic_view(
    spark: SparkSession,
    endpoints: Endpoints,
    topic: str,
    kind: Literal["topic", "compact"],
    registry: BlockingRegistry | None,
) -> DataFrame:
    """Return a topic's records, or the newest of each key, with the original bytes in columns of their own.

    Keys are decoded before the newest record of each is found, values after. Types that Spark lacks stay bytes.
    """
    frame = topic_frame(spark, endpoints, topic).selectExpr("*", "key AS key_bytes")
    frame = _decoded(frame, topic, "key", registry)
    if kind == "compact":
        frame = compact(frame)
    frame = frame.selectExpr("*", "value AS value_bytes")
    return _decoded(frame, topic, "value", registry).selectExpr(*_COLUMNS)


def _decoded(frame: DataFrame, topic: str, part: Part, registry: BlockingRegistry | None) -> DataFrame:
    from pyspark.sql import functions as f

    reading = None if registry is None else reading_of_topic(registry, topic, part)
    data = f.col(part)
    if reading is None:
        return frame.withColumn(part, data.cast("string"))
    provide_avro(frame.sparkSession)
    return frame.withColumn(part, decoded(data, reading, place()))


_WORD = re.compile(r"[A-Za-z_]\w*")
# What names no table: texts, in raw ones of which a backslash is a letter, and comments, which may hold comments. A
# name in backticks, which may hold quotes, is a group, because it stays.
_TEXT = re.compile(
    r"""(`[^`]*`)|(?<!\w)[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|--[^\n]*|/\*(?:/\*.*?\*/|.)*?\*/""",
    re.DOTALL,
)
_GENERATION = re.compile(r"\.(\d+)$")
_OF_TOPICS = ("topic_", "compact_", "state_")
_OF_STORE = frozenset({"meta", "pointers"})
_TOKEN_TIMEOUT_S = 70.0  # as for reads: how long a transaction lasts, and how often brokers look for expired ones
_OURS = re.compile(r"headrace\.errors\.\w+: (.*)|\[USER_RAISED_EXCEPTION\] (.*?) SQLSTATE")


def query(
    spark: SparkSession,
    endpoints: Endpoints,
    statement: str,
    selection: Selection | None = None,
    *,
    held: Literal["raise", "skip"] = "raise",
    registry: BlockingRegistry | None = None,
    at_least: str | None = None,
) -> DataFrame:
    """Return the frame of an SQL statement; nothing is run yet.

    Views: `journal`, `meta` and `pointers` of the selected journals; `topic_NAME` and `compact_NAME` of any topic, and
    `state_NAME` of a state's changelog topic, where characters that SQL names can't have are underscores. With a
    `registry`, keys and values of topics are typed where it has schemas, and journals have the column `event`. The
    statement can also name the caller's own views; these never change, because the views here are made in a copy of
    the session. The rows show what was written before; with the consistency token `at_least` also what an open
    transaction hides at first, and `meta` and `pointers`, which come from the store, wait for replication. Raises
    BadArgument for a statement with a mistake, and for the token BadToken, TokenOfOtherTopic, TokenAhead, TimedOut.
    """
    _check_text(statement)
    chosen = selection or Selection()
    words = words_of(statement)
    if at_least is not None:
        run(_reach(endpoints, ConsistencyToken.parse(at_least), is_replicated=bool(words & _OF_STORE)))
    spark = _copy_of(spark)
    makers: dict[str, Callable[[], DataFrame]] = {
        "journal": lambda: _journal(journal_frame(spark, endpoints, chosen, held=held), endpoints, chosen, registry),
        "meta": lambda: meta_frame(spark, endpoints, chosen),
        "pointers": lambda: pointer_frame(spark, endpoints, chosen),
    }
    for name in words & makers.keys():
        makers[name]().createOrReplaceTempView(name)
    asked = sorted(word for word in words if word.startswith(_OF_TOPICS))
    topics: Sequence[str] = run(_topics(endpoints)) if asked else ()
    for name in asked:
        _make_topic_view(spark, endpoints, name, topics, registry)
    try:
        return spark.sql(statement)
    except Exception as error:
        raise _explained(statement, error, endpoints) from error


def _check_text(statement: str) -> None:
    """Raise BadArgument for a statement that holds half of a surrogate pair, which stands for a byte of no text."""
    try:
        statement.encode()
    except UnicodeEncodeError as error:
        line = statement.count("\n", 0, error.start) + 1
        rule = f"line {line} has bytes that are no text; write it in UTF-8"
        raise BadArgument("the statement", statement, rule) from error


def words_of(statement: str) -> set[str]:
    """Return the words of a statement that may name a table, in lower case: those outside of texts and comments."""
    return {word.lower() for word in _WORD.findall(_TEXT.sub(lambda found: found[1] or " ", statement))}


def kind_of_view(name: str) -> TopicViewKind:
    """Return which view of a topic has this name."""
    return next(kind for kind in get_args(TopicViewKind) if name.startswith(f"{kind}_"))


def view_name(kind: TopicViewKind, topic: str) -> str:
    """Return the name of a topic's view."""
    return f"{kind}_{re.sub(r'[^A-Za-z0-9_]', '_', topic)}".lower()


def table_names(endpoints: Endpoints) -> list[str]:
    """Return the names of all views that a statement can name now."""
    topics = run(_topics(endpoints))
    names = [view_name(kind, topic) for kind in get_args(TopicViewKind) for topic in topics]
    return ["journal", "meta", "pointers", *names]


def query_error(error: Exception, what: str = "running the statement", *, outcome_known: bool = True) -> HeadraceError:
    """Return the error of a running query, or of other work of Spark, with a message of one line, from Spark's text."""
    if is_jvm_gone(error):
        reason = "Spark's JVM is gone: it was killed, or it ran out of memory (pipeline.driver_memory)"
        return OperationFailed(what, f"{reason}; run it again", outcome_known=outcome_known)
    text = _text_of(error)
    found = _OURS.search(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    of_worker = lines[-1] if "Traceback (most recent call last)" in text else lines[0]
    reason = (found[1] or found[2]) if found else of_worker
    return OperationFailed(what, reason, outcome_known=outcome_known)


def _text_of(error: Exception) -> str:
    try:
        return str(error)
    except OSError:  # a Java exception, whose text the JVM would tell, and the JVM has ended
        return str(getattr(error, "errmsg", "")).strip() or type(error).__name__


def _copy_of(spark: SparkSession) -> SparkSession:
    """Return a session that starts with everything of this one, and shares nothing that is made later.

    It takes statements literally. Spark would replace each `${name}` by the value of a setting, even inside quotes,
    and by nothing if there is no such setting: a journal with such an id would not be found.
    """
    copied = _cloned(spark)
    copied.conf.set("spark.sql.variable.substitute", "false")
    return copied


def _cloned(spark: SparkSession) -> SparkSession:
    if is_connect(spark):
        _ = spark.version  # the server knows a session from its first request on, and copies only one that it knows
        return spark.cloneSession()
    from pyspark.sql import SparkSession

    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())  # noqa: SLF001 - no public way


async def _reach(endpoints: Endpoints, token: ConsistencyToken, *, is_replicated: bool) -> None:
    """Wait until what a token names can be read, from the log or, if `is_replicated`, from the store."""
    log = await log_of(endpoints)
    await wait_for_token(log, token, timeout_s=_TOKEN_TIMEOUT_S)
    if is_replicated:
        await wait_until_replicated(log, await store_of(endpoints), token, timeout_s=_TOKEN_TIMEOUT_S)


async def _topics(endpoints: Endpoints) -> Sequence[str]:
    return await (await log_of(endpoints)).admin.topics()


def _journal(
    frame: DataFrame, endpoints: Endpoints, selection: Selection, registry: BlockingRegistry | None
) -> DataFrame:
    reading = None if registry is None else reading_of_selection(endpoints, selection, registry)
    return frame if reading is None else with_reading(frame, reading)


def _make_topic_view(
    spark: SparkSession, endpoints: Endpoints, name: str, topics: Sequence[str], registry: BlockingRegistry | None
) -> None:
    """Make the view if there is a topic for it."""
    kind, topic = kind_of_view(name), topic_of_view(name, topics)
    if topic is None:
        return
    if kind == "state":
        frame = state_frame(spark, endpoints, topic, registry=registry)
    else:
        frame = topic_view(spark, endpoints, topic, kind, registry)
    frame.createOrReplaceTempView(name)


def topic_of_view(name: str, topics: Sequence[str]) -> str | None:
    """Return the topic that a view shows; None if there is none. Raises BadArgument if it could be several.

    A state that was resized has another topic, with a number behind its name: its view shows the newest.
    """
    kind = kind_of_view(name)
    fitting = [topic for topic in topics if view_name(kind, topic) == name]
    bases = {base for topic in topics if view_name(kind, base := _GENERATION.sub("", topic)) == name}
    if kind == "state" and len(bases) == 1:
        return max((topic for topic in topics if _GENERATION.sub("", topic) in bases), key=_generation)
    if len(fitting) > 1:
        raise BadArgument("the statement", name, f"it could be any of the topics {', '.join(fitting)}")
    return fitting[0] if fitting else None


def _generation(topic: str) -> int:
    found = _GENERATION.search(topic)
    return 1 if found is None else int(found[1])


def _explained(statement: str, error: Exception, endpoints: Endpoints) -> HeadraceError:
    """Return an error that says what is wrong with a statement, and what names there are."""
    condition = str(getattr(error, "getCondition", lambda: "")() or "")
    names: dict[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    if condition.startswith("UNRESOLVED_COLUMN"):
        near = f"; near to it: {names['proposal']}" if names.get("proposal") else ""
        return BadArgument("the statement", statement, f"there is no column {names.get('objectName')}{near}")
    if condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
        known = ["journal", "meta", "pointers", *(view_name("topic", topic) for topic in run(_topics(endpoints)))]
        others = "and compact_… and state_… for topic_…"
        rule = f"there is no table {names.get('relationName')}; there are {', '.join(known)}, {others}"
        return BadArgument("the statement", statement, rule)
    lines = [line for line in str(error).splitlines() if line.strip()]
    return BadArgument("the statement", statement, lines[0].strip() if lines else type(error).__name__)
