"""Packages that are archives: unpacked once into the cache, whole or not at all."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from headrace.services.cache import Cache
from headrace.services.fetch import fetch
from headrace.services.packages import Package
from headrace.services.watcher import Watcher

__all__ = ["tar_of", "tar_within_zip", "unpack", "zip_folder"]

Extract = Callable[[Path, Path], None]


def unpack(service: str, package: Package, extract: Extract, *, cache: Cache, watcher: Watcher) -> Path:
    """Return the folder the archive was unpacked into, fetching and unpacking it the first time."""
    folder = cache.unpacked(package)
    if folder.exists():
        return folder
    (archive,) = fetch(service, [package], cache=cache, watcher=watcher)
    with cache.locked(package):
        if not folder.exists():
            watcher.step(f"unpacking {package.file_name}")
            _unpack_whole(archive, folder, extract, cache)
            # The folder serves from now on; the archive would only double the space.
            archive.unlink(missing_ok=True)
    return folder


def _unpack_whole(archive: Path, folder: Path, extract: Extract, cache: Cache) -> None:
    half = Path(tempfile.mkdtemp(dir=cache.staging()))
    try:
        half.chmod(0o755)
        extract(archive, half)
        folder.parent.mkdir(parents=True, exist_ok=True)
        half.rename(folder)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise


def tar_of(archive: Path, into: Path) -> None:
    """Unpack a tar file, however it is compressed."""
    with tarfile.open(archive) as tar:
        _extract_tar(tar, into)


def tar_within_zip(archive: Path, into: Path) -> None:
    """Unpack the one .txz file of a zip."""
    with zipfile.ZipFile(archive) as outer:
        (inner,) = (name for name in outer.namelist() if name.endswith(".txz"))
        with outer.open(inner) as packed, tarfile.open(fileobj=packed, mode="r|xz") as tar:
            _extract_tar(tar, into)


def _extract_tar(tar: tarfile.TarFile, into: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        tar.extractall(into, filter="data")
    else:
        # Early releases of 3.11 have no filters; the content is pinned by its SHA-256.
        tar.extractall(into)  # noqa: S202


def zip_folder(prefix: str) -> Extract:
    """Make an extract function that unpacks what a zip has below `prefix`, programs executable."""

    def extract(archive: Path, into: Path) -> None:
        with zipfile.ZipFile(archive) as outer:
            for member in outer.infolist():
                path = PurePosixPath(member.filename)
                if member.is_dir() or not path.is_relative_to(prefix) or ".." in path.parts:
                    continue
                target = into / path.relative_to(prefix)
                target.parent.mkdir(parents=True, exist_ok=True)
                with outer.open(member) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
                target.chmod(0o755)

    return extract
