"""The pinned files a server is made of, as the lock files beside this module list them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath

__all__ = ["Package", "locked"]


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
