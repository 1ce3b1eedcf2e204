"""PostgreSQL, one server; the user `postgres` is trusted and comes from loopback only.

It refuses to run as root. Started by root it runs as the user `nobody`, which needs access to binaries and data.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import ServiceFailed, UnsupportedPlatform
from headrace.services.fetch import tar_within_zip, unpack
from headrace.services.packages import Cache, Package, locked, need_linux_amd64
from headrace.services.ports import Command, NodePlan, ServiceLayout
from headrace.services.probes import postgres_greets
from headrace.services.watcher import Watcher

__all__ = ["Postgres"]

_UNPRIVILEGED = "nobody"


class Postgres:
    """A server with few buffers; `properties` are settings of postgresql.conf."""

    name = "postgres"
    roles: Sequence[str] = ("client",)
    most_nodes = 1
    timeout_s = 60.0
    is_seeded = False
    stop_signal = signal.SIGINT  # SIGTERM would wait for clients to leave
    grace_s = 10.0

    def install(self, cache: Cache, watcher: Watcher) -> Sequence[Path]:
        """Fetch and unpack the binaries, where the user that runs them can reach them."""
        need_linux_amd64(self.name)
        (package,) = locked(self.name)
        folder = unpack(self.name, package, tar_within_zip, cache=cache, watcher=watcher)
        if _is_root() and not _is_enterable(folder):
            folder = _public_copy(folder, package, cache)
        return [folder]

    def host(self, number: int) -> str:
        """Loopback."""
        return "127.0.0.1"

    def prepare(self, node: NodePlan, layout: ServiceLayout, files: Sequence[Path]) -> None:
        """Make the database cluster when the data folder is new."""
        if _is_root():
            _open_to_all(node)
        if not (node.data / "PG_VERSION").exists():
            self._init(node, files[0])

    def command(self, node: NodePlan, layout: ServiceLayout, files: Sequence[Path]) -> Command:
        """Run postgres, with its settings on the command line."""
        settings = [f"--{key}={value}" for key, value in postgresql_conf(node, layout).items()]
        argv = [str(files[0] / "bin" / "postgres"), "-D", str(node.data), *settings]
        return Command(argv, user=_user())

    def is_ready(self, node: NodePlan, layout: ServiceLayout) -> bool:
        """Log in; a server that starts or recovers refuses."""
        return postgres_greets((node.host, node.ports["client"]), user="postgres")

    def url(self, node: NodePlan) -> str:
        """Return the URL for SQL clients."""
        return f"postgresql://postgres@{node.at('client')}/postgres"

    def _init(self, node: NodePlan, home: Path) -> None:
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        argv = [str(home / "bin" / "initdb"), f"--pgdata={node.data}", *options]
        user = _user()
        groups: list[str | int] | None = None if user is None else []
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, cwd=node.folder, user=user, extra_groups=groups
        )
        if done.returncode:
            raise ServiceFailed(node.name, "its database cluster could not be created", done.stdout + done.stderr)


def postgresql_conf(node: NodePlan, layout: ServiceLayout) -> dict[str, str]:
    """Return the server's configuration; the caller's properties win."""
    return {
        "listen_addresses": node.host,
        "port": str(node.ports["client"]),
        "unix_socket_directories": "",
        "shared_buffers": "32MB",
        "max_connections": "100",
        "log_checkpoints": "off",
        **layout.properties,
    }


def _user() -> str | None:
    return _UNPRIVILEGED if _is_root() else None


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _is_enterable(folder: Path) -> bool:
    """Return True if every user may enter the folder."""
    return all(one.stat().st_mode & stat.S_IXOTH for one in (folder, *folder.parents))


def _own(folder: Path, user: str) -> None:
    """Give the folder and what is in it to the user."""
    import pwd  # not everywhere

    entry = pwd.getpwnam(user)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)


def _open_to_all(node: NodePlan) -> None:
    """Let the unprivileged user enter our folders, and give it its data; folders above ours are not changed."""
    if not _is_enterable(node.folder.parent.parent):
        step = f"give a folder every user may enter (such as --data {tempfile.gettempdir()}/postgres), or don't be root"
        raise UnsupportedPlatform(f"a folder that the user {_UNPRIVILEGED} may enter", str(node.folder), step)
    for folder in (node.folder.parent, node.folder):
        folder.chmod(folder.stat().st_mode | 0o011)
    _own(node.data, _UNPRIVILEGED)
    node.data.chmod(0o700)


def _public_copy(folder: Path, package: Package, cache: Cache) -> Path:
    """Copy the binaries out of a private cache, once; the copy must be writable by root only."""
    public = Path(tempfile.gettempdir()) / f"headrace-{folder.name}"
    with cache.locked(package):
        if public.is_symlink() or public.exists():
            _check_ours(public)
            return public
        half = Path(tempfile.mkdtemp(prefix="headrace-"))
        shutil.copytree(folder, half, symlinks=True, dirs_exist_ok=True)
        half.chmod(0o755)
        half.rename(public)
    return public


def _check_ours(public: Path) -> None:
    found = public.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
        return
    raise UnsupportedPlatform(f"a folder {public} that only root may write", f"one of user {found.st_uid}", "remove it")
