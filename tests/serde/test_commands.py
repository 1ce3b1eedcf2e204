"""`headrace schema` and `headrace topic cat|tail|put` as a person meets them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.serde.classes import Place, StructOrder
from typer.testing import CliRunner

from headrace.cli import main as _main  # noqa: F401 - puts the commands together
from headrace.cli import schemas, topics
from headrace.errors import HeadraceError
from headrace.log import open_log
from headrace.model import NewRecord, TopicConfig
from headrace.serde import Serde, open_registry, schema_of
from headrace.services import RunningService
from headrace.testing.conformance.registry_setting import new_subject, record
from headrace.testing.processes import running


@dataclasses.dataclass
class Done:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def headrace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command beside an empty log of its own, in this process: a new one takes seconds to import all."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "log.db").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    apps = {"schema": schemas.app, "topic": topics.app}

    def run(app: str, *arguments: str, stdin: str = "", **environ: str) -> Done:
        result = CliRunner().invoke(apps[app], arguments, input=stdin, env=environ)
        if result.exception is not None and not isinstance(result.exception, HeadraceError | SystemExit):
            raise result.exception
        error = str(result.exception) if isinstance(result.exception, HeadraceError) else result.stderr
        return Done(result.exit_code, result.stdout, error)

    return run


def lines(done: Done) -> list[Any]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_schemas_from_the_command_line(headrace: Run, tmp_path: Path) -> None:
    """V4, V5: check, register, list and show, from files, stdin and classes; a refusal names field and version."""
    (tmp_path / "v1.avsc").write_text(record(id="string").text)
    (tmp_path / "v2.avsc").write_text(record(id="string", amount="double").text)
    (tmp_path / "shop_of_test.py").write_text(
        "from dataclasses import dataclass\n\n@dataclass\nclass Account:\n    id: str\n    n: int = 1\n"
    )
    assert "no schemas yet" in headrace("schema", "list").stdout
    assert "compatible (FULL_TRANSITIVE; a-value is new)" in headrace("schema", "check", "a-value", "v1.avsc").stdout
    assert headrace("schema", "register", "a-value", "v1.avsc").stdout == "a-value version 1 has id 1\n"
    refused = headrace("schema", "check", "a-value", "v2.avsc")
    assert refused.returncode == 1
    assert "field 'amount': field without default against version 1" in refused.stderr
    assert (
        "compatible (FORWARD"
        in headrace(
            "schema", "check", "a-value", "-", "--level", "FORWARD", stdin=record(id="string", amount="double").text
        ).stdout
    )
    made = json.loads(headrace("schema", "register", "a-value", "shop_of_test:Account", "--json").stdout)
    assert made == {"subject": "a-value", "version": 2, "id": 2, "type": "Account"}
    listed = json.loads(headrace("schema", "list", "--json").stdout)
    assert listed == {**made, "level": "FULL_TRANSITIVE"}
    shown = headrace("schema", "show", "a-value", "--version", "1").stdout
    assert json.loads(shown) == json.loads(record(id="string").text)
    assert headrace("schema", "show", "--id", "1").stdout == shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("schema", "show", "nobody"), "no subject 'nobody'"),
        (
            (
                "schema",
                "show",
            ),
            "give a subject, or --id",
        ),
        (("schema", "show", "--id", "7"), "no schema with id 7"),
        (("schema", "register", "s", "missing.avsc"), "it can't be read"),
        (("schema", "check", "s", "data/log.bin"), "schema is 'data/log.bin', but it is no text"),
        (("schema", "register", "s", "nowhere.at:All"), "no such class"),
        (("schema", "register", "s", "-"), "not a valid Avro schema"),
        (("schema", "list", "--registry", "pigeon:x"), "no registry backend serves 'pigeon:x'; known: folder:"),
        (("topic", "cat", "nope"), "there is no topic 'nope'"),
    ],
)
def test_what_is_wrong_is_said_in_one_message(headrace: Run, arguments: tuple[str, ...], message: str) -> None:
    """V1, V9: exit code 1 and one sentence."""
    Path("data/log.bin").write_bytes(b"\xff\xff")
    done = headrace(*arguments)
    assert done.returncode == 1
    assert message in done.stderr


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_schema_of_an_editor_of_windows_is_read(headrace: Run, encoding: str) -> None:
    """V4: with a mark before the text, or in the encoding that PowerShell redirects in."""
    Path("v1.avsc").write_text(f"{record(id='string').text}\r\n", encoding=encoding)
    assert headrace("schema", "register", "a-value", "v1.avsc").stdout == "a-value version 1 has id 1\n"


async def write_all_kinds(address: str) -> None:
    """Write Avro, JSON, text, bytes, a tombstone and Avro of nobody's schema."""
    log = await open_log(address)
    await log.admin.create("t", partitions=1, config=TopicConfig())
    registry = await open_registry("log:headrace-schemas", log=log)
    order = await Serde(registry, "t-value", StructOrder).encode(StructOrder("a", 2, Place("Main")))
    values = [order, b'{"x": 1}', b"text", b"\xff\xfe", None, b"\x00\x00\x00\x00\x63abc"]
    await log.append([NewRecord("t", b"k", value, (("h", b"1"),)) for value in values])
    await log.close()


def test_a_topic_is_printed_as_json_lines(headrace: Run, tmp_path: Path) -> None:
    """V9: Avro by its schema, other values as what they are; what can't be decoded says why."""
    asyncio.run(write_all_kinds(f"embedded:{tmp_path / 'data'}"))
    found = lines(headrace("topic", "cat", "t"))
    assert [line["offset"] for line in found] == [0, 1, 2, 3, 4, 5]
    assert (found[0]["partition"], found[0]["key"], found[0]["headers"]) == (0, "k", {"h": "1"})
    place = {"type": "Place", "data": {"street": "Main", "number": 1}}
    assert found[0]["value"] == {"type": "StructOrder", "data": {"sku": "a", "count": 2, "place": place}}
    assert [line["value"] for line in found[1:5]] == [{"x": 1}, "text", {"base64": "//4="}, None]
    assert "no schema with id 99" in found[5]["value"]["error"]
    assert [line["offset"] for line in lines(headrace("topic", "cat", "t", "--from", "2", "-n", "2"))] == [2, 3]
    assert [line["offset"] for line in lines(headrace("topic", "tail", "t", "--last", "2", "--limit", "2"))] == [4, 5]


def test_tail_prints_what_comes(headrace: Run, tmp_path: Path) -> None:
    """V9: a record put by another process is printed by one that waits."""
    where = f"embedded:{tmp_path / 'data'}"
    headrace("topic", "create", "t", "--partitions", "2")
    with running("-m", "headrace.cli", "topic", "tail", "t", "--log", where, "--limit", "1") as child:
        headrace("topic", "put", "t", "--text", stdin='{"key": "k", "value": "hello"}\n')
        assert '"value": "hello"' in child.wait_for_line("hello", 30.0).string
        assert child.wait(30.0) == 0


def test_what_was_printed_can_be_put_again(headrace: Run) -> None:
    """V9: JSON lines become framed Avro by the subject's schema, or the one that is given; wrong lines are named."""
    headrace("topic", "create", "orders")
    order = {"key": "o1", "value": {"sku": "a", "place": {"street": "x"}}}
    missing = headrace("topic", "put", "orders", stdin=json.dumps(order))
    assert (missing.returncode, "no subject 'orders-value'" in missing.stderr) == (1, True)
    Path("order.avsc").write_text(schema_of(StructOrder).text)
    done = headrace("topic", "put", "orders", "--schema", "order.avsc", stdin=json.dumps(order))
    assert done.stdout == "wrote 1 record to orders\n", done.stderr
    printed = headrace("topic", "cat", "orders")
    assert headrace("topic", "put", "orders", stdin=printed.stdout).stdout == "wrote 1 record to orders\n"
    first, second = lines(headrace("topic", "cat", "orders"))
    assert (first["value"], first["key"]) == (second["value"], second["key"])
    assert first["value"]["data"]["place"] == {"type": "Place", "data": {"street": "x", "number": 1}}
    for wrong, message in (
        ("nonsense", "line 1 is 'nonsense'"),
        ('{"value": {"sku": 5}}', "at 'sku'"),
        ("[1]", "line 1"),
    ):
        refused = headrace("topic", "put", "orders", stdin=wrong)
        assert refused.returncode == 1
        assert message in refused.stderr
    assert len(lines(headrace("topic", "cat", "orders"))) == 2


@pytest.mark.servers
def test_the_commands_use_a_real_registry(headrace: Run, registry: RunningService, tmp_path: Path) -> None:
    """V5, V9: with --registry http://…, and with the setting."""
    subject = new_subject()
    (tmp_path / "v1.avsc").write_text(record(id="string").text)
    made = headrace("schema", "register", subject, "v1.avsc", "--registry", registry.url)
    assert f"{subject} version 1" in made.stdout, made.stderr
    setting = {"HEADRACE__REGISTRY__ADDRESS": registry.url}
    assert '"Account"' in headrace("schema", "show", subject, **setting).stdout
    headrace("topic", "create", "t")
    headrace("topic", "put", "t", "--subject", subject, stdin='{"value": {"id": "x"}}', **setting)
    (line,) = lines(headrace("topic", "cat", "t", **setting))
    assert line["value"] == {"type": "Account", "data": {"id": "x"}}
