"""`headrace outbox`: make the tables, run a relay, list pending, sent and dead messages."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import logging
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import ValidationError
from rich.table import Table

from headrace.cli.options import Address, AsJson, confirm, plain_console, print_json
from headrace.config import HeadraceSettings
from headrace.errors import BadArgument, MissingExtra, NotGiven

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from headrace.outbox import DeadMessage, LaneStatus, SentMessage

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)
dead = typer.Typer(no_args_is_help=True)
app.add_typer(dead, name="dead", help="Messages that could not be sent.")

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database", help="postgresql://…, mysql://… or sqlite:///file. Default: the setting outbox.database."
    ),
]
TopicName = Annotated[str | None, typer.Option("--topic", help="Only this topic.")]
Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="The ids of the messages, as `list` shows them.")]


@app.command("migrate")
def migrate_tables(
    database: DatabaseUrl = None,
    to: Annotated[str, typer.Option(help="A version; 'base' removes the tables.")] = "head",
    as_json: AsJson = False,
) -> None:
    """Create the outbox's tables, or migrate them to the newest version.

    Example: headrace outbox migrate --database postgresql://localhost/shop
    """
    version = _operating().make_tables(_url(database), to=to, table_prefix=_prefix())
    typer.echo(json.dumps({"version": version}) if as_json else f"the outbox's tables are at version {version}")


@app.command("relay")
def run_relay(
    database: DatabaseUrl = None,
    address: Address = None,
    threads: Annotated[int | None, typer.Option(help="The number of workers.")] = None,
    delivery: Annotated[str | None, typer.Option(help="at_least_once or exactly_once.")] = None,
    source: Annotated[str | None, typer.Option(help="This database's name among all outboxes of the log.")] = None,
) -> None:
    """Send messages until stopped. SIGTERM and Ctrl-C finish the current batch; a second one does not wait.

    Example: headrace outbox relay --database postgresql://localhost/shop --log kafka://localhost:9092
    """
    settings = HeadraceSettings.load()
    given = {"threads": threads, "delivery": delivery, "source": source}
    changed = {name: value for name, value in given.items() if value is not None}
    try:
        outbox = type(settings.outbox).model_validate({**settings.outbox.model_dump(), **changed})
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        rule = error.errors()[0]["msg"].removeprefix("Input should be ")
        raise BadArgument(f"--{name}", changed.get(name), f"it must be {rule}") from error
    operating, url = _operating(), _url(database)
    operating.check(outbox)
    operating.need_tables(url, table_prefix=outbox.table_prefix)
    settings = settings.model_copy(update={"outbox": outbox})
    asyncio.run(_relay(url, address or settings.log.address, settings))


async def _relay(url: str, address: str, settings: HeadraceSettings) -> None:
    await _operating().relay_until_stopped(url, address, settings, report=typer.echo)
    # A log whose brokers are away would keep flushing; its messages are still in the table, and are sent again.
    os._exit(0)


@app.command("status")
def show_status(database: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Show for each topic the pending messages, the longest wait, the relay that sends them, and the last error.

    Example: headrace outbox status --database postgresql://localhost/shop
    """
    operating = _operating()
    found = operating.ask(_url(database), operating.status, table_prefix=_prefix())
    if as_json:
        for lane in found:
            print_json(dataclasses.asdict(lane))
        return
    table = Table("topic", "bucket", "pending", "oldest", "dead", "held by", "retries", "error", box=None)
    for lane in found:
        table.add_row(*_status_row(lane))
    plain_console().print(table if found else "nothing was ever published")


@app.command("sent")
def list_sent(
    database: DatabaseUrl = None,
    topic: TopicName = None,
    event_id: Annotated[str | None, typer.Option("--event-id", help="Only the message with this event id.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most messages shown.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List messages that were sent, the last ones first. Only topics of outbox.keep_sent_topics keep them.

    Example: headrace outbox sent --topic orders --limit 10
    """
    operating = _operating()
    found = operating.ask(
        _url(database),
        lambda db: operating.sent_messages(db, topic=topic, event_id=event_id, limit=limit),
        table_prefix=_prefix(),
    )
    if as_json:
        for message in found:
            print_json(_message_as_json(message))
        return
    table = Table("id", "topic", "key", "bytes", "event id", "sent", box=None)
    for message in found:
        size = "tombstone" if message.message is None else str(len(message.message))
        at = datetime.fromtimestamp(message.sent_at / 1000, UTC).isoformat(timespec="milliseconds")
        table.add_row(str(message.id), message.topic, _text(message.key), size, message.event_id, at)
    plain_console().print(table if found else "no sent message is kept; see outbox.keep_sent_topics")


@dead.command("list")
def list_dead(
    database: DatabaseUrl = None,
    topic: TopicName = None,
    limit: Annotated[int, typer.Option(min=1, help="Most messages shown.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the messages that could not be sent, and why.

    Example: headrace outbox dead list --topic orders
    """
    operating = _operating()
    found = operating.ask(
        _url(database), lambda db: operating.dead_messages(db, topic=topic, limit=limit), table_prefix=_prefix()
    )
    if as_json:
        for message in found:
            print_json(_message_as_json(message))
        return
    table = Table("id", "topic", "key", "bytes", "error", box=None)
    for message in found:
        size = "tombstone" if message.message is None else str(len(message.message))
        table.add_row(str(message.id), message.topic, _text(message.key), size, message.error)
    plain_console().print(table if found else "no message is dead")


@dead.command("replay")
def replay_dead(
    ids: Ids = None,
    topic: TopicName = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Send dead messages again, at their old place in the order.

    Example: headrace outbox dead replay 17 18
    """
    _check_choice(ids, topic, everything)
    count = _change_dead(database, ids, topic, "replay")
    typer.echo(
        json.dumps({"replayed": count}) if as_json else f"{count} message{'s' if count != 1 else ''} will be sent again"
    )


@dead.command("purge")
def purge_dead(
    ids: Ids = None,
    topic: TopicName = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Remove dead messages, and send the messages that they held back.

    Example: headrace outbox dead purge --topic orders --yes
    """
    _check_choice(ids, topic, everything)
    confirm("remove these messages forever?", is_sure=yes)
    count = _change_dead(database, ids, topic, "purge")
    typer.echo(json.dumps({"purged": count}) if as_json else f"{count} message{'s' if count != 1 else ''} gone")


def _change_dead(
    database: str | None, ids: list[int] | None, topic: str | None, change: Literal["replay", "purge"]
) -> int:
    """Replay or purge dead messages, all that are named or none. Raises BadArgument for an id that is not there."""
    operating = _operating()

    def work(db: Connection) -> int:
        if ids and (missing := operating.missing_ids(db, ids, topic=topic)):
            of_topic = f" of topic {topic!r}" if topic is not None else ""
            rule = f"no dead message{of_topic} has it, and nothing was changed; see: headrace outbox dead list"
            raise BadArgument("id", missing if len(missing) > 1 else missing[0], rule)
        return int(getattr(operating, change)(db, topic=topic, ids=ids or None))

    return int(operating.change(_url(database), work, table_prefix=_prefix()))


def _check_choice(ids: list[int] | None, topic: str | None, everything: bool) -> None:
    if not ids and topic is None and not everything:
        raise NotGiven("ID", "name some ids, --topic, or --all")


def _url(database: str | None) -> str:
    found = HeadraceSettings.load().outbox.database
    if database is None and found is None:
        raise NotGiven("--database", "name the database, here or as outbox.database in the settings")
    return database or (found.get_secret_value() if found is not None else "")


def _prefix() -> str:
    return HeadraceSettings.load().outbox.table_prefix


def _operating() -> Any:  # noqa: ANN401 - a module
    """Return the outbox's operations, imported on use: other commands don't need SQLAlchemy. Raises MissingExtra."""
    try:
        from headrace.outbox import operations as operating
    except ModuleNotFoundError as missing:
        if missing.name not in ("sqlalchemy", "alembic"):
            raise
        raise MissingExtra(missing.name, "outbox") from missing
    # Alembic logs every step; the command prints the result at the end.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return operating


def _status_row(lane: LaneStatus) -> tuple[str, ...]:
    held = "" if lane.locked_by is None else f"{lane.locked_by[:8]} ({lane.locked_for_s or 0:.0f} s)"
    error = lane.last_error or ""
    return (
        lane.topic,
        str(lane.bucket),
        str(lane.pending),
        f"{lane.max_wait_s:.1f} s" if lane.pending else "",
        str(lane.dead),
        held,
        str(lane.retries),
        error,
    )


def _message_as_json(message: DeadMessage | SentMessage) -> dict[str, Any]:
    shown = message._asdict()
    for name in ("key", "message"):
        value = shown[name]
        shown[name] = None if value is None else {"base64": base64.b64encode(value).decode()}
    return shown


def _text(key: bytes | None) -> str:
    return "" if key is None else key.decode(errors="backslashreplace")
