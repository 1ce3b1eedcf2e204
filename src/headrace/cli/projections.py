"""`headrace projection`: run, rebuild, look at and operate projections that an application defines."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.table import Table

from headrace.app import Headrace, ProjectionHandle, ProjectionStatus
from headrace.cli.options import (
    Address,
    AsJson,
    StoreAddress,
    answer,
    confirm,
    creating_headrace,
    plain_console,
    with_headrace,
)
from headrace.cli.tags import after_of_text
from headrace.errors import BadArgument
from headrace.observe import progress_on
from headrace.projection import (
    DeadLetter,
    Projection,
    ProjectionRunner,
    catch_up_with_others,
    check_not_ahead,
    next_event,
    rebuild,
    replay_letters,
    skip_event,
)
from headrace.runtime import SYSTEM_CLOCK, load_named, shutdown_on_signals
from headrace.tags import TaggedEvent, TagOffset, after_of

__all__ = ["app", "load_projection"]

app = typer.Typer(no_args_is_help=True)
offset_app = typer.Typer(no_args_is_help=True)
letters_app = typer.Typer(no_args_is_help=True)
app.add_typer(offset_app, name="offset", help="How far a projection is: show it, or change it without a rebuild.")
app.add_typer(letters_app, name="dead-letters", help="Events that a projection has set aside.")

T = TypeVar("T")
Work = Callable[[Headrace, ProjectionHandle], Awaitable[T]]

Where = Annotated[
    str, typer.Argument(metavar="MODULE:NAME", help="Where the projection is, as in shop.projections:orders.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

_GOES_OUT_AGAIN = (
    "What its handler sends to others, such as mails and messages, goes out again for each event, unless the handler "
    "looks at current_delivery().is_replay."
)
_HAS_NO_RESET = "The projection has no reset: what its handler made so far stays, and is made a second time."


@app.command("run")
def run(
    where: Where,
    worker: Annotated[int | None, typer.Option(help="With --workers: which of them this one is, from 0.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="The fixed number of workers. Default: running workers share the slots.")
    ] = None,
    current: Annotated[bool, typer.Option("--current", help="Stop after the events that are there now.")] = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Run a worker of a projection until it is stopped. Failures are retried.

    Example: headrace projection run shop.projections:orders
    """
    projection = load_projection(where)

    async def use(hr: Headrace) -> None:
        if current:
            async with hr.projection(projection) as handle:
                count = await _run_current(hr, handle, worker or 0, 1 if workers is None else workers)
                text = f"{projection.name}: events handled: {count}"
                answer(text, as_json=as_json, projection=projection.name, events_handled=count)
            return
        async with shutdown_on_signals() as stopping, hr.project(projection, worker=worker, workers=workers):
            await stopping.wait()

    creating_headrace(address, store, use)


async def _run_current(hr: Headrace, handle: ProjectionHandle, worker: int, workers: int) -> int:
    name = handle.projection.name
    if (pause := await handle.control.paused()) is not None:
        typer.echo(f"{name} is paused since {_time(pause.since_ms)}; run: headrace projection resume", err=True)
        raise typer.Exit(1)
    count = 0

    def add(done: int) -> None:
        nonlocal count
        count += done

    runner = ProjectionRunner(handle.projection, hr.tags, handle.target, worker=worker, workers=workers, on_done=add)
    await catch_up_with_others(runner)
    return count


@app.command("rebuild")
def rebuild_projection(
    where: Where,
    start: Annotated[str | None, typer.Option("--from", help="Handle only events after this offset or time.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the events.")] = False,
    yes: Yes = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Reset a projection's work and handle its events again. Workers may run meanwhile.

    Example: headrace projection rebuild shop.projections:orders --dry-run
    """
    if not dry_run:
        projection = load_projection(where)
        warning = _GOES_OUT_AGAIN if projection.reset is not None else f"{_HAS_NO_RESET} {_GOES_OUT_AGAIN}"
        confirm(f"{warning}\nReset {projection.name} and handle its events again?", is_sure=yes)

    async def work(hr: Headrace, handle: ProjectionHandle) -> None:
        projection, after = handle.projection, after_of_text(start, name="--from")
        done = await rebuild(projection, hr.tags, handle.target, start=after, dry_run=dry_run, progress=progress_on())
        word = "would be handled" if dry_run else "handled"
        rest = f", and {done.by_workers} by running workers" if done.by_workers else ""
        text = f"{projection.name}: {done.events} events {word}{rest}, {done.events_per_s:,.0f} events/s"
        facts = {"events": done.events, "events_by_workers": done.by_workers, "dry_run": dry_run}
        answer(text, as_json=as_json, projection=projection.name, **facts)

    _with_projection(where, address, store, work)


@app.command("status")
def status(
    where: Where,
    limit: Annotated[int, typer.Option("--limit", help="Count waiting events up to this number.")] = 100_000,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Show a projection's offset and lag, its errors and its workers.

    Example: headrace projection status shop.projections:orders
    """
    found = _with_projection(where, address, store, lambda _, handle: handle.status(count_up_to=limit))
    if as_json:
        typer.echo(json.dumps(_status_json(found)))
        return
    at = f"at {_time(found.offset.log_time_ms)} (offset {found.offset})" if found.offset else "not all slots have begun"
    typer.echo(f"{found.name}: tag {found.tag}, {found.slots_begun} of {found.slots} slots begun, {at}, {found.lag}")
    if found.missed is not None:
        typer.echo(f"events are gone that it has not handled: {found.missed}")
    if found.pause is not None:
        reason = f" ({found.pause.reason})" if found.pause.reason else ""
        typer.echo(f"paused since {_time(found.pause.since_ms)}{reason}; run: headrace projection resume")
    if found.dead_letters:
        typer.echo(f"dead letters: {found.dead_letters}; see: headrace projection dead-letters list")
    for report in found.workers.values():
        shown = f"{report.host}, process {report.pid}: {report.state}, {len(report.slots)} slots"
        error = f": {report.error}" if report.error else ""
        typer.echo(f"worker on {shown}, last seen {_time(report.at_ms)}{error}")


@app.command("wait")
def wait(
    where: Where,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Give up after this number of seconds.")] = 30.0,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Wait until the running workers have handled everything that was written by now.

    Example: headrace projection wait shop.projections:orders --timeout 60
    """
    _with_projection(where, address, store, lambda _, handle: handle.caught_up(timeout_s=timeout_s))
    answer("all that was written is handled", as_json=as_json, handled=True)


@app.command("pause")
def pause(
    where: Where,
    reason: Annotated[str, typer.Option("--reason", help="Shown by status.")] = "",
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Pause all workers, including those that start later, until `resume`.

    Example: headrace projection pause shop.projections:orders --reason maintenance
    """
    is_new = _with_projection(where, address, store, lambda _, handle: handle.pause(reason))
    text = "paused; workers notice within a second" if is_new else "it was paused before"
    answer(text, as_json=as_json, paused=True, changed=is_new)


@app.command("resume")
def resume(where: Where, address: Address = None, store: StoreAddress = None, as_json: AsJson = False) -> None:
    """Let paused workers continue.

    Example: headrace projection resume shop.projections:orders
    """
    was_paused = _with_projection(where, address, store, lambda _, handle: handle.resume())
    answer("resumed" if was_paused else "it was not paused", as_json=as_json, paused=False, changed=was_paused)


@offset_app.command("show")
def show_offsets(where: Where, address: Address = None, store: StoreAddress = None, as_json: AsJson = False) -> None:
    """Print the offset of each slot.

    Example: headrace projection offset show shop.projections:orders
    """
    offsets = _with_projection(where, address, store, lambda _, handle: handle.target.load())
    if as_json:
        typer.echo(json.dumps({slot: _text(place) for slot, place in offsets.items()}))
        return
    table = Table("slot", "offset", "time (UTC)", box=None)
    for slot, place in sorted(offsets.items()):
        shown = ("nothing yet", "") if place is None else (str(place), _time(place.log_time_ms))
        table.add_row(str(slot), *shown)
    plain_console().print(table)


@offset_app.command("set")
def set_offsets(
    where: Where,
    place: Annotated[
        str, typer.Argument(metavar="OFFSET", help="An offset, or a time; what follows it will be handled.")
    ],
    slot: Annotated[list[int] | None, typer.Option("--slot", help="Only this slot; may be given again.")] = None,
    yes: Yes = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Continue from another offset or time, without resetting what the handler has made.

    Example: headrace projection offset set shop.projections:orders 2026-01-31T12:00Z
    """
    _put(where, after_of(after_of_text(place, name="OFFSET")), slot, address, store, is_sure=yes, as_json=as_json)


@offset_app.command("clear")
def clear_offsets(
    where: Where,
    slot: Annotated[list[int] | None, typer.Option("--slot", help="Only this slot; may be given again.")] = None,
    yes: Yes = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Continue from the first event, without resetting what the handler has made.

    Example: headrace projection offset clear shop.projections:orders
    """
    _put(where, None, slot, address, store, is_sure=yes, as_json=as_json)


@offset_app.command("skip")
def skip(
    where: Where,
    topic: Annotated[str | None, typer.Option("--topic", help="The next event of a journal of this topic.")] = None,
    id_: Annotated[str | None, typer.Option("--id", help="The next event of the journal with this id.")] = None,
    yes: Yes = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Skip the next event that is not handled yet, of all journals or of one. It will have no effect.

    Example: headrace projection offset skip shop.projections:orders --topic accounts --id acc-1
    """

    async def work(hr: Headrace, handle: ProjectionHandle) -> None:
        projection, offsets = handle.projection, await handle.target.load()
        event = await next_event(projection, hr.tags, offsets, topic=topic, id_=id_)
        if event is None:
            answer(f"{projection.name} has handled all events there are", as_json=as_json, skipped=None)
            return
        confirm(f"Skip {_shown(event)} without handling it?", is_sure=yes)
        await skip_event(projection, hr.tags, handle.target, event, offsets)
        skipped = {"topic": event.topic, "id": event.id, "seq_nr": event.seq_nr, "offset": str(event.tag_offset)}
        answer(f"skipped {_shown(event)}", as_json=as_json, skipped=skipped)

    _with_projection(where, address, store, work)


@letters_app.command("list")
def list_letters(where: Where, address: Address = None, store: StoreAddress = None, as_json: AsJson = False) -> None:
    """List the events that were set aside, with their errors.

    Example: headrace projection dead-letters list shop.projections:orders
    """
    letters = _with_projection(where, address, store, lambda _, handle: handle.target.letters.all())
    if as_json:
        for letter in letters:
            typer.echo(json.dumps(msgspec.structs.asdict(letter), ensure_ascii=False))
        return
    for letter in letters:
        typer.echo(f"{_time(letter.failed_ms)}  {_letter(letter)}, attempts: {letter.attempts}: {letter.error}")
    if not letters:
        typer.echo("there are no dead letters")


@letters_app.command("replay")
def replay(
    where: Where,
    offset: Annotated[str | None, typer.Option("--offset", help="Only the letter of this offset.")] = None,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Handle the events that were set aside. Those that fail again stay.

    Example: headrace projection dead-letters replay shop.projections:orders
    """

    async def work(hr: Headrace, handle: ProjectionHandle) -> int:
        letters = _chosen(await handle.target.letters.all(), offset)
        done = await replay_letters(handle.projection, hr.tags, handle.target, letters)
        for failure in done.failed:
            typer.echo(str(failure), err=True)
        text = f"handled: {done.handled}, failed again: {len(done.failed)}"
        answer(text, as_json=as_json, handled=done.handled, failed=len(done.failed))
        return len(done.failed)

    if _with_projection(where, address, store, work):
        raise typer.Exit(1)


@letters_app.command("purge")
def purge(
    where: Where,
    offset: Annotated[str | None, typer.Option("--offset", help="Only the letter of this offset.")] = None,
    yes: Yes = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Drop events that were set aside. They will have no effect.

    Example: headrace projection dead-letters purge shop.projections:orders --yes
    """

    async def work(_: Headrace, handle: ProjectionHandle) -> int:
        letters = _chosen(await handle.target.letters.all(), offset)
        confirm(f"Forget {len(letters)} dead letters of {handle.projection.name}?", is_sure=yes)
        return await handle.target.letters.remove(letters)

    count = _with_projection(where, address, store, work)
    answer(f"dead letters removed: {count}", as_json=as_json, removed=count)


def load_projection(where: str) -> Projection:
    """Return the projection that `module:name` names; modules of the current folder are found too."""
    rule = "it must name a Projection, as in shop.projections:orders"
    projection = load_named("projection", where, rule)
    if not isinstance(projection, Projection):
        raise BadArgument("projection", where, rule)
    return projection


def _put(
    where: str,
    place: TagOffset | None,
    slots: list[int] | None,
    address: str | None,
    store: str | None,
    *,
    is_sure: bool,
    as_json: bool,
) -> None:
    async def work(_: Headrace, handle: ProjectionHandle) -> int:
        projection = handle.projection
        chosen = sorted(set(slots)) if slots else list(range(projection.slots))
        if not 0 <= chosen[0] <= chosen[-1] < projection.slots:
            raise BadArgument("--slot", slots, f"the slots of {projection.name!r} are 0 to {projection.slots - 1}")
        check_not_ahead(projection.name, {0: place}, SYSTEM_CLOCK.now_ms())
        to = f"offset {place}" if place is not None else "the start of time"
        question = f"Put {len(chosen)} of {projection.slots} slots of {projection.name} to {to}, without a reset?"
        confirm(f"{_GOES_OUT_AGAIN}\n{question}", is_sure=is_sure)
        await handle.target.put(dict.fromkeys(chosen, place))
        return len(chosen)

    count = _with_projection(where, address, store, work)
    answer(f"slots put: {count}", as_json=as_json, slots_put=count, offset=_text(place))


def _with_projection(where: str, address: str | None, store: str | None, work: Work[T]) -> T:
    projection = load_projection(where)

    async def use(hr: Headrace) -> T:
        async with hr.projection(projection) as handle:
            return await work(hr, handle)

    return with_headrace(address, store, use)


def _chosen(letters: Sequence[DeadLetter], offset: str | None) -> list[DeadLetter]:
    chosen = [letter for letter in letters if offset is None or letter.offset == offset]
    if offset is not None and not chosen:
        raise BadArgument("--offset", offset, "no dead letter has it; see: headrace projection dead-letters list")
    return chosen


def _status_json(found: ProjectionStatus) -> dict[str, object]:
    return {
        "projection": found.name,
        "tag": found.tag,
        "slots": found.slots,
        "slots_begun": found.slots_begun,
        "offset": _text(found.offset),
        "time": _time(found.offset.log_time_ms) if found.offset is not None else None,
        "lag": found.lag.events,
        "lag_is_all": found.lag.is_all,
        "missed": found.missed,
        "paused": msgspec.structs.asdict(found.pause) if found.pause is not None else None,
        "dead_letters": found.dead_letters,
        "workers": {name: msgspec.structs.asdict(report) for name, report in found.workers.items()},
    }


def _shown(event: TaggedEvent) -> str:
    return f"event {event.seq_nr} of {event.id!r} in {event.topic!r} (offset {event.tag_offset})"


def _letter(letter: DeadLetter) -> str:
    return f"event {letter.seq_nr} of {letter.id!r} in {letter.topic!r} (offset {letter.offset})"


def _text(place: TagOffset | None) -> str | None:
    return str(place) if place is not None else None


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()
