"""The tables of a group: its members, which partition belongs to which of them, and which should.

All functions run inside a write transaction. The assignment itself is a pure function, sticky and even.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from headrace.errors import NotOwner
from headrace.model import TopicPartition
from headrace.runtime import BootTime

__all__ = [
    "Share",
    "balance",
    "beat",
    "claim",
    "forget_member",
    "generation_of",
    "let_go",
    "load_offsets",
    "store_offsets",
]


def balance(
    subscriptions: Mapping[str, frozenset[str]],
    partitions: Iterable[TopicPartition],
    owners: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Give each partition a member that subscribed to its topic; move as few as evenness allows.

    Evenness: no member has two more than another that could take one of them.
    """
    wanted: dict[TopicPartition, str] = {}
    loads = dict.fromkeys(sorted(subscriptions), 0)
    orphans = []
    for at in sorted(partitions):
        owner = owners.get(at)
        if owner is not None and at.topic in subscriptions.get(owner, ()):
            wanted[at] = owner
            loads[owner] += 1
        else:
            orphans.append(at)
    for at in orphans:
        candidates = [member for member in loads if at.topic in subscriptions[member]]
        if candidates:
            _give(at, min(candidates, key=loads.__getitem__), wanted, loads)
    while (move := _best_move(subscriptions, wanted, loads)) is not None:
        at, receiver = move
        loads[wanted[at]] -= 1
        _give(at, receiver, wanted, loads)
    return wanted


def _give(at: TopicPartition, member: str, wanted: dict[TopicPartition, str], loads: dict[str, int]) -> None:
    wanted[at] = member
    loads[member] += 1


def _best_move(
    subscriptions: Mapping[str, frozenset[str]], wanted: Mapping[TopicPartition, str], loads: Mapping[str, int]
) -> tuple[TopicPartition, str] | None:
    """Find a partition whose move narrows the gap between two members, the widest gap first."""
    by_load = sorted(loads, key=loads.__getitem__)
    for giver in reversed(by_load):
        for receiver in by_load:
            if loads[giver] - loads[receiver] < 2:
                break
            for at in sorted(wanted, reverse=True):
                if wanted[at] == giver and at.topic in subscriptions[receiver]:
                    return at, receiver
    return None


def store_offsets(db: sqlite3.Connection, group: str, member_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Store offsets of partitions that the member owns; all or, if one is another's, none. Raises NotOwner."""
    for at in offsets:
        row = db.execute(
            "SELECT owner FROM group_partitions WHERE group_name = ? AND topic = ? AND partition = ?", (group, *at)
        ).fetchone()
        if row is None or row[0] != member_id:
            raise NotOwner(group, f"{at} is not {member_id}'s any more")
    db.executemany(
        "INSERT OR REPLACE INTO group_offsets (group_name, topic, partition, offset) VALUES (?, ?, ?, ?)",
        [(group, at.topic, at.partition, offset) for at, offset in offsets.items()],
    )


def load_offsets(db: sqlite3.Connection, group: str, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the offsets that were committed, by any member at any time."""
    rows = db.execute("SELECT topic, partition, offset FROM group_offsets WHERE group_name = ?", (group,))
    committed = {TopicPartition(topic, partition): offset for topic, partition, offset in rows}
    return {at: committed[at] for at in wanted if at in committed}


@dataclass(frozen=True, slots=True)
class Share:
    """A member's part of its group. With `is_known` False its session had expired, and it has lost all it owned."""

    generation: int
    is_known: bool
    owned: frozenset[TopicPartition]
    wanted: frozenset[TopicPartition]


def generation_of(db: sqlite3.Connection, group: str) -> int:
    """Return the group's generation; 0 for a group without members so far."""
    row = db.execute("SELECT generation FROM groups WHERE name = ?", (group,)).fetchone()
    return int(row[0]) if row else 0


def beat(
    db: sqlite3.Connection, group: str, member_id: str, topics: Iterable[str], *, now: BootTime, session_ms: int
) -> Share:
    """Renew (or begin) a member's session, drop dead members, balance again if anything changed."""
    is_known = _renew(db, group, member_id, topics, BootTime(now.boot_id, now.ms + session_ms))
    _drop_dead(db, group, now)
    _balance(db, group)
    owned = _select(db, "owner", group, member_id)
    return Share(generation_of(db, group), is_known, owned, _select(db, "wanted_by", group, member_id))


def let_go(db: sqlite3.Connection, group: str, member_id: str, partitions: Iterable[TopicPartition]) -> None:
    """Release these partitions, so that the next owner can claim them."""
    db.executemany(
        "UPDATE group_partitions SET owner = NULL WHERE group_name = ? AND topic = ? AND partition = ? AND owner = ?",
        [(group, *at, member_id) for at in partitions],
    )
    _bump(db, group)


def claim(db: sqlite3.Connection, group: str, member_id: str) -> frozenset[TopicPartition]:
    """Claim the partitions that are assigned to this member and have no owner; returns them."""
    rows = db.execute(
        "UPDATE group_partitions SET owner = wanted_by WHERE group_name = ? AND wanted_by = ? AND owner IS NULL"
        " RETURNING topic, partition",
        (group, member_id),
    ).fetchall()
    if rows:
        _bump(db, group)
    return frozenset(TopicPartition(*row) for row in rows)


def forget_member(db: sqlite3.Connection, group: str, member_id: str) -> None:
    """Remove a member with all it owns."""
    db.execute("DELETE FROM group_members WHERE group_name = ? AND member_id = ?", (group, member_id))
    db.execute("UPDATE group_partitions SET owner = NULL WHERE group_name = ? AND owner = ?", (group, member_id))
    _balance(db, group)
    _bump(db, group)


def _renew(db: sqlite3.Connection, group: str, member_id: str, topics: Iterable[str], until: BootTime) -> bool:
    renewed = db.execute(
        "UPDATE group_members SET boot_id = ?, expires_ms = ? WHERE group_name = ? AND member_id = ?",
        (*until, group, member_id),
    )
    if renewed.rowcount:
        return True
    subscription = msgspec.json.encode(sorted(topics)).decode()
    db.execute(
        "INSERT INTO group_members (group_name, member_id, topics, boot_id, expires_ms) VALUES (?, ?, ?, ?, ?)",
        (group, member_id, subscription, *until),
    )
    return False


def _drop_dead(db: sqlite3.Connection, group: str, now: BootTime) -> None:
    """Remove members whose session has run out, or began before the machine was started again."""
    dead = db.execute(
        "DELETE FROM group_members WHERE group_name = ? AND (boot_id <> ? OR expires_ms <= ?) RETURNING member_id",
        (group, *now),
    ).fetchall()
    db.executemany(
        "UPDATE group_partitions SET owner = NULL WHERE group_name = ? AND owner = ?",
        [(group, member_id) for (member_id,) in dead],
    )


def _balance(db: sqlite3.Connection, group: str) -> None:
    """Compute the wanted assignment; the generation grows when it differs from the stored one."""
    members = db.execute("SELECT member_id, topics FROM group_members WHERE group_name = ?", (group,))
    subscriptions = {name: frozenset(msgspec.json.decode(topics, type=list[str])) for name, topics in members}
    partitions = [TopicPartition(*row) for row in db.execute("SELECT topic, partition FROM partitions")]
    rows = db.execute(
        "SELECT topic, partition, owner, wanted_by FROM group_partitions WHERE group_name = ?", (group,)
    ).fetchall()
    stored = {TopicPartition(topic, partition): wanted for topic, partition, _, wanted in rows}
    owners = {TopicPartition(topic, partition): owner or wanted for topic, partition, owner, wanted in rows}
    wanted = balance(subscriptions, partitions, {at: name for at, name in owners.items() if name})
    _store_wanted(db, group, stored, wanted)


def _store_wanted(
    db: sqlite3.Connection,
    group: str,
    stored: dict[TopicPartition, str | None],
    wanted: dict[TopicPartition, str],
) -> None:
    changed = [at for at in stored.keys() | wanted.keys() if stored.get(at) != wanted.get(at)]
    db.executemany(
        "INSERT INTO group_partitions (group_name, topic, partition, wanted_by) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (group_name, topic, partition) DO UPDATE SET wanted_by = excluded.wanted_by",
        [(group, *at, wanted.get(at)) for at in changed],
    )
    if changed:
        _bump(db, group)


def _bump(db: sqlite3.Connection, group: str) -> None:
    db.execute(
        "INSERT INTO groups VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET generation = generation + 1", (group,)
    )


def _select(db: sqlite3.Connection, column: str, group: str, member_id: str) -> frozenset[TopicPartition]:
    query = f"SELECT topic, partition FROM group_partitions WHERE group_name = ? AND {column} = ?"  # noqa: S608
    return frozenset(TopicPartition(*row) for row in db.execute(query, (group, member_id)))
