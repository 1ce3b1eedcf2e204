"""`headrace import`: events of other systems, from files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Address, AsJson, StoreAddress, answer, creating_settings
from headrace.cli.spark_sessions import quiet_spark_for
from headrace.errors import BadArgument
from headrace.pipeline import Endpoints, import_journals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Keep the name of the only command."""


@app.command("journals")
def import_from_files(
    files: Annotated[Path, typer.Argument(metavar="FILES", help="FILE.parquet, FILE.json, or a folder of Parquet.")],
    topic: Annotated[str, typer.Option(help="The topic of the journals.")],
    partitions: Annotated[int | None, typer.Option(min=1, help="Number of partitions of a new topic.")] = None,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Make journals of the events in files, each exactly once; run again, it continues.

    The columns are id, seq_nr, payload, and maybe payload_type, tags, metadata and timestamp. See docs/spark.md.

    Example: headrace import journals ./events.parquet --topic accounts --partitions 8
    """
    if not files.exists():
        raise BadArgument("FILES", str(files), "there is nothing there")
    settings = creating_settings()
    endpoints = Endpoints.of(address, store=store, settings=settings)
    with quiet_spark_for(endpoints, settings, name="headrace import") as spark:
        done = import_journals(_frame(spark, files.resolve()), endpoints, topic, partitions=partitions)
    text = f"imported {done.imported:,} events into {topic}; {done.present:,} were there already"
    answer(text, as_json=as_json, topic=topic, imported=done.imported, present=done.present)


def _frame(spark: SparkSession, files: Path) -> DataFrame:
    """Return the rows of the files. JSON has no times, so those are read from text in ISO 8601."""
    frame = spark.read.format("json" if files.suffix in (".json", ".jsonl") else "parquet").load(f"file://{files}")
    if dict(frame.dtypes).get("timestamp") == "string":
        return frame.selectExpr("* EXCEPT (timestamp)", "CAST(timestamp AS TIMESTAMP) AS timestamp")
    return frame
