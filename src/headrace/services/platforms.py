"""The machine's platform, and the user that servers run as if this process is root."""

from __future__ import annotations

import ctypes.util
import os
import platform
import stat
from pathlib import Path

from headrace.errors import UnsupportedPlatform

__all__ = ["UNPRIVILEGED", "is_enterable", "is_root", "need_library", "need_linux_amd64", "own"]

UNPRIVILEGED = "nobody"


def need_linux_amd64(service: str) -> None:
    """Raise UnsupportedPlatform elsewhere: the packaged binaries are built for it alone."""
    found = f"{platform.system()} on {platform.machine()}"
    if found != "Linux on x86_64":
        step = f"use the compose file (docker compose up {service}) or an installed server"
        raise UnsupportedPlatform(f"Linux on x86_64 for {service}", found, step)


def need_library(service: str, name: str, *, package: str) -> None:
    """Raise UnsupportedPlatform if the system lacks a shared library."""
    if ctypes.util.find_library(name) is None:
        need = f"lib{name} for {service}"
        raise UnsupportedPlatform(need, "none", f"install it (for example the package {package})")


def is_root() -> bool:
    """Return True if this process is root; some servers refuse to run as root."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def is_enterable(folder: Path) -> bool:
    """Return True if every user may enter the folder."""
    return all(one.stat().st_mode & stat.S_IXOTH for one in (folder, *folder.parents))


def own(folder: Path, user: str) -> None:
    """Give the folder and what is in it to the user."""
    import pwd  # not everywhere

    entry = pwd.getpwnam(user)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
