"""`headrace sql`: SQL queries of journals and topics, on either tier, with Spark; rows as a table, a plot or a file."""

from __future__ import annotations

import base64
import json
import logging
import math
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from rich.table import Table
from rich.text import Text

from headrace.cli.options import Address, AsJson, StoreAddress, command_settings, plain_console
from headrace.cli.schemas import RegistryAddress
from headrace.cli.spark_sessions import quiet_spark_for
from headrace.cli.sql_shell import SqlShell, piped_lines, typed_lines
from headrace.config import HeadraceSettings
from headrace.errors import BadArgument, HeadraceError
from headrace.model import ConsistencyToken
from headrace.observe import line_chart
from headrace.pipeline import Endpoints, Selection, query, query_error, table_names
from headrace.serde import BlockingRegistry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PlotColumns", "plot_columns", "plot_of", "sql"]

_FORMATS = ("parquet", "csv")
_SHOWN = 100
_WIDE = 60
_TIME = re.compile(r'"(type|elementType|keyType|valueType)": ?"timestamp"')

_TIMES = ("timestamp", "timestamp_ntz", "date")
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_MOST_LINES = 4


def sql(
    statement: Annotated[
        str | None,
        typer.Argument(
            metavar="[STATEMENT]", help="One SELECT statement; without one a shell takes many. See docs/spark.md."
        ),
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topics", help="Only these journals; may be given again.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="Only journals whose topic has this prefix.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the rows to FILE.parquet or FILE.csv.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most rows to print.")] = _SHOWN,
    plot: Annotated[
        bool | None,
        typer.Option(
            "--plot/--no-plot", help="Plot a time and numbers. Default: at a terminal, if the rows have both."
        ),
    ] = None,
    skip_held: Annotated[bool, typer.Option("--skip-held", help="Leave quarantined journals out.")] = False,
    at_least: Annotated[
        str | None,
        typer.Option(
            "--at-least", metavar="TOKEN", help="Wait until the rows show the write that gave this consistency token."
        ),
    ] = None,
    registry: RegistryAddress = None,
    address: Address = None,
    store: StoreAddress = None,
    as_json: AsJson = False,
) -> None:
    """Query journals and topics by SQL, on Spark.

    The tables are journal, meta, pointers, topic_NAME, compact_NAME and state_NAME. Topics that the registry has
    schemas for have typed columns. Without a statement, statements are read from the terminal or from standard input.

    Example: headrace sql "select key, count(*) from journal group by key"
    """
    _check_out(statement, out)
    if at_least is not None:
        ConsistencyToken.parse(at_least)  # before Spark starts, which takes seconds
    settings = command_settings()
    endpoints = Endpoints.of(address, store=store, settings=settings)
    selection = Selection(tuple(topics or ()), prefix)
    held: Literal["raise", "skip"] = "skip" if skip_held else "raise"
    # Spark logs the JVM's traceback of failures that the error message describes in one sentence.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    with (
        _registry(registry, endpoints, settings) as schemas,
        quiet_spark_for(endpoints, settings, name="headrace sql") as spark,
    ):

        def ask(asked: str) -> None:
            frame = query(spark, endpoints, asked, selection, held=held, registry=schemas, at_least=at_least)
            with _spark_errors_named():
                _answer(frame, out, limit, as_json=as_json, plot=plot)

        if statement is not None:
            ask(statement)
        else:
            _run_shell(SqlShell(ask, lambda: table_names(endpoints), spark.sparkContext.cancelAllJobs), endpoints)


def _check_out(statement: str | None, out: Path | None) -> None:
    """Raise BadArgument for a file that the rows can't be written to."""
    if out is not None and out.suffix.lstrip(".") not in _FORMATS:
        raise BadArgument("--out", str(out), "the file's name must end with .parquet or .csv")
    if out is not None and statement is None:
        raise BadArgument("--out", str(out), "a file holds the rows of one statement; give it as an argument")


@contextmanager
def _spark_errors_named() -> Iterator[None]:
    """Raise Spark's errors as ours."""
    try:
        yield
    except Exception as error:
        is_late = isinstance(error, ValueError | OverflowError) and not isinstance(error, HeadraceError)
        if is_late or type(error).__module__.startswith(("pyspark", "py4j")):  # a time that Python has no year for
            raise query_error(error) from error
        raise


def _run_shell(shell: SqlShell, endpoints: Endpoints) -> None:
    if not sys.stdin.isatty():
        shell.run(piped_lines(), is_interactive=False)
        return
    typer.echo("Statements end with a semicolon; help lists the commands, Ctrl-D leaves the shell.")
    names = table_names(endpoints)
    shell.run(typed_lines(shell, lambda: names), is_interactive=True)


def _registry(address: str | None, endpoints: Endpoints, settings: HeadraceSettings) -> BlockingRegistry:
    """Open the registry, and the log if it holds the registry."""
    where = address or settings.registry.address
    log = endpoints.log if where.startswith("log:") else None
    return BlockingRegistry(
        where, log_address=log, settings=settings.registry, log_settings=endpoints.settings_of_log() if log else None
    )


def _answer(frame: DataFrame, out: Path | None, limit: int, *, as_json: bool, plot: bool | None) -> None:
    if out is not None:
        _write(frame, out)
        typer.echo(f"wrote {out}")
    elif as_json:
        if doubled := [name for name, count in Counter(frame.columns).items() if count > 1]:
            raise BadArgument("--json", doubled[0], "several columns have this name; give them others with AS")
        for row in _in_utc(frame).limit(limit).toLocalIterator():
            typer.echo(json.dumps(_plain(row.asDict(recursive=True)), ensure_ascii=False))
    else:
        _print(frame, limit, plot=plot)


def _print(frame: DataFrame, limit: int, *, plot: bool | None) -> None:
    columns = plot_columns(frame.dtypes) if plot is not False else None
    if plot and columns is None:
        rule = (
            "a plot needs one column with a time and one to four with numbers, or one with a number and one with text"
        )
        raise BadArgument("--plot", ", ".join(f"{name} {kind}" for name, kind in frame.dtypes), rule)
    rows = _in_utc(frame).limit(limit + 1).collect()
    table = Table(*frame.columns, box=None)
    for row in rows[:limit]:
        table.add_row(*(_shown(value) for value in row))
    console = plain_console()
    console.print(table if rows else "no rows")
    if columns is not None and (plot or console.is_terminal) and (drawn := plot_of(columns, rows[:limit])) is not None:
        console.print(Text(drawn))
    if len(rows) > limit:
        console.print(f"… there are more than {limit}; --limit N shows more of them, --out FILE writes all")


def _in_utc(frame: DataFrame) -> DataFrame:
    """Return the frame with times of the session's zone, which is UTC: pyspark would show the machine's own."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    kinds = StructType.fromJson(json.loads(_TIME.sub(r'"\1":"timestamp_ntz"', json.dumps(frame.schema.jsonValue()))))
    numbered = frame.toDF(*(f"_{n}" for n in range(len(kinds.fields))))  # several columns may have one name
    return numbered.select(
        *(f.col(f"_{n}").cast(each.dataType).alias(each.name) for n, each in enumerate(kinds.fields))
    )


def _write(frame: DataFrame, out: Path) -> None:
    """Write one file in one task, so that the rows never pass through the driver."""
    if out.suffix == ".csv":
        frame = frame.selectExpr(*(_csv_column(name, kind) for name, kind in frame.dtypes))
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".headrace-sql-", dir=out.parent))
    try:
        writer = frame.repartition(1).write.mode("overwrite").option("header", "true")
        writer.format(out.suffix.lstrip(".")).save(f"file://{(folder / 'rows').resolve()}")  # Spark does not unescape
        written = next((folder / "rows").glob("part-*"), None)
        if written is None:
            raise BadArgument("--out", str(out), "on a cluster it must lie in a folder that all its machines share")
        written.replace(out)
    finally:
        shutil.rmtree(folder)


def _csv_column(name: str, kind: str) -> str:
    quoted = f"`{name.replace('`', '``')}`"
    if kind == "binary":
        return f"base64({quoted}) AS {quoted}"
    if kind.startswith(("array", "map", "struct")):
        return f"to_json({quoted}) AS {quoted}"
    return quoted


def _shown(value: object) -> str:
    plain = _plain(value)
    if plain is None:
        return ""
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return text if len(text) <= _WIDE else f"{text[: _WIDE - 1]}…"


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a column holds
    """Return a value as JSON can carry it; bytes as base64."""
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


class PlotColumns(NamedTuple):
    """The columns of a plot: a time, the numbers over it, and maybe a text that says which line a number belongs to."""

    time: str
    numbers: tuple[str, ...]
    line: str | None = None


def plot_columns(columns: Sequence[tuple[str, str]]) -> PlotColumns | None:
    """Return the columns to plot, of names and types; None unless there are one time, and numbers, and little else.

    The columns are a time and up to four numbers, or a time, a number and a text.
    """
    times = [name for name, kind in columns if kind in _TIMES]
    numbers = [name for name, kind in columns if kind.partition("(")[0] in _NUMBERS]
    others = [(name, kind) for name, kind in columns if name not in times and name not in numbers]
    if len(times) != 1 or not 1 <= len(numbers) <= _MOST_LINES:
        return None
    if not others:
        return PlotColumns(times[0], tuple(numbers))
    is_line = len(others) == 1 and others[0][1] == "string" and len(numbers) == 1
    return PlotColumns(times[0], tuple(numbers), others[0][0]) if is_line else None


def plot_of(columns: PlotColumns, rows: Sequence[Any]) -> str | None:
    """Return the plot of rows, which have their values by name; None if there are too few points or too many lines."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for number in columns.numbers:
            name = number if columns.line is None else str(row[columns.line])
            if row[columns.time] is not None and row[number] is not None:
                lines.setdefault(name, []).append((_seconds(row[columns.time]), float(row[number])))
    points = [point for line in lines.values() for point in line]
    if len({x for x, _ in points}) <= 1 or len(lines) > _MOST_LINES:
        return None
    title = ", ".join(columns.numbers)
    ordered = {name: sorted(line) for name, line in lines.items()}
    return line_chart(ordered, title=title, x_label=f"{columns.time} (UTC)", is_time=True)


def _seconds(value: date | datetime) -> float:
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
