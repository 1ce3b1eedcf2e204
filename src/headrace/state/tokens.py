"""Consistency tokens of states: the place that a copy has come to, and whether it has what a token names.

A read looks at the places in the changelog that it reads from, and at no others: what was written elsewhere does not
concern it.
"""

from __future__ import annotations

import re

from headrace.errors import StateStale
from headrace.log import Log, check_token
from headrace.model import ConsistencyToken, TokenPlace
from headrace.state.replica import StateReplica

__all__ = ["check_owner_token", "check_standby_token", "place_of"]

_GENERATION = re.compile(r"\.\d+$")


def place_of(replica: StateReplica) -> TokenPlace | None:
    """Return the last place that the copy is whole at; None if there is none yet."""
    complete = replica.complete_offset
    if not complete:
        return None
    return TokenPlace(replica.topic.name, replica.topic.topic_id, replica.at.partition, complete - 1)


def check_standby_token(replica: StateReplica, token: ConsistencyToken) -> None:
    """Refuse a read at a standby that does not surely have what the token names; the owner has it. Raises StateStale.

    Also if the topic is another one: the owner knows best which topic there is.
    """
    name, complete = replica.topic.name, replica.complete_offset or 0
    for place in token.places:
        if _GENERATION.sub("", place.topic) != _GENERATION.sub("", name):
            continue
        if (place.topic, place.topic_id) != (name, replica.topic.topic_id):
            raise StateStale(replica.spec.name, f"the token is of topic {place.topic!r} with the id {place.topic_id!r}")
        if place.partition >= replica.topic.partitions:
            raise StateStale(replica.spec.name, f"the token is of partition {place.partition}")
        if place.partition == replica.at.partition and place.offset >= complete:
            raise StateStale(replica.spec.name, f"the token names offset {place.offset}, it is whole below {complete}")


async def check_owner_token(log: Log, replica: StateReplica, token: ConsistencyToken) -> bool:
    """Check what a token names against the owner's copy and its log.

    Returns False if the log has the record, and the copy does not name it: then it was written for the owner's own
    purposes, or is being applied at this moment. Raises TokenOfOtherTopic, BadToken, TokenAhead.
    """
    is_applied = True
    for place in token.of_topic(replica.topic.name):
        place.check(replica.topic)
        if place.partition == replica.at.partition and place.offset >= (replica.complete_offset or 0):
            await check_token(log, ConsistencyToken((place,)))
            is_applied = False
    return is_applied
