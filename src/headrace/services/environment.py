"""The environment variables that make a program use running services instead of its own folder."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.config import variable_for
from headrace.services.running_service import RunningService

__all__ = ["VARIABLES", "environment_of"]

_LOG = variable_for(("log", "address"), "HEADRACE")
_STORE = variable_for(("store", "address"), "HEADRACE")
_CREATE_KEYSPACE = variable_for(("store", "cassandra", "create_keyspace"), "HEADRACE")
_REGISTRY = variable_for(("registry", "address"), "HEADRACE")
_DATABASE = variable_for(("outbox", "database"), "HEADRACE")

VARIABLES = (_LOG, _STORE, _CREATE_KEYSPACE, _REGISTRY, _DATABASE)


def environment_of(services: Iterable[RunningService], *, keyspace: str) -> dict[str, str]:
    """Return the variables that name the services. The first database among them is for the outbox."""
    variables: dict[str, str] = {}
    for service in services:
        if service.name == "kafka":
            variables[_LOG] = f"kafka://{service.address}"
        elif service.name == "cassandra":
            variables[_STORE] = f"cassandra://{service.address}/{keyspace}"
            variables[_CREATE_KEYSPACE] = "true"  # commands create no keyspace unless this is set
        elif service.name == "registry":
            variables[_REGISTRY] = service.url
        elif service.name in ("postgres", "mariadb"):
            variables.setdefault(_DATABASE, service.url)
    return variables
