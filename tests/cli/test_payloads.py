"""What `headrace journal append` takes for a payload: JSON, or text where that is said."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Command

from headrace.cli.journals import payloads_of, payloads_of_lines
from headrace.errors import BadArgument


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"opened": 1', "it is not JSON: expecting ',' delimiter at column 13"),
        ("hello", "it is not JSON: expecting value at column 1"),
        ("[1,\n 2,\n x]", "it is not JSON: expecting value at line 3, column 2"),
        ("[NaN]", "JSON has no NaN"),
        ("-Infinity", "JSON has no -Infinity"),
        ("[" * 100_000, "nested too deeply"),
        ("null", "null is no payload"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(text: str, message: str) -> None:
    """A mistake in JSON is refused with the place of the mistake; it is never stored as text."""
    with pytest.raises(BadArgument) as refused:
        payloads_of(["1", text], is_text=False)
    assert refused.value.name == "payload 2"
    assert message in str(refused.value)


def test_a_mistake_in_stdin_is_named_by_its_line() -> None:
    """Empty lines hold no payload, and count as lines all the same."""
    with pytest.raises(BadArgument, match=r"^line 3 is '\{', but it is not JSON: .* at column 2"):
        payloads_of_lines(['{"a": 1}\n', "\n", "{\r\n"], is_text=False)


def test_text_is_stored_as_it_is() -> None:
    """With --text even what looks like JSON is text."""
    assert payloads_of(["1", "null", "{"], is_text=True) == ["1", "null", "{"]
    assert payloads_of_lines(["a b\n", "{\r\n"], is_text=True) == ["a b", "{"]


def test_bad_json_writes_nothing(command: Command) -> None:
    """One bad payload refuses all of them, before anything is opened or written."""
    refused = command("journal", "append", "acc", "a", '{"opened": 1}', "hi")
    assert isinstance(refused.exception, BadArgument)
    none = command("journal", "append", "acc", "a", stdin="\n")
    assert isinstance(none.exception, BadArgument)
    assert command("journal", "append", "acc", "a", "--text", "hi").exit_code == 0
    (event,) = command("journal", "read", "acc", "a", "--json").stdout.splitlines()
    assert (json.loads(event)["seq_nr"], json.loads(event)["payload"]) == (1, "hi")
