"""The conformance suite of a schema registry."""

from __future__ import annotations

import asyncio

import pytest

from headrace.errors import BadArgument, IncompatibleSchema, UnknownSchema, UnknownSubject
from headrace.serde import Level, Registry, Schema
from headrace.testing.conformance.registry_crowds import ConcurrentNodes
from headrace.testing.conformance.registry_setting import OpenAnother, RegistrySetting, new_subject, record

__all__ = ["RegistryConformance"]

UNUSED_ID = 999_999_999


class Registering(RegistrySetting):
    """The tests of schemas, subjects, versions and levels."""

    async def test_a_schema_is_found_by_its_id_from_everywhere(self, node: Registry, another: OpenAnother) -> None:
        """V5: what one node registered another finds, by id, by subject and in the list."""
        subject, schema = new_subject(), record(id="string")
        made = await node.register(subject, schema)
        other = await another()
        assert await other.schema(made.schema_id) == schema
        assert list(await other.versions(subject)) == [made]
        assert subject in await other.subjects()
        assert (made.subject, made.version) == (subject, 1)

    async def test_the_same_schema_has_the_same_id_under_two_subjects(self, node: Registry) -> None:
        """V5: the id belongs to the schema, the version to the subject."""
        name = new_subject()
        first = await node.register(f"{name}-a", record(f"R{name[2:10]}", id="string"))
        second = await node.register(f"{name}-b", record(f"R{name[2:10]}", id="string"))
        assert first.schema_id == second.schema_id
        assert (first.subject, first.version) != (second.subject, second.version)

    async def test_registering_again_changes_nothing(self, node: Registry, another: OpenAnother) -> None:
        """V5: the same schema, however it is spelt, by whichever node, is the same version."""
        subject = new_subject()
        made = await node.register(subject, record(id="string"))
        spelt = '{ "name": "Account", "fields": [ {"type": {"type": "string"}, "name": "id"} ], "type": "record" }'
        assert await node.register(subject, Schema(spelt)) == made
        assert await (await another()).register(subject, record(id="string")) == made
        assert len(await node.versions(subject)) == 1

    async def test_versions_count_from_one_in_the_order_of_registration(self, node: Registry) -> None:
        """V5: an older schema keeps its version when it is registered again."""
        subject = new_subject()
        schemas = [
            record(id="string"),
            record(id="string", age=("long", 0)),
            record(id="string", age=("long", 0), name=("string", "")),
        ]
        made = [await node.register(subject, schema) for schema in schemas]
        assert [version.version for version in made] == [1, 2, 3]
        assert await node.register(subject, schemas[0]) == made[0]
        assert list(await node.versions(subject)) == made

    async def test_a_breaking_change_is_refused_with_field_version_and_rule(
        self, node: Registry, another: OpenAnother
    ) -> None:
        """V4: FULL_TRANSITIVE is the default; a refusal says what breaks against which version, and writes nothing."""
        subject = new_subject()
        await node.register(subject, record(id="string"))
        await node.register(subject, record(id="string", age=("long", 0)))
        with pytest.raises(IncompatibleSchema) as refused:
            await node.register(subject, record(id="string", age=("long", 0), amount="double"))
        error = refused.value
        assert (error.subject, error.field, error.version, error.rule) == (
            subject,
            "amount",
            2,
            "field without default",
        )
        assert "field 'amount'" in str(error)
        assert "against version 2" in str(error)
        assert "against version 1" in str(error)
        assert "FULL_TRANSITIVE" in str(error)
        assert len(await (await another()).versions(subject)) == 2

    async def test_the_default_level_looks_at_all_versions(self, node: Registry) -> None:
        """V4: a change that only the first version can't stand is refused by FULL_TRANSITIVE and passes FULL."""
        subject = new_subject()
        await node.register(subject, record(id="string", age=("long", 0)))
        await node.register(subject, record(id="string"))
        again = record(id="string", age=("string", ""))
        with pytest.raises(IncompatibleSchema, match="field 'age': type mismatch against version 1"):
            await node.register(subject, again)
        await node.levels.put(subject, Level.FULL)
        assert (await node.register(subject, again)).version == 3

    async def test_levels_are_kept_by_subject(self, node: Registry, another: OpenAnother) -> None:
        """V4: every level can be set and is seen by other nodes; a subject without one has the default."""
        subject = new_subject()
        await node.register(subject, record(id="string"))
        assert await node.levels.get(None) is Level.FULL_TRANSITIVE
        assert await node.levels.get(subject) is Level.FULL_TRANSITIVE
        other = await another()
        for level in Level:
            await node.levels.put(subject, level)
            assert await other.levels.get(subject) is level
        assert await other.levels.get(new_subject()) is Level.FULL_TRANSITIVE

    @pytest.mark.parametrize(
        ("level", "may_add", "may_drop"),
        [
            (Level.NONE, True, True),
            (Level.BACKWARD, False, True),
            (Level.FORWARD_TRANSITIVE, True, False),
            (Level.FULL, False, False),
        ],
    )
    async def test_levels_decide_what_may_change(
        self, node: Registry, level: Level, may_add: bool, may_drop: bool
    ) -> None:
        """V4: a field without default may be added if no old data is read, and removed if no new data is read."""
        for changed, may_change in ((record(id="string", x="long"), may_add), (record(), may_drop)):
            subject = new_subject()
            await node.register(subject, record(id="string"))
            await node.levels.put(subject, level)
            if may_change:
                assert (await node.register(subject, changed)).version == 2
            else:
                with pytest.raises(IncompatibleSchema):
                    await node.register(subject, changed)

    async def test_what_is_not_there_is_named(self, node: Registry) -> None:
        """V1: an unknown id, an unknown subject: typed errors with their names."""
        with pytest.raises(UnknownSchema, match=str(UNUSED_ID)):
            await node.schema(UNUSED_ID)
        with pytest.raises(UnknownSubject, match="nobody-value"):
            await node.versions("nobody-value")

    async def test_subjects_may_have_odd_names(self, node: Registry) -> None:
        """V5: slashes, dots, blanks and letters of any script; an empty name is refused."""
        for odd in ("a/b", "../up", ".", "with blank", "größe-値", "UPPER", "upper", "100%"):
            subject = f"{new_subject()}{odd}"
            made = await node.register(subject, record(id="string"))
            assert list(await node.versions(subject)) == [made]
            assert subject in await node.subjects()
        with pytest.raises(BadArgument, match="subject"):
            await node.register("", record(id="string"))

    async def test_every_kind_of_schema_can_be_kept(self, node: Registry) -> None:
        """V5: not only records; docs, aliases, defaults and logical types come back."""
        enum = {"type": "enum", "name": "Suit", "symbols": ["A", "B"], "default": "A", "doc": "cards"}
        cents = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
        field = {"name": "cents", "doc": "in €", "aliases": ["old"], "type": cents, "default": "\u0000"}
        rich = {"type": "record", "name": "Rich", "namespace": "a.b", "doc": "d", "fields": [field]}
        for raw in ("string", enum, {"type": "array", "items": "long"}, {"type": "map", "values": "bytes"}, rich):
            schema = Schema(raw)
            made = await node.register(new_subject(), schema)
            assert await node.schema(made.schema_id) == schema

    async def test_closing_twice_is_fine(self, another: OpenAnother) -> None:
        """V5: the second close does nothing."""
        node = await another()
        await node.close()
        await node.close()

    async def test_many_calls_of_one_node_at_once_agree(self, node: Registry) -> None:
        """V5: a program that registers from many places gets one version of each schema."""
        subject = new_subject()
        schemas = [record(id="string", **{f"f{n}": ("long", 0)}) for n in range(5)]
        made = await asyncio.gather(*(node.register(subject, schema) for schema in schemas * 4))
        assert len(set(made)) == 5
        assert sorted({each.version for each in made}) == [1, 2, 3, 4, 5]


class RegistryConformance(Registering, ConcurrentNodes):
    """The whole suite of a registry; a backend overrides `address`."""
