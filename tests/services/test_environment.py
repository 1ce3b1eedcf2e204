"""The variables by which a program uses services that run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.config import HeadraceSettings
from headrace.errors import BadArgument
from headrace.services import VARIABLES, RunningService, StartOptions, environment_of
from headrace.services.layouts import lay_out
from headrace.services.starter import service_named
from headrace.store.cassandra.address import parse


def laid_out(name: str, folder: Path, nodes: int = 1) -> RunningService:
    """Return a service that has its place, and does not run."""
    service, own = service_named(name), folder / name
    own.mkdir()
    return RunningService(service, lay_out(service, own, StartOptions(nodes)), (), own)


def test_the_variables_are_settings_that_name_the_services(tmp_path: Path) -> None:
    """All of them load; the addresses name every broker and every node; the first database is the outbox's."""
    names = ("zookeeper", "registry", "postgres", "mariadb")
    services = [laid_out("kafka", tmp_path, 2), laid_out("cassandra", tmp_path, 2)]
    services += [laid_out(name, tmp_path) for name in names]
    variables = environment_of(services, keyspace="shop")
    assert tuple(variables) == VARIABLES
    settings = HeadraceSettings.load(environ=variables)
    kafka, cassandra, _, registry, postgres, _ = services
    assert settings.log.address == f"kafka://{kafka.endpoints[0]},{kafka.endpoints[1]}"
    assert parse(settings.store.address).keyspace == "shop"
    assert settings.store.address == f"cassandra://{cassandra.address}/shop"
    assert settings.store.cassandra.create_keyspace
    assert settings.registry.address == registry.url
    assert settings.outbox.database is not None
    assert settings.outbox.database.get_secret_value() == postgres.url


def test_services_that_are_not_up_have_no_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is printed that a shell could take for success; the message says what to run."""
    monkeypatch.setenv("HEADRACE_SERVICES_DIR", str(tmp_path / "none"))
    done = CliRunner().invoke(app, ["services", "env", "kafka"])
    assert isinstance(done.exception, BadArgument)
    assert "run: headrace services up kafka" in str(done.exception)
    assert done.stdout == ""


def test_the_variables_can_be_unset() -> None:
    """Whoever moved to the servers can go back."""
    assert CliRunner().invoke(app, ["services", "env", "--unset"]).stdout == f"unset {' '.join(VARIABLES)}\n"
