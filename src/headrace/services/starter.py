"""The services by name, and the start of one: install, lay out, launch, wait."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from headrace.errors import BadArgument, FolderUnusable, ServiceFailed
from headrace.services.cassandra import Cassandra
from headrace.services.kafka import Kafka
from headrace.services.layouts import StartOptions, lay_out
from headrace.services.mariadb import MariaDB
from headrace.services.packages import Cache
from headrace.services.ports import Service
from headrace.services.postgres import Postgres
from headrace.services.registry import RegistryService
from headrace.services.running_service import RunningService
from headrace.services.watcher import Quiet, Watcher
from headrace.services.zookeeper import ZooKeeper

__all__ = ["NAMES", "service_named", "start", "start_with"]

_ALL: tuple[Service, ...] = (Kafka(), Cassandra(), ZooKeeper(), RegistryService(), Postgres(), MariaDB())
_SERVICES = {service.name: service for service in _ALL}
NAMES: tuple[str, ...] = tuple(_SERVICES)


def service_named(name: str) -> Service:
    """Return the service. Raises BadArgument with all known names."""
    if name not in _SERVICES:
        raise BadArgument("service", name, f"these can be started: {', '.join(NAMES)}")
    return _SERVICES[name]


def start(
    name: str,
    *,
    nodes: int | None = None,
    attached: bool = True,
    data_dir: Path | None = None,
    ports: Mapping[str, int] | None = None,
    properties: Mapping[str, str] | None = None,
    watcher: Watcher | None = None,
) -> RunningService:
    """Start a service and wait until it serves.

    Attached, it dies with this process, kill -9 included, and without `data_dir` its data is removed
    when it stops. Detached, it stays until it is stopped. A `data_dir` is kept, and what is there is used
    again: same ports, same number of nodes. `ports` gives numbers by role, such as {"client": 9092};
    `properties` are set over ours in the server's own configuration.

    Raises BadArgument, FetchFailed, ChecksumMismatch, UnsupportedPlatform or ServiceFailed; nothing is left
    running then.
    """
    options = StartOptions(nodes, ports or {}, properties or {})
    return start_with(name, options, attached=attached, data_dir=data_dir, watcher=watcher or Quiet())


def start_with(
    name: str, options: StartOptions, *, attached: bool, data_dir: Path | None, watcher: Watcher
) -> RunningService:
    """Start a service as `start` does, with its options in one value."""
    service = service_named(name)
    files = service.install(Cache(), watcher)
    folder, is_ours = _folder(name, data_dir)
    try:
        layout = lay_out(service, folder, options)
        running = RunningService(service, layout, files, folder)
        _refuse_running(running)
    except BaseException:
        if is_ours:
            shutil.rmtree(folder)
        raise
    running.throws_away = is_ours and attached
    for node in running.nodes:
        node.is_attached, node.throws_away = attached, running.throws_away
    watcher.step(f"starting {name} at {running.address}")
    _start_all(running)
    return running


def _start_all(running: RunningService) -> None:
    try:
        running.start()
    except BaseException:
        running.stop()
        raise


def _folder(name: str, data_dir: Path | None) -> tuple[Path, bool]:
    if data_dir is None:
        return Path(tempfile.mkdtemp(prefix=f"headrace-{name}-")), True
    folder = data_dir.expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderUnusable(str(folder), str(error.strerror)) from error
    return folder, False


def _refuse_running(running: RunningService) -> None:
    if running.pids:
        pids = ", ".join(map(str, running.pids))
        raise ServiceFailed(running.name, f"it runs on {running.folder} already (pid {pids}); stop it first", "")
