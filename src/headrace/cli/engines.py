"""`headrace engine`: compare an engine's states with its journal, rebuild them, and try new code on old events."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
import typer

from headrace.app import Headrace
from headrace.cli.options import Address, AsJson, StoreAddress, answer, command_settings, confirm, with_headrace
from headrace.cli.spark_sessions import spark_for
from headrace.engine import (
    Engine,
    EngineAudit,
    EnginePhase,
    EngineReplay,
    audit_engine,
    change_engine_phase,
    journal_topic_of,
    rebuild_some,
    replay_some,
)
from headrace.pipeline import Endpoints, EngineReference, audit_states, rebuild_states, replay_journals

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True)

Where: TypeAlias = Annotated[
    str, typer.Argument(metavar="MODULE:NAME", help="The engine, as in examples.bank.accounts:bank.")
]
Ids: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--id", help="Only this aggregate, without Spark; may be given again. Default: all, by Spark."),
]
Limit: TypeAlias = Annotated[int, typer.Option("--limit", min=1, help="The most differences to print.")]


@app.command("audit")
def audit(
    where: Where,
    ids: Ids = None,
    limit: Limit = 100,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Compare every state with the fold of its journal. The exit code is 1 if one differs. The engine may be at work.

    Example: headrace engine audit examples.bank.accounts:bank
    """
    settings = command_settings()
    reference = EngineReference.of(where, settings.registry)
    if ids is not None:
        engine = reference.load()
        found = with_headrace(address, store, lambda hr: _audit_some(hr, engine, ids))
    else:
        endpoints = Endpoints.of(address, store=store, settings=settings)
        with spark_for(endpoints, settings) as spark:
            found = audit_states(spark, endpoints, reference, limit=limit)
    _print_audit(found, limit, as_json=as_json)
    if not found.is_clean:
        raise typer.Exit(1)


async def _audit_some(hr: Headrace, engine: Engine[Any], ids: list[str]) -> EngineAudit:
    journal = hr.journal(journal_topic_of(engine), read_only=True)
    return await audit_engine(hr.log, journal, engine, ids=ids, registry=hr.registry)


def _print_audit(found: EngineAudit, limit: int, *, as_json: bool) -> None:
    shown = found.differences[:limit]
    if as_json:
        facts = {"engine": found.engine, "aggregates": found.aggregates, "clean": found.is_clean, "found": found.found}
        typer.echo(msgspec.json.encode({**facts, "differences": shown}).decode())
        return
    for difference in shown:
        typer.echo(str(difference))
    outcome = "every state is the fold of its journal" if found.is_clean else f"{found.found:,} differ"
    typer.echo(f"compared {found.aggregates:,} aggregates of {found.engine} with their journals: {outcome}")


@app.command("rebuild")
def rebuild(
    where: Where,
    ids: Ids = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the states of an engine from its journal. The engine is not served meanwhile; its callers wait.

    Example: headrace engine rebuild examples.bank.accounts:bank --id acc-1
    """
    settings = command_settings()
    reference = EngineReference.of(where, settings.registry)
    engine = reference.load()
    which = "all its states" if ids is None else f"{len(ids)} of its states"
    confirm(f"Nobody serves engine {engine.name} while {which} are written again. Rebuild them?", is_sure=yes)
    if ids is not None:
        count = with_headrace(address, store, lambda hr: _rebuild_some(hr, engine, ids))
    else:
        endpoints = Endpoints.of(address, store=store, settings=settings)
        with spark_for(endpoints, settings) as spark:
            count = rebuild_states(spark, endpoints, reference, settings=settings).aggregates
    text = f"rebuilt {count:,} aggregates of {engine.name} from their journals"
    answer(text, as_json=as_json, engine=engine.name, aggregates=count)


async def _rebuild_some(hr: Headrace, engine: Engine[Any], ids: list[str]) -> int:
    journal = hr.journal(journal_topic_of(engine), read_only=True)
    return await rebuild_some(hr.log, hr.store.settings, journal, engine, hr.settings, ids, registry=hr.registry)


@app.command("replay")
def replay(
    where: Where,
    ids: Ids = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The most differences of each kind to print.")] = 10,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Try an engine's code on all stored journals. The exit code is 1 if states, events or decisions differ.

    Nothing is written. Decisions are tried where the engine keeps commands. Events that are upcast are listed, and are
    no differences.

    Example: headrace engine replay examples.bank.accounts:bank
    """
    settings = command_settings()
    reference = EngineReference.of(where, settings.registry)
    if ids is not None:
        engine = reference.load()
        found = with_headrace(address, store, lambda hr: _replay_some(hr, engine, ids, limit))
    else:
        endpoints = Endpoints.of(address, store=store, settings=settings)
        with spark_for(endpoints, settings) as spark:
            found = replay_journals(spark, endpoints, reference, limit=limit)
    _print_replay(found, as_json=as_json)
    if not found.is_same:
        raise typer.Exit(1)


async def _replay_some(hr: Headrace, engine: Engine[Any], ids: list[str], limit: int) -> EngineReplay:
    journal = hr.journal(journal_topic_of(engine), read_only=True)
    return await replay_some(hr.log, journal, engine, ids, registry=hr.registry, limit=limit)


def _print_replay(found: EngineReplay, *, as_json: bool) -> None:
    if as_json:
        facts = {**msgspec.to_builtins(found), "same": found.is_same}
        typer.echo(msgspec.json.encode(facts).decode())
        return
    for kind, count in sorted(found.counts.items()):
        for difference in found.first[kind]:
            typer.echo(str(difference))
        if count > len(found.first[kind]):
            typer.echo(f"{kind}: and {count - len(found.first[kind]):,} more")
    tried = f"{found.events:,} events and {found.commands:,} commands of {found.aggregates:,} aggregates"
    counts = ", ".join(f"{kind} {count:,}" for kind, count in sorted(found.counts.items()))
    outcome = "the code makes the same of them" if found.is_same else "the code makes something else of them"
    typer.echo(f"replayed {tried} of {found.engine}: {outcome}{f' ({counts})' if counts else ''}")


@app.command("pause")
def pause(where: Where, address: Address = None, as_json: AsJson = False) -> None:
    """Stop serving an engine until it is resumed; its callers wait.

    Example: headrace engine pause examples.bank.accounts:bank
    """
    _change(
        where, "paused", f"is paused; its callers wait until: headrace engine resume {where}", address, as_json=as_json
    )


@app.command("resume")
def resume(where: Where, address: Address = None, as_json: AsJson = False) -> None:
    """Let an engine that was paused be served again. One that is being rebuilt is refused.

    Example: headrace engine resume examples.bank.accounts:bank
    """
    _change(where, "serving", "is served again", address, as_json=as_json)


def _change(where: str, phase: EnginePhase, said: str, address: str | None, *, as_json: bool) -> None:
    engine = EngineReference.of(where).load()

    async def use(hr: Headrace) -> None:
        await change_engine_phase(hr.log, hr.settings.cluster.name, engine, phase)
        answer(f"{engine.name} {said}", as_json=as_json, engine=engine.name, phase=phase)

    with_headrace(address, None, use)
