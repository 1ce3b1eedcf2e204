"""`headrace journal`: look into journals and change them, on either tier."""

from __future__ import annotations

import base64
import json
import sys
import uuid
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from rich.table import Table

from headrace.app import Headrace
from headrace.cli.options import (
    Address,
    AsJson,
    StoreAddress,
    answer,
    confirm,
    creating_headrace,
    plain_console,
    print_json,
    tell_unreplicated,
    with_headrace,
)
from headrace.errors import BadArgument, NotGiven
from headrace.journal import UNCHECKED, Expected, Moment, read_terms
from headrace.model import MAX_SEQ_NR, Event, StoredEvent, WrittenPosition

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic of the journals.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The journal's id.")]


@app.command("append")
def append(
    topic: Topic,
    id_: Id,
    payloads: Annotated[
        list[str] | None, typer.Argument(metavar="PAYLOAD", help="One event each: JSON, or text with --text.")
    ] = None,
    is_text: Annotated[bool, typer.Option("--text", help="The payloads are plain text, stored as they are.")] = False,
    seq_nr: Annotated[int | None, typer.Option(help="The seq_nr of the first event. Default: the next one.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag for the events; may be given again.")] = None,
    expected: Annotated[
        int | None, typer.Option(help="Append only if the pointer is this seq_nr; 0: only if there is no journal.")
    ] = None,
    expire_after: Annotated[
        str | None, typer.Option(help="When the journal expires unless it is appended to, as in '1 day'.")
    ] = None,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Append events to a journal. Without payloads they are read from stdin, one a line.

    Example: headrace journal append accounts acc-1 '{"opened": 100}' --tag vip
    """
    given = payloads_of(payloads, is_text=is_text) if payloads else payloads_of_lines(sys.stdin, is_text=is_text)
    if not given:
        raise BadArgument("payloads", given, "there must be one at least, as an argument or as a line of stdin")

    async def run(hr: Headrace) -> tuple[WrittenPosition, int, int]:
        journal = hr.journal(topic, origin="headrace-cli")
        first = seq_nr if seq_nr is not None else (await journal.pointer(id_) or 0) + 1
        events = [Event(first + n, payload, tuple(tag or ())) for n, payload in enumerate(given)]
        check: Expected = expected
        if expected is None:  # a shared topic refuses checks: others who read it don't know them
            is_shared = (await read_terms(hr.store.settings, topic)).is_shared
            check = first - 1 if seq_nr is None and not is_shared else UNCHECKED
        # With an append id the answer is what became of the events, not just that they were written.
        position = await journal.append(
            id_, events, expected=check, append_id=uuid.uuid4().hex, expire_after=expire_after
        )
        return position, events[0].seq_nr, events[-1].seq_nr

    position, first, last = creating_headrace(address, store, run)
    if as_json:
        at = {"partition": position.partition, "offset": position.offset, "token": position.token}
        print_json({"first": first, "last": last, **at})
        return
    events = f"event {first}" if first == last else f"events {first} to {last}"
    typer.echo(f"appended {events} to {id_} at partition {position.partition}, offset {position.offset}")


@app.command("read")
def read(
    topic: Topic,
    id_: Id,
    from_seq_nr: Annotated[int, typer.Option("--from", help="The first seq_nr to print.")] = 1,
    to_seq_nr: Annotated[int | None, typer.Option("--to", help="The last seq_nr to print.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue with new events, until --to or until interrupted.")
    ] = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Print a journal's events, one a line.

    Example: headrace journal read accounts acc-1 --from 10 --json
    """

    async def run(hr: Headrace) -> None:
        count = 0
        if follow:
            await _is_missing(hr, topic)
        journal = hr.journal(topic, read_only=True)
        async with aclosing(journal.read(id_, from_seq_nr, to_seq_nr=to_seq_nr, live=follow)) as events:
            async for event in events:
                _print_event(event, as_json)
                count += 1
        if count == 0 and follow:
            return
        if count == 0 and not await _is_missing(hr, topic) and not as_json:
            typer.echo(f"{id_} has no events from {from_seq_nr} on", err=True)

    with_headrace(address, store, run)


@app.command("pointer")
def pointer(
    topic: Topic, id_: Id, address: Address = None, store: StoreAddress = None, as_json: AsJson = False
) -> None:
    """Print a journal's pointer: the seq_nr of its last event.

    Example: headrace journal pointer accounts acc-1
    """

    async def run(hr: Headrace) -> int | None:
        found = await hr.journal(topic, read_only=True).pointer(id_)
        if found is None:
            await _is_missing(hr, topic)
        return found

    found = with_headrace(address, store, run)
    if as_json:
        print_json({"id": id_, "pointer": found})
    else:
        typer.echo(str(found) if found is not None else f"there is no journal {id_} in {topic}")


@app.command("delete")
def delete(
    topic: Topic,
    id_: Id,
    to: Annotated[int | None, typer.Option(help="The last seq_nr to delete.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all events there are.")] = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Delete a journal's events up to a seq_nr, or all of them. The journal and its pointer stay.

    Example: headrace journal delete accounts acc-1 --to 10
    """
    if (to is None) != everything:
        rule = "give the last seq_nr to delete, or --all; one of the two"
        raise NotGiven("--to", rule) if to is None else BadArgument("--to", to, rule)
    last = MAX_SEQ_NR if to is None else to
    done = with_headrace(address, store, lambda hr: hr.journal(topic, origin="headrace-cli").delete(id_, to=last))
    text = f"deleted, at offset {done.offset}" if done else f"there is no journal {id_} in {topic}; nothing written"
    answer(text, as_json=as_json, deleted=done is not None, offset=done.offset if done else None)


@app.command("purge")
def purge(
    topic: Topic,
    id_: Id,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Remove a whole journal. The next append begins a new one.

    Example: headrace journal purge accounts acc-1 --yes
    """
    confirm(f"remove journal {id_} of {topic} for good?", is_sure=yes)

    async def work(hr: Headrace) -> WrittenPosition:
        await hr.log.admin.describe(topic)  # a purge would create a topic whose name is misspelt
        return await hr.journal(topic, origin="headrace-cli").purge(id_)

    done = with_headrace(address, store, work)
    answer(f"purged, at offset {done.offset}", as_json=as_json, purged=True, offset=done.offset)


@app.command("ids")
def ids(
    topic: Topic,
    unreplicated: Annotated[
        bool, typer.Option("--unreplicated", help="Read the log too: all journals, replicated or not.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="List all, and continue with new ones until interrupted.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Stop after this number of ids.")] = None,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """List the ids of the journals that replication has reached.

    Example: headrace journal ids accounts
    """

    async def run(hr: Headrace) -> None:
        if follow:
            await _is_missing(hr, topic)
        count = 0
        async with aclosing(hr.journal(topic, read_only=True).ids(unreplicated=unreplicated, live=follow)) as ids:
            async for found in ids:
                answer(found, as_json=as_json, id=found)
                count += 1
                if count == limit:
                    return
        if not await _is_missing(hr, topic) and not unreplicated:
            await tell_unreplicated(hr, [topic], instead="; or list all with --unreplicated")

    with_headrace(address, store, run)


async def _is_missing(hr: Headrace, topic: str) -> bool:
    """Return True if there is no such topic, and say so on stderr: its name may be misspelt."""
    known = await hr.log.admin.topics()
    if topic in known:
        return False
    near = get_close_matches(topic, known, n=1)
    typer.echo(f"there is no topic {topic}" + (f"; did you mean {near[0]}?" if near else ""), err=True)
    return True


@app.command("history")
def history(
    topic: Topic,
    id_: Id,
    marks: Annotated[bool, typer.Option("--marks", help="Show Marks too; they change nothing.")] = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Show a journal's timeline: every action, what it did, and why some did nothing.

    Example: headrace journal history accounts acc-1
    """

    async def run(hr: Headrace) -> list[Moment]:
        return [m async for m in hr.journal(topic, read_only=True).history(id_, with_marks=marks)]

    moments = with_headrace(address, store, run)
    if as_json:
        for m in moments:
            time = {"offset": m.offset, "timestamp_ms": m.timestamp_ms}
            print_json({**time, "what": m.what, "effect": m.effect, "reason": m.reason})
        return
    table = Table("offset", "time (UTC)", "action", "effect", box=None)
    for m in moments:
        effect = f"{m.effect}: {m.reason}" if m.reason else m.effect
        table.add_row("" if m.offset is None else str(m.offset), _time(m.timestamp_ms), m.what, effect)
    plain_console().print(table if moments else f"nothing is known of {id_} in {topic}")


@app.command("stats")
def stats(topic: Topic, address: Address = None, store: StoreAddress = None, as_json: AsJson = False) -> None:
    """Show what each partition of the log holds and how far replication has come.

    Example: headrace journal stats accounts
    """
    found = with_headrace(address, store, lambda hr: hr.journal(topic, read_only=True).stats())
    if as_json:
        for partition in found:
            print_json({**partition._asdict(), "lag": partition.lag})
        return
    table = Table("partition", "start", "end", "replicated to", "behind", box=None)
    for partition in found:
        replicated = "nothing yet" if partition.replicated is None else str(partition.replicated)
        row = (partition.partition, partition.start, partition.end, replicated, partition.lag)
        table.add_row(*(str(value) for value in row))
    plain_console().print(table)


def payloads_of(texts: Sequence[str], *, is_text: bool) -> list[Any]:
    """Return the payloads that arguments hold. Raises BadArgument with the place of the first mistake."""
    return [text if is_text else _json(f"payload {number}", text) for number, text in enumerate(texts, 1)]


def payloads_of_lines(lines: Iterable[str], *, is_text: bool) -> list[Any]:
    """Return the payloads that lines hold; empty lines hold none. Raises BadArgument with the line of a mistake."""
    numbered = [(number, line.rstrip("\r\n")) for number, line in enumerate(lines, 1) if line.strip()]
    return [line if is_text else _json(f"line {number}", line) for number, line in numbered]


def _json(name: str, text: str) -> Any:  # noqa: ANN401 - whatever JSON can say
    try:
        payload = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        rule = f"it is not JSON: {error.msg[:1].lower()}{error.msg[1:]} at {at}; correct it, or store text with --text"
        raise BadArgument(name, text, rule) from error
    except ValueError as error:
        raise BadArgument(name, text, f"it is not JSON: {error}; correct it, or store text with --text") from error
    except RecursionError as error:
        raise BadArgument(name, f"{text[:20]}…", "it is nested too deeply; store it as text with --text") from error
    if payload is None:
        raise BadArgument(name, text, "null is no payload; leave the event out or give a value")
    return payload


def _refuse_constant(name: str) -> float:
    raise ValueError(f"JSON has no {name}")


def _print_event(event: StoredEvent, as_json: bool) -> None:
    payload = event.payload
    if isinstance(payload, bytes):
        payload = {"base64": base64.b64encode(payload).decode()}
    if as_json:
        place = {"partition": event.partition, "offset": event.offset, "timestamp_ms": event.timestamp_ms}
        print_json({"seq_nr": event.seq_nr, "payload": payload, "tags": event.tags, **place})
        return
    tags = f"  [{', '.join(event.tags)}]" if event.tags else ""
    shown = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    typer.echo(f"{event.seq_nr:>6}  {_time(event.timestamp_ms)}  {shown}{tags}")


def _time(timestamp_ms: int | None) -> str:
    if timestamp_ms is None:
        return ""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
