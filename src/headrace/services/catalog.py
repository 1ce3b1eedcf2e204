"""The catalog of services, by name."""

from __future__ import annotations

from headrace.errors import BadArgument
from headrace.services.cassandra import Cassandra
from headrace.services.kafka import Kafka
from headrace.services.mariadb import MariaDB
from headrace.services.ports import Service
from headrace.services.postgres import Postgres
from headrace.services.registry import RegistryService
from headrace.services.zookeeper import ZooKeeper

__all__ = ["NAMES", "service_named"]

_ALL: tuple[Service, ...] = (Kafka(), Cassandra(), ZooKeeper(), RegistryService(), Postgres(), MariaDB())
_SERVICES = {service.name: service for service in _ALL}
NAMES: tuple[str, ...] = tuple(_SERVICES)


def service_named(name: str) -> Service:
    """Return the service. Raises BadArgument with all known names."""
    if name not in _SERVICES:
        raise BadArgument("service", name, f"these can be started: {', '.join(NAMES)}")
    return _SERVICES[name]
