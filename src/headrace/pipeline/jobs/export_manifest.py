"""The manifest of an export: which files belong to it, and how far the log is in them.

Each export adds one manifest, numbered from 0, in the folder `_headrace`; files that no manifest names do not count.
Each table also has a log of commits as Delta Lake's protocol describes it, made of the manifests, so that readers of
that format can open it.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from headrace.errors import BadArgument, OperationFailed
from headrace.protocol import Layout
from headrace.store import Place

__all__ = [
    "EXPORT_TABLES",
    "ExportFolder",
    "ExportManifest",
    "ExportedFile",
    "delta_commit",
    "topics_with_lost_markers",
]

# The tables of an export, and the columns by which their files are in folders.
EXPORT_TABLES: Mapping[str, tuple[str, ...]] = {
    "journal": ("topic", "date"),
    "tags": ("topic", "date"),
    "heads": ("topic",),
}
_MANIFESTS = "_headrace"
_DELTA_LOG = "_delta_log"
_NAMESPACE = uuid.UUID("0d1c6d0c-0f0b-5b52-8a39-3a4f9a1f7f10")


class ExportedFile(msgspec.Struct, frozen=True):
    """A Parquet file: its path within its table, its folders' values, its rows and its size."""

    path: str
    values: Mapping[str, str]
    rows: int
    size_bytes: int


class ExportManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One export.

    `offsets` are the last places that this export and those before it hold, by topic and partition. `whole_heads` are
    the topics of which this export has the heads of all journals, and not only of those that changed. `topic_ids` are
    the logs' own ids of the topics; older manifests lack them.
    """

    version: int
    created_ms: int
    offsets: Mapping[str, Mapping[int, Place]]
    whole_heads: Sequence[str]
    schemas: Mapping[str, str]
    files: Mapping[str, Sequence[ExportedFile]]
    topic_ids: Mapping[str, str] = {}

    def check_follows(self, layout: Layout, folder: Path) -> None:
        """Raise BadArgument if a topic's offsets can't be compared with those of this export: events would be left out.

        A topic that was deleted and made again has another id, and its offsets belong to a later generation.
        """
        at = max((place.generation for place in self.offsets.get(layout.topic, {}).values()), default=-1)
        known = self.topic_ids.get(layout.topic, layout.topic_id)
        was_made_again = any(not each.boundaries for each in layout.generations[at + 1 :])
        if layout.generation < at or (known != layout.topic_id and not was_made_again):
            rule = f"it holds topic {layout.topic!r} of another log or store; export to a folder of its own"
            raise BadArgument("folder", str(folder), rule)

    def place(self, topic: str, partition: int) -> Place:
        """Return the last place of a partition that was exported; one before all others if none was."""
        return self.offsets.get(topic, {}).get(partition, Place(-1, -1))

    def rows(self, table: str) -> int:
        """Return how many rows this export added to a table."""
        return sum(file.rows for file in self.files.get(table, ()))


_decode = msgspec.json.Decoder(ExportManifest).decode


class ExportFolder:
    """The folder of an export, on a disk that the driver and all workers share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def manifests(self) -> list[ExportManifest]:
        """Return the manifests of all exports, the oldest first. Raises OperationFailed if one is damaged or missing.

        Without the manifest of one export its events would be missing in silence, and its files would be removed as
        leftovers, for the offsets of the next manifest cover them.
        """
        found: list[ExportManifest] = []
        for path in sorted((self.folder / _MANIFESTS).glob("*.json")):
            try:
                found.append(_decode(path.read_bytes()))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise OperationFailed(f"reading the manifest {path}", str(error)) from error
            if found[-1].version != len(found) - 1:
                missing = self.folder / _MANIFESTS / _file_name(len(found) - 1)
                reason = f"{missing.name} is missing; restore it, or export to a new folder"
                raise OperationFailed(f"reading the manifests in {missing.parent}", reason)
        return found

    def data(self, table: str, export: str) -> Path:
        """Return the folder of one export's files of a table."""
        return self.folder / table / f"export={export}"

    def files(self, table: str, export: str) -> Iterator[ExportedFile]:
        """Yield the files that Spark has written for one export."""
        import pyarrow.parquet as pq

        for path in sorted(self.data(table, export).rglob("part-*.parquet")):
            inside = path.relative_to(self.folder / table)
            values = dict(part.split("=", 1) for part in inside.parts[1:-1])
            rows = pq.ParquetFile(path).metadata.num_rows
            if rows:
                yield ExportedFile(inside.as_posix(), values, rows, path.stat().st_size)

    def commit(self, manifest: ExportManifest) -> None:
        """Make an export count. Raises OperationFailed if another one took its number meanwhile."""
        path = self.folder / _MANIFESTS / _file_name(manifest.version)
        if not _write_new(path, msgspec.json.format(msgspec.json.encode(manifest))):
            reason = "another export into the folder finished meanwhile; run it again to add what is new since"
            raise OperationFailed(f"exporting into {self.folder}", reason)

    def write_delta_logs(self) -> None:
        """Write the commits in Delta's format that are not there yet: an export may have died before its own."""
        for manifest in self.manifests():
            for table in EXPORT_TABLES:
                path = self.folder / table / _DELTA_LOG / _file_name(manifest.version)
                if not path.exists():
                    _write_new(path, delta_commit(manifest, table))

    def remove_leftovers(self) -> None:
        """Remove the files of exports that died, once their number belongs to another export."""
        known = self.manifests()
        counted = {file.path.split("/", 1)[0] for m in known for files in m.files.values() for file in files}
        for table in EXPORT_TABLES:
            for path in (self.folder / table).glob("export=*"):
                number = path.name.removeprefix("export=").split("-", 1)[0]
                if path.name not in counted and number.isdigit() and int(number) < len(known):
                    remove_folder(path)


def _file_name(version: int) -> str:
    return f"{version:020}.json"


def topics_with_lost_markers(
    known: Sequence[ExportManifest], topics: Iterable[str], *, created_ms: int, marker_ttl_ms: int
) -> list[str]:
    """Return the topics whose heads must be exported all: new ones, and those whose purge markers may have expired.

    A purge marker that expired since the last export of its topic is in no export, whatever of other topics was
    exported meanwhile.
    """
    exported = {topic: _exported_ms(known, topic) for topic in topics}
    return [topic for topic, last_ms in exported.items() if last_ms is None or created_ms - last_ms >= marker_ttl_ms]


def _exported_ms(known: Sequence[ExportManifest], topic: str) -> int | None:
    """Return when the topic's heads were exported last, as far as the manifests show; None if they never were."""
    found_ms, before = None, None
    for manifest in known:
        offsets = manifest.offsets.get(topic)
        if offsets != before or topic in manifest.whole_heads:
            found_ms, before = manifest.created_ms, offsets
    return found_ms


def remove_folder(folder: Path) -> None:
    """Remove a folder and all that is in it, if it is there."""
    import shutil

    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def delta_commit(manifest: ExportManifest, table: str) -> bytes:
    """Return the commit of one export to one table, as Delta Lake's protocol has it: one JSON object a line."""
    actions: list[dict[str, object]] = [
        {
            "commitInfo": {
                "timestamp": manifest.created_ms,
                "operation": "WRITE",
                "operationParameters": {"mode": "Append"},
                "engineInfo": "headrace",
            }
        }
    ]
    if manifest.version == 0:
        actions.append({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
        actions.append({"metaData": _delta_metadata(manifest, table)})
    for file in manifest.files.get(table, ()):
        added = {
            "path": quote(file.path, safe="/=-._~"),
            "partitionValues": file.values,
            "size": file.size_bytes,
            "modificationTime": manifest.created_ms,
            "dataChange": True,
            "stats": msgspec.json.encode({"numRecords": file.rows}).decode(),
        }
        actions.append({"add": added})
    return b"".join(msgspec.json.encode(action) + b"\n" for action in actions)


def _delta_metadata(manifest: ExportManifest, table: str) -> dict[str, object]:
    return {
        "id": str(uuid.uuid5(_NAMESPACE, f"{manifest.created_ms} {table}")),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": manifest.schemas[table],
        "partitionColumns": list(EXPORT_TABLES[table]),
        "configuration": {"delta.appendOnly": "true"},
        "createdTime": manifest.created_ms,
    }


def _write_new(path: Path, content: bytes) -> bool:
    """Write a file whole or not at all; return False if it is there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)  # fails if another process was faster
    except FileExistsError:
        return False
    finally:
        partial.unlink(missing_ok=True)
    return True
