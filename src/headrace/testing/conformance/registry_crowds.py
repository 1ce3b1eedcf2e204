"""Tests of several nodes that register concurrently."""

from __future__ import annotations

import asyncio

import pytest

from headrace.errors import IncompatibleSchema
from headrace.serde import Level, Registry, Version
from headrace.testing.conformance.registry_setting import OpenAnother, RegistrySetting, new_subject, record

__all__ = ["ConcurrentNodes"]

NODES = 4


class ConcurrentNodes(RegistrySetting):
    """The tests of nodes that race."""

    @pytest.mark.timeout(120)
    async def test_nodes_that_register_at_once_agree_on_every_id(self, node: Registry, another: OpenAnother) -> None:
        """V5: different schemas get different ids, the same schema the same one, whichever node was first."""
        nodes = [node, *[await another() for _ in range(NODES - 1)]]
        name = new_subject()
        schemas = [record(f"Crowd{name[2:10]}{n}", id="string") for n in range(5)]
        calls = [
            each.register(f"{name}-{(place + turn) % 5}", schemas[(place + turn) % 5])
            for turn in range(5)
            for place, each in enumerate(nodes)
        ]
        made = set(await asyncio.gather(*calls))
        assert len(made) == 5
        assert len({version.schema_id for version in made}) == 5
        late = await another()
        for version in made:
            assert await late.schema(version.schema_id) == version.schema
            assert list(await late.versions(version.subject)) == [version]

    @pytest.mark.timeout(120)
    async def test_versions_of_a_subject_are_given_out_once(self, node: Registry, another: OpenAnother) -> None:
        """V5: nodes that add different versions to one subject at once leave no gap and no double."""
        nodes = [node, *[await another() for _ in range(NODES - 1)]]
        subject = new_subject()
        schemas = [record(id="string", **{f"f{n}": ("long", 0)}) for n in range(8)]
        made = await asyncio.gather(*(nodes[n % NODES].register(subject, schema) for n, schema in enumerate(schemas)))
        assert sorted(version.version for version in made) == list(range(1, 9))
        assert list(await (await another()).versions(subject)) == sorted(made, key=lambda version: version.version)

    @pytest.mark.timeout(120)
    async def test_of_two_that_break_each_other_one_is_refused(self, node: Registry, another: OpenAnother) -> None:
        """V4: schemas that are fine alone and break together never become versions of one subject."""
        other = await another()
        for _ in range(5):
            subject = new_subject()
            await node.register(subject, record(id="string"))
            await node.levels.put(subject, Level.FULL_TRANSITIVE)
            results = await asyncio.gather(
                node.register(subject, record(id="string", age=("long", 0))),
                other.register(subject, record(id="string", age=("string", ""))),
                return_exceptions=True,
            )
            kinds = sorted(type(result).__name__ for result in results)
            assert kinds == [IncompatibleSchema.__name__, Version.__name__], results
            assert len(await node.versions(subject)) == 2
