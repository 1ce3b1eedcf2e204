"""`headrace tags`: look at events by tag, follow them, repair their views, and give tags to existing events."""

from __future__ import annotations

import base64
import json
import sys
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from headrace.app import Headrace, journal_topics
from headrace.cli.options import (
    Address,
    AsJson,
    StoreAddress,
    answer,
    command_settings,
    confirm,
    tell_unreplicated,
    with_headrace,
)
from headrace.errors import BadArgument, NotGiven
from headrace.observe import progress_on
from headrace.runtime import SYSTEM_CLOCK, load_named
from headrace.tags import ALL_TAGS, After, Chooser, TaggedEvent, TagRepair, TagTrim

__all__ = ["after_of_text", "app"]

app = typer.Typer(no_args_is_help=True)

Tag = Annotated[str, typer.Argument(metavar="TAG", help="The tag.")]
Topic = Annotated[str | None, typer.Option("--topic", help="The topic of the journal.")]
Id = Annotated[str | None, typer.Option("--id", help="The journal's id.")]

_CHOOSER_RULE = "it must name a function of one event, as in shop.tags:is_big"


@app.command("backfill")
def backfill(
    tag: Tag,
    where: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="A function of one event that chooses, as in shop.tags:is_big.")
    ],
    again: Annotated[
        bool, typer.Option("--again", help="Fill the tag again, also one whose back-fill was killed.")
    ] = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Give a tag to all existing events that a function chooses. Writers may continue meanwhile.

    Change the writers first, so that they give the tag to new events: the job does not look at later events.

    Example: headrace tags backfill big shop.tags:is_big
    """
    from headrace.cli.spark_sessions import spark_for
    from headrace.pipeline import Endpoints, backfill_tag

    choose, settings = _load_chooser(where), command_settings()
    endpoints = Endpoints.of(address, store=store, settings=settings)
    with spark_for(endpoints, settings) as spark:
        done = backfill_tag(spark, endpoints, tag, choose, name=where, again=again)
    if as_json:
        typer.echo(json.dumps(asdict(done)))
    elif done.is_new:
        typer.echo(f"{tag}: {done.tagged:,} of {done.events:,} events have it now; writers give it to later ones")
    else:
        typer.echo(f"{tag} is filled by {where} already; --again fills it again")


def _load_chooser(where: str) -> Chooser:
    """Return the function; workers get it by value, because they may not find its module."""
    choose = load_named("function", where, _CHOOSER_RULE)
    if not callable(choose):
        raise BadArgument("function", where, _CHOOSER_RULE)
    from pyspark.cloudpickle import register_pickle_by_value

    if (module := sys.modules.get(getattr(choose, "__module__", ""))) is not None:
        register_pickle_by_value(module)
    chooser: Chooser = choose
    return chooser


@app.command("list")
def list_tags(
    topic: Topic = None, id_: Id = None, address: Address = None, store: StoreAddress = None, as_json: AsJson = False
) -> None:
    """List the tags that replication has seen; with --topic and --id those of one journal, and their counts.

    Example: headrace tags list --topic accounts --id acc-1
    """
    if (topic is None) != (id_ is None):
        missing = "--topic" if topic is None else "--id"
        raise NotGiven(missing, "the tags of one journal are listed with --topic and --id; give both, or neither")

    async def run(hr: Headrace) -> list[str] | dict[str, int]:
        await tell_unreplicated(hr, await journal_topics(hr) if topic is None else [topic])
        return await (hr.tags.tags() if topic is None or id_ is None else hr.tags.tags_of(topic, id_))

    found = with_headrace(address, store, run)
    counts: dict[str, int | None] = dict(found) if isinstance(found, dict) else dict.fromkeys(found)
    for tag, count in counts.items():
        if count is None:
            answer(tag, as_json=as_json, tag=tag)
        else:
            answer(f"{tag}  {count}", as_json=as_json, tag=tag, count=count)
    if not counts and not as_json:
        typer.echo("no tags yet")


@app.command("follow")
def follow(
    tags: Annotated[list[str], typer.Argument(metavar="TAG...", help="The tag; of several, each event once.")],
    after: Annotated[
        str | None, typer.Option(help="An offset as printed by --json, or a time: 2026-01-31T12:00Z.")
    ] = None,
    current: Annotated[bool, typer.Option("--current", help="Stop after the events that are there now.")] = False,
    limit: Annotated[int | None, typer.Option(help="Stop after this number of events.")] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Write nothing to the log; events may come later.")
    ] = False,
    skip_trimmed: Annotated[
        bool, typer.Option("--skip-trimmed", help="Begin behind events that were removed because of their age.")
    ] = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Print a tag's events, one a line, and continue with new ones until interrupted.

    Example: headrace tags follow vip --after 2026-01-31T12:00Z
    """

    async def run(hr: Headrace) -> None:
        count = 0
        found = hr.events_by_tag(
            tags, after=after_of_text(after), live=not current, read_only=read_only, skip_trimmed=skip_trimmed
        )
        async with aclosing(found) as events:
            async for event in events:
                _print(event, as_json=as_json)
                count += 1
                if count == limit:
                    return
        if count == 0:  # also the sign of a misspelt tag
            typer.echo(f"no events under {', '.join(tags)}" + (f" after {after}" if after else ""), err=True)

    with_headrace(address, store, run)


@app.command("rebuild")
def rebuild(
    tag: Annotated[str | None, typer.Argument(metavar="TAG", help="The tag; with --topic and --id.")] = None,
    topic: Topic = None,
    id_: Id = None,
    everything: Annotated[bool, typer.Option("--all", help="All tags of all journals.")] = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild views by tag from the journals: the view of one journal under one tag, or all of them.

    Example: headrace tags rebuild vip --topic accounts --id acc-1
    """

    async def run(hr: Headrace) -> int:
        repair = TagRepair(hr.log, hr.store, hr.settings.tags)
        if everything:
            return await repair.rebuild_all(progress_on())
        if tag is None or topic is None or id_ is None:
            missing = "TAG" if tag is None else "--topic" if topic is None else "--id"
            raise NotGiven(missing, "give TAG, --topic and --id to rebuild one view, or --all to rebuild all views")
        return await repair.rebuild(topic, id_, tag)

    count = with_headrace(address, store, run)
    answer(f"rows written: {count}", as_json=as_json, rows_written=count)


@app.command("delete")
def delete(
    tag: Tag,
    topic: Annotated[str, typer.Option("--topic", help="The topic of the journal.")],
    id_: Annotated[str, typer.Option("--id", help="The journal's id.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Remove a journal's rows under a tag. Its numbers go on, and `rebuild` restores what the journal still has.

    Example: headrace tags delete vip --topic accounts --id acc-1
    """
    confirm(f"remove the rows of {id_} in {topic} under {tag}?", is_sure=yes)

    async def run(hr: Headrace) -> int:
        return await TagRepair(hr.log, hr.store, hr.settings.tags).delete(topic, id_, tag)

    count = with_headrace(address, store, run)
    answer(f"rows removed: {count}", as_json=as_json, rows_removed=count)


@app.command("trim")
def trim(
    tags: Annotated[list[str] | None, typer.Argument(metavar="[TAG]...", help="Only these tags.")] = None,
    before: Annotated[
        str | None, typer.Option(help="Remove what is older than this time, as 2026-01-31; else see tags.retention_s.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Remove the oldest events from views by tag, in whole buckets; journals keep theirs.

    Queries and projections that have not read them yet are refused from then on. Replication trims automatically if
    tags.retention_s is set.

    Example: headrace tags trim vip --before 2026-01-31
    """
    moment = _time_of(before) if before is not None else None
    which = ", ".join(tags) if tags else "all tags"
    since = f"before {moment.isoformat()}" if moment is not None else "beyond tags.retention_s"
    confirm(f"remove the events of {which} {since} from the views?", is_sure=yes)

    removed = with_headrace(address, store, lambda hr: _trim(hr, tags or [], moment))
    if as_json:
        typer.echo(json.dumps(removed, ensure_ascii=False))
        return
    lines = [f"{tag}  buckets removed: {count}" for tag, count in removed.items()]
    typer.echo("\n".join(lines) or "nothing is that old, or other partitions are not replicated that far")


async def _trim(hr: Headrace, tags: list[str], moment: datetime | None) -> dict[str, int]:
    """Remove events older than a moment, or than the settings allow; return the removed buckets by tag."""
    settings = hr.settings.tags
    if moment is None:
        kept = {tag: age for tag in tags if (age := settings.retention_s.get(tag, settings.retention_s.get(ALL_TAGS)))}
        chosen = kept if tags else settings.retention_s
        if not chosen:
            rule = "no retention is set for what should be trimmed; set tags.retention_s, or give --before TIME"
            raise NotGiven("--before", rule)
        trimmer = TagTrim(hr.log, hr.store, settings.model_copy(update={"retention_s": chosen}))
        return await trimmer.by_age(SYSTEM_CLOCK.now_ms(), progress_on())
    trimmer = TagTrim(hr.log, hr.store, settings)
    counts = {tag: await trimmer.before(tag, moment) for tag in tags or await hr.tags.tags()}
    return {tag: count for tag, count in counts.items() if count}


@app.command("off")
def switch_off(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Stop keeping views by tag. Only `rebuild --all` restores them, from what the journals have by then.

    Example: headrace tags off
    """
    confirm("give up the views by tag of this store?", is_sure=yes)

    async def run(hr: Headrace) -> bool:
        return await TagRepair(hr.log, hr.store, hr.settings.tags).give_up()

    is_changed = with_headrace(address, store, run)
    text = "views by tag are off; set tags.enabled = false" if is_changed else "there are no views by tag here"
    answer(text, as_json=as_json, changed=is_changed)


def after_of_text(text: str | None, *, name: str = "--after") -> After:
    """Return where to start: an offset, or a time (UTC where it names no zone). Raises BadArgument with the name."""
    if text is None or text.count(":") in (4, 5):
        return text
    return _time_of(text, name=name, rule="it is neither an offset nor a time, as 2026-01-31T12:00Z")


def _time_of(text: str, *, name: str = "--before", rule: str = "it is no time, as 2026-01-31T12:00Z") -> datetime:
    """Return a time (UTC where it names no zone)."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadArgument(name, text, rule) from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _print(event: TaggedEvent, *, as_json: bool) -> None:
    payload = event.payload
    if isinstance(payload, bytes):
        payload = {"base64": base64.b64encode(payload).decode()}
    if as_json:
        where = {"topic": event.topic, "id": event.id, "seq_nr": event.seq_nr, "number": event.number}
        rest = {"payload": payload, "timestamp_ms": event.timestamp_ms, "offset": str(event.tag_offset)}
        typer.echo(json.dumps({**where, **rest}, ensure_ascii=False))
        return
    shown = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    time = datetime.fromtimestamp(event.timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    typer.echo(f"{time}  {event.topic}/{event.id} #{event.seq_nr}  {'(redacted)' if event.is_redacted else shown}")
