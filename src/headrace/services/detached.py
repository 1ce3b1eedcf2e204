"""Services that outlive the command that started them, found again through a folder.

The folder is HEADRACE_SERVICES_DIR, or `.headrace/services` under the current one. It has a file per service
that says where the service's own folder is, so that `--data` may put it anywhere; what lies in the folder itself is
found without one, so that `--data` finds it again from anywhere.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import FolderUnusable, MissingExtra
from headrace.services.layouts import LAYOUT, StartOptions, kept_layout
from headrace.services.running_service import RunningService
from headrace.services.starter import NAMES, service_named, start_with
from headrace.services.watcher import Watcher

__all__ = ["Detached", "services_folder"]


def services_folder() -> Path:
    """The folder through which `up`, `down`, `status` and `logs` find services."""
    return Path(os.environ.get("HEADRACE_SERVICES_DIR") or ".headrace/services").expanduser().resolve()


class Detached:
    """The services started from one folder.

    Promises: a service is started once, also by concurrent callers; its data stays until `purge`.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder.expanduser().resolve() if folder else services_folder()

    def up(self, name: str, options: StartOptions, *, data_dir: Path | None, watcher: Watcher) -> RunningService | None:
        """Start the service; returns None if it was up. If only some nodes run, all are restarted on their data."""
        service_named(name)
        with self._locked(name):
            running = self.find(name)
            if running and len(running.pids) == len(running.nodes):
                return None
            if running:
                running.stop()
            folder = (data_dir or (running.folder if running else self.folder / name)).expanduser().resolve()
            with self._noted(name, folder):
                return start_with(name, options, attached=False, data_dir=folder, watcher=watcher)

    def find(self, name: str) -> RunningService | None:
        """Find a service that was started from here, whether it runs now or not. Raises BadArgument."""
        service = service_named(name)
        try:
            folder = Path(json.loads(self._path(name).read_text())["folder"])
        except FileNotFoundError:
            folder = self.folder / name
        layout = kept_layout(service, folder)
        return RunningService(service, layout, (), folder) if layout else None

    def known(self) -> list[RunningService]:
        """The services that were started from here."""
        return [running for name in NAMES if (running := self.find(name))]

    def down(self, name: str) -> bool:
        """Stop the service and keep its data; returns False if nothing ran."""
        if not self.find(name):  # nothing to wait for, and no folder for the lock is needed
            return False
        with self._locked(name):
            running = self.find(name)
            if not running or not running.pids:
                return False
            running.stop()
            return True

    def purge(self, name: str) -> bool:
        """Stop the service and remove its data; returns False if there was none. Other files stay."""
        if not self.find(name):
            return False
        with self._locked(name):
            running = self.find(name)
            if not running:
                return False
            running.stop()
            for node in running.nodes:
                shutil.rmtree(node.plan.folder, ignore_errors=True)
            (running.folder / LAYOUT).unlink(missing_ok=True)
            if not any(running.folder.iterdir()):
                running.folder.rmdir()
            self._path(name).unlink(missing_ok=True)
            return True

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    @contextmanager
    def _noted(self, name: str, folder: Path) -> Iterator[None]:
        """Store where the service is before it starts, so that it is found even if this process is killed meanwhile."""
        half = self._path(name).with_suffix(".half")
        half.write_text(json.dumps({"folder": str(folder)}))
        half.replace(self._path(name))
        try:
            yield
        except BaseException:
            self._forget_unless_laid_out(name, folder)
            raise

    def _forget_unless_laid_out(self, name: str, folder: Path) -> None:
        # Once it is laid out there may be a log that says why it failed; before, there is nothing to keep.
        if (folder / LAYOUT).exists():
            return
        self._path(name).unlink()
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        try:
            from filelock import FileLock
        except ImportError as error:
            raise MissingExtra("filelock", "services") from error
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FolderUnusable(str(self.folder), str(error.strerror)) from error
        with FileLock(self.folder / f".{name}.lock"):
            yield
