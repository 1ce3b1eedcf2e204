"""`headrace tags backfill`: give a tag to existing events, with Spark."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.options import Address, AsJson, StoreAddress, command_settings
from headrace.errors import BadArgument
from headrace.runtime import load_named
from headrace.tags import Chooser

__all__ = ["backfill", "load_chooser"]

_RULE = "it must name a function of one event, as in shop.tags:is_big"


def backfill(
    tag: Annotated[str, typer.Argument(metavar="TAG", help="The tag.")],
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

    choose, settings = load_chooser(where), command_settings()
    endpoints = Endpoints.of(address, store=store, settings=settings)
    with spark_for(endpoints, settings) as spark:
        done = backfill_tag(spark, endpoints, tag, choose, name=where, again=again)
    if as_json:
        typer.echo(json.dumps(asdict(done)))
    elif done.is_new:
        typer.echo(f"{tag}: {done.tagged:,} of {done.events:,} events have it now; writers give it to later ones")
    else:
        typer.echo(f"{tag} is filled by {where} already; --again fills it again")


def load_chooser(where: str) -> Chooser:
    """Return the function; workers get it by value, because they may not find its module."""
    choose = load_named("function", where, _RULE)
    if not callable(choose):
        raise BadArgument("function", where, _RULE)
    from pyspark.cloudpickle import register_pickle_by_value

    if (module := sys.modules.get(getattr(choose, "__module__", ""))) is not None:
        register_pickle_by_value(module)
    chooser: Chooser = choose
    return chooser
