"""The vectors that the clients share are what the server does."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_vectors_are_what_the_server_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """G6: frames, schemas, values, deltas, close codes and problems in the tree are those of the server's code."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    tool = importlib.import_module("client_vectors")
    made = {name: tool.text_of(content) for name, content in tool.vectors().items()}
    kept = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / "clients" / "vectors").glob("*.json")}
    assert made == kept
