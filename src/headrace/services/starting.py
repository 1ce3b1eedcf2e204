"""Starting a service: install, lay out, launch, wait."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from headrace.services.cache import Cache
from headrace.services.catalog import service_named
from headrace.services.layouts import kept_layout, new_layout, save_layout, with_properties
from headrace.services.ports import Layout, Service
from headrace.services.running import RunningService
from headrace.services.watcher import Quiet, Watcher

__all__ = ["start"]


def start(
    name: str,
    *,
    nodes: int = 1,
    attached: bool = True,
    data_dir: Path | None = None,
    ports: Mapping[str, int] | None = None,
    properties: Mapping[str, str] | None = None,
    watcher: Watcher | None = None,
) -> RunningService:
    """Start a service and wait until it serves.

    Attached, it dies with this process, kill -9 included; detached, it stays until it is stopped. Without
    `data_dir` it gets a fresh folder that is thrown away when it stops (attached) or left there (detached).
    With one, what is there is used again: same ports, same number of nodes.
    `properties` are set over ours in the server's own configuration.

    Raises BadArgument, FetchFailed, ChecksumMismatch, UnsupportedPlatform or ServiceFailed; nothing is left
    running then.
    """
    service = service_named(name)
    watcher = watcher or Quiet()
    files = service.install(Cache(), watcher)
    folder = _folder(name, data_dir)
    layout = _layout(service, folder, nodes=nodes, ports=ports or {}, properties=properties or {})
    running = RunningService(service, layout, files, folder)
    running.throws_away = data_dir is None and attached
    for node in running.nodes:
        node.is_attached, node.throws_away = attached, running.throws_away
    watcher.step(f"starting {name} at {running.address}")
    try:
        running.start()
    except BaseException:
        running.stop()
        raise
    return running


def _folder(name: str, data_dir: Path | None) -> Path:
    if data_dir is None:
        return Path(tempfile.mkdtemp(prefix=f"headrace-{name}-"))
    folder = data_dir.expanduser().resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _layout(
    service: Service, folder: Path, *, nodes: int, ports: Mapping[str, int], properties: Mapping[str, str]
) -> Layout:
    kept = kept_layout(service, folder)
    if kept is not None:
        return with_properties(kept, properties) if properties else kept
    layout = new_layout(service, folder, nodes=nodes, ports=ports, properties=properties)
    save_layout(layout, folder)
    return layout
