"""Headrace's own settings: the packaged file, the model and the documentation say the same."""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from headrace.config import HeadraceSettings, reference
from headrace.config.layers import leaves
from headrace.errors import InvalidSettings

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
    assert in_file - {"services", "cluster.tls", "gateway.tls", "grpc.tls"} == shown


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("HEADRACE_LOG__ADDRESS", "did you mean HEADRACE__LOG__ADDRESS?"),
        ("HEADRACE_LOG_ADDRESS", "did you mean HEADRACE__LOG__ADDRESS?"),
        ("HEADRACE_STORE__CASSANDRA__USER_NAME", "did you mean HEADRACE__STORE__CASSANDRA__USERNAME?"),
        ("headrace_log_address", "did you mean HEADRACE__LOG__ADDRESS?"),
        ("HEADRACE_CONFIGS", "did you mean HEADRACE_CONFIG?"),
        ("HEADRACE_OBSERVE_METRICS_PORT", "did you mean HEADRACE__OBSERVE__METRICS_PORT?"),
        ("HEADRACE_X", "settings are set as HEADRACE__SECTION__NAME"),
    ],
)
def test_a_variable_that_matches_no_setting_is_a_mistake(name: str, hint: str) -> None:
    """A variable that begins with HEADRACE_ and sets nothing is reported, with the name that was meant."""
    with pytest.raises(InvalidSettings) as refused:
        HeadraceSettings.load(environ={name: "9100", "HEADRACE__TAGS__BUCKET": "WEEK"})
    problem, other = sorted(refused.value.problems, key=lambda each: each.key, reverse=True)
    assert (problem.source, problem.problem) == (f"environment {name}", f"matches no setting; {hint}")
    assert other.key == "tags.bucket"


def test_variables_of_others_are_left_alone() -> None:
    """Variables that are no settings, those that Kubernetes sets for a service, and other prefixes."""
    environ = {
        "HEADRACE_SERVICES_DIR": "x",
        "HEADRACE_CACHE": "x",
        "HEADRACE_SERVICE_HOST": "10.0.0.1",
        "HEADRACE_GATEWAY_SERVICE_PORT_HTTP": "80",
        "HEADRACE_PORT": "tcp://10.0.0.1:80",
        "HEADRACE_PORT_80_TCP_ADDR": "10.0.0.1",
        "HEADRACER": "x",
    }
    HeadraceSettings.load(environ=environ)


def test_every_variable_that_is_read_is_known() -> None:
    """What the code reads from the environment beside the settings is listed with them."""
    source = Path(__file__).parents[2] / "src" / "headrace"
    read = {name for file in source.rglob("*.py") for name in re.findall(r"\bHEADRACE_[A-Z]+\w*", file.read_text())}
    django = {"HEADRACE_OUTBOX"}  # a name in Django's settings
    assert read - django == HeadraceSettings.other_variables


def test_an_application_may_use_its_own_prefix_for_other_things() -> None:
    """Only HEADRACE_ is reserved: SHOP_SECRET_KEY may be anything of the shop's."""

    class ShopSettings(HeadraceSettings):
        env_prefix = "SHOP"

    ShopSettings.load(environ={"SHOP_SECRET_KEY": "x"})
