"""Headrace's own settings: the packaged file, the model and the documentation say the same."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

from headrace.config import HeadraceSettings, reference
from headrace.config.layers import leaves

DOCUMENT = Path(__file__).parents[2] / "docs" / "settings.md"


def packaged() -> str:
    return resources.files("headrace.config").joinpath("defaults.toml").read_text()


def test_the_packaged_defaults_are_complete_and_equal_to_the_model() -> None:
    """Every default of the model stands in defaults.toml with the same value, and nothing else does."""
    assert tomllib.loads(packaged()) == HeadraceSettings().model_dump(exclude_none=True)


def test_what_is_unset_by_default_stands_in_the_file_as_a_comment() -> None:
    """A reader of the file sees every key there is."""
    unset = [each.key.split(".")[-1] for each in HeadraceSettings().describe() if each.value is None]
    assert [name for name in unset if f"# {name} =" not in packaged()] == []


def test_loading_without_files_gives_the_defaults() -> None:
    """An empty environment and no files: the packaged defaults, and every value says so."""
    settings = HeadraceSettings.load(environ={})
    assert settings.model_dump() == HeadraceSettings().model_dump()
    assert {each.source for each in settings.describe()} == {"defaults"}


def test_every_setting_is_described() -> None:
    """No field without a sentence on what it does."""
    assert [each.key for each in HeadraceSettings().describe() if not each.description] == []


def test_the_documentation_lists_every_setting_as_it_is() -> None:
    """The table in docs/settings.md is the one made from the model."""
    assert reference(HeadraceSettings) in DOCUMENT.read_text()


def test_the_packaged_defaults_have_no_duplicate_paths() -> None:
    """Leaves of the file are the keys that describe() shows."""
    in_file = {".".join(path) for path, _ in leaves(tomllib.loads(packaged()))}
    shown = {each.key for each in HeadraceSettings().describe() if each.value is not None}
    assert in_file - {"services", "cluster.tls"} == shown
