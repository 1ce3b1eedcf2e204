"""Finding the line of a key."""

from __future__ import annotations

import tomllib

import pytest

from headrace.config.layers import leaves, lines_of

TEXT = '''# comment
title = "a"  # [not.a.table]

[log.kafka]
"linger.ms" = 5
notes = """
title = "not a key"
[neither]
"""
servers = [
    "a",
    # port = 5
    "b",
]
inline = { x = 1, y = { z = 2 } }
a.b = 3

[ other . "quoted.name" ]
deep = true

[[items]]
port = 1

[[items]]
port = 2
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 2),
        (("log", "kafka"), 4),
        (("log", "kafka", "linger.ms"), 5),
        (("log", "kafka", "notes"), 6),
        (("log", "kafka", "servers"), 10),
        (("log", "kafka", "inline", "y", "z"), 15),
        (("log", "kafka", "a", "b"), 16),
        (("other", "quoted.name", "deep"), 19),
        (("items",), 21),
    ],
)
def test_a_key_is_found_on_its_line(path: tuple[str, ...], line: int) -> None:
    """Tables, quoted and dotted keys, values over several lines: the line is where the key begins."""
    assert lines_of(TEXT)[path] == line


def test_every_value_has_a_line_and_texts_are_not_taken_for_keys() -> None:
    """Nothing the parser sees is left out; nothing it doesn't see is found."""
    lines = lines_of(TEXT)
    assert all(path in lines for path, _ in leaves(tomllib.loads(TEXT)))
    assert ("neither",) not in lines


def test_windows_line_ends_count_as_one() -> None:
    """A file from Windows has the same lines."""
    assert lines_of(TEXT.replace("\n", "\r\n")) == lines_of(TEXT)
