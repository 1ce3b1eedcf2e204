"""The pinned files a server is made of, in one folder of the user, checked by SHA-256 whenever they are used.

Several processes may share the folder: a file is fetched under a lock of its own and appears by a rename, so it is
there whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath

from headrace.errors import ChecksumMismatch, MissingExtra, UnsupportedPlatform

__all__ = ["Cache", "Package", "cache_folder", "locked", "need_linux_amd64"]


def cache_folder() -> Path:
    """The folder: HEADRACE_CACHE, or `headrace` in the user's cache folder."""
    if named := os.environ.get("HEADRACE_CACHE"):
        return Path(named).expanduser().resolve()
    users = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(users).expanduser() / "headrace").resolve()


class Cache:
    """Fetched files and unpacked archives.

    Promises: a path it returns held exactly the pinned bytes when it was looked at.
    Does not promise: that the file is not changed afterwards.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder()

    def path(self, package: Package) -> Path:
        """Return the path of the package's file, whether it exists or not."""
        return self.folder / "packages" / package.path

    def unpacked(self, package: Package) -> Path:
        """Return the folder of the unpacked archive, whether it exists or not."""
        return self.folder / "unpacked" / f"{package.artifact}-{package.version}-{package.sha256[:12]}"

    def holds(self, package: Package) -> bool:
        """Return True if the pinned file is there; any other one is removed. Raises ChecksumMismatch."""
        path = self.path(package)
        if not path.exists():
            return False
        check(path, package)
        return True

    def admit(self, fetched: Path, package: Package) -> None:
        """Take in a file that was fetched into a folder of the same file system. Raises ChecksumMismatch."""
        check(fetched, package)
        target = self.path(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        fetched.replace(target)

    @contextmanager
    def locked(self, package: Package) -> Iterator[None]:
        """Lock the package against other threads and processes."""
        try:
            from filelock import FileLock
        except ImportError as error:
            raise MissingExtra("filelock", "services") from error
        locks = self.folder / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f"{package.sha256}.lock"):
            yield

    def staging(self) -> Path:
        """A folder for unfinished files, which are renamed when they are complete."""
        folder = self.folder / "staging"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def check(path: Path, package: Package) -> None:
    """Remove the file and raise ChecksumMismatch unless it is the pinned one."""
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual == package.sha256:
        return
    path.unlink()
    raise ChecksumMismatch(str(path), package.sha256, actual)


@dataclass(frozen=True, slots=True)
class Package:
    """One file of a package registry: its coordinate, the SHA-256 it must have, its size."""

    group: str
    artifact: str
    version: str
    extension: str
    classifier: str
    sha256: str
    size_bytes: int

    @classmethod
    def parse(cls, line: str) -> Package:
        """Read a line of a lock file: `group:artifact:version[:extension[:classifier]] sha256 bytes`."""
        coordinate, sha256, size_bytes = line.split()
        group, artifact, version, *rest = coordinate.split(":")
        extension = rest[0] if rest else "jar"
        classifier = rest[1] if rest[1:] else ""
        return cls(group, artifact, version, extension, classifier, sha256, int(size_bytes))

    @property
    def file_name(self) -> str:
        """The name the registry gives the file."""
        suffix = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{suffix}.{self.extension}"

    @property
    def path(self) -> PurePosixPath:
        """Where the file lies in a repository, and in the cache."""
        return PurePosixPath(*self.group.split("."), self.artifact, self.version, self.file_name)

    def __str__(self) -> str:
        parts = (self.group, self.artifact, self.version, self.extension, self.classifier)
        return ":".join(part for part in parts if part)


def locked(service: str) -> tuple[Package, ...]:
    """List the files the service needs, in the order of its lock file."""
    text = files(__package__).joinpath("artifacts", f"{service}.lock").read_text("utf-8")
    lines = (line.strip() for line in text.splitlines())
    return tuple(Package.parse(line) for line in lines if line and not line.startswith("#"))


def need_linux_amd64(service: str) -> None:
    """Raise UnsupportedPlatform elsewhere: the packaged binaries are built for it alone."""
    found = f"{platform.system()} on {platform.machine()}"
    if found != "Linux on x86_64":
        step = f"use the compose file (docker compose up {service}) or an installed server"
        raise UnsupportedPlatform(f"Linux on x86_64 for {service}", found, step)
