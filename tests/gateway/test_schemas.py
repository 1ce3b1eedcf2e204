"""Schemas over HTTP, as Confluent's own client uses them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema as TheirSchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.gateway.conftest import Client, NewClient, Serve

from headrace.app import Headrace
from headrace.serde import GenericCodec, JsonRenderer, Schema, schema_id_of
from headrace.serde.registries.confluent import ConfluentRegistry

ONE = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "total", "type": "int"}]})
TWO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "total", "type": "int"}, {"name": "note", "type": "string", "default": ""}],
    }
)
BROKEN = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "total", "type": "string"}]})
CONTEXT = SerializationContext("orders", MessageField.VALUE)

Theirs = SchemaRegistryClient
Call = Callable[..., Any]


@pytest.fixture
async def theirs(serve: Serve) -> AsyncIterator[Theirs]:
    """Their client, against a gateway that serves at a port."""
    async with serve() as gateway:
        with SchemaRegistryClient({"url": gateway.url}) as client:
            yield client


async def call(function: Call, *args: Any, **options: Any) -> Any:
    return await asyncio.to_thread(function, *args, **options)


async def refusal(function: Call, *args: Any) -> tuple[int, int]:
    with pytest.raises(SchemaRegistryError) as refused:
        await call(function, *args)
    assert refused.value.error_message
    return refused.value.http_status_code, refused.value.error_code


async def test_their_client_registers_finds_and_checks_schemas(theirs: Theirs, hr: Headrace) -> None:
    """V6: subjects, versions, ids, compatibility and levels through confluent-kafka's own client, unchanged."""
    first = await call(theirs.register_schema, "orders-value", TheirSchema(ONE, "AVRO"))
    second = await call(theirs.register_schema, "orders-value", TheirSchema(TWO, "AVRO"))
    assert await call(theirs.register_schema, "copies-value", TheirSchema(ONE, "AVRO")) == first
    assert await call(theirs.get_subjects) == ["copies-value", "orders-value"]
    assert await call(theirs.get_versions, "orders-value") == [1, 2]
    assert Schema((await call(theirs.get_schema, second)).schema_str) == Schema(TWO)
    latest = await call(theirs.get_latest_version, "orders-value")
    assert (latest.version, latest.schema_id, latest.subject) == (2, second, "orders-value")
    assert (await call(theirs.get_version, "orders-value", 1)).schema_id == first
    assert (await call(theirs.lookup_schema, "orders-value", TheirSchema(TWO, "AVRO"))).version == 2
    assert await call(theirs.test_compatibility, "orders-value", TheirSchema(TWO, "AVRO"))
    assert not await call(theirs.test_compatibility, "orders-value", TheirSchema(BROKEN, "AVRO"))
    assert await call(theirs.get_compatibility, "orders-value") == "FULL_TRANSITIVE"
    assert await call(theirs.set_compatibility, "orders-value", "NONE") == {"compatibility": "NONE"}
    assert await call(theirs.get_compatibility, "orders-value") == "NONE"
    assert await call(theirs.get_compatibility) == "FULL_TRANSITIVE"
    assert [each.version for each in await hr.registry.versions("orders-value")] == [1, 2]


async def test_their_client_is_refused_in_its_own_numbers(theirs: Theirs) -> None:
    """V6: what is unknown, malformed or incompatible has the error codes that the client's users know."""
    await call(theirs.register_schema, "orders-value", TheirSchema(ONE, "AVRO"))
    assert await refusal(theirs.get_schema, 99) == (404, 40403)
    assert await refusal(theirs.get_versions, "nobody-value") == (404, 40401)
    assert await refusal(theirs.get_version, "orders-value", 7) == (404, 40402)
    assert await refusal(theirs.lookup_schema, "orders-value", TheirSchema(TWO, "AVRO")) == (404, 40403)
    assert await refusal(theirs.register_schema, "orders-value", TheirSchema(BROKEN, "AVRO")) == (409, 409)
    assert await refusal(theirs.register_schema, "orders-value", TheirSchema("{", "AVRO")) == (422, 42201)
    assert await refusal(theirs.register_schema, "orders-value", TheirSchema("{}", "JSON")) == (422, 42201)
    assert (await refusal(theirs.delete_subject, "orders-value"))[0] == 501


async def test_what_this_registry_never_does_is_said_in_words(theirs: Theirs) -> None:
    """V6: calls for modes, removed levels, GUIDs and metadata are refused with a message, and not with None."""
    await call(theirs.register_schema, "orders-value", TheirSchema(ONE, "AVRO"))
    assert await refusal(theirs.update_mode, "orders-value", "READONLY") == (501, 501)
    assert await refusal(theirs.delete_mode, "orders-value") == (501, 501)
    assert await refusal(theirs.update_global_mode, "IMPORT") == (501, 501)
    assert await refusal(theirs.delete_config, "orders-value") == (501, 501)
    assert await refusal(theirs.delete_config) == (501, 501)
    assert await refusal(theirs.get_schema_by_guid, "00000000-0000-0000-0000-000000000001") == (404, 40403)
    assert await refusal(theirs.get_latest_with_metadata, "orders-value", {"owner": "ann"}) == (404, 40402)
    assert await refusal(theirs.get_associations_by_resource_name, "orders", "ns") == (404, 404)
    assert await call(theirs.get_contexts) == ["."]


async def test_nothing_is_listed_as_deleted(theirs: Theirs) -> None:
    """V6: a client that looks for deleted subjects and versions, to remove them for good, finds none."""
    await call(theirs.register_schema, "orders-value", TheirSchema(ONE, "AVRO"))
    assert await call(theirs.get_subjects, deleted_only=True) == []
    assert await call(theirs.get_versions, "orders-value", deleted_only=True) == []
    assert await call(theirs.get_subjects, deleted=True) == ["orders-value"]
    assert await call(theirs.get_versions, "orders-value", deleted=True) == [1]


async def test_a_client_without_permission_reads_why(serve: Serve) -> None:
    """V6, G10: what is refused before a route is asked has a message for the registry's clients, too."""
    async with serve(grants={}, signatures={"secrets": {"k": "A" * 44}}) as gateway:
        with SchemaRegistryClient({"url": gateway.url}) as client:
            assert await refusal(client.get_versions, "orders-value") == (401, 401)


async def test_their_serializer_and_deserializer_work(theirs: Theirs, hr: Headrace) -> None:
    """V6, V8: AvroSerializer registers at the gateway, AvroDeserializer reads; this library does the same."""
    data = await call(AvroSerializer(theirs, ONE), {"total": 7}, CONTEXT)
    assert await call(AvroDeserializer(theirs), data, CONTEXT) == {"total": 7}
    assert await JsonRenderer(hr.registry).render(data) == {"type": "Order", "data": {"total": 7}}
    ours = GenericCodec(await hr.registry.schema(schema_id_of(data))).encode({"total": 8}, prefix=data[:5])
    assert await call(AvroDeserializer(theirs, TWO), ours, CONTEXT) == {"total": 8, "note": ""}
    latest = {"auto.register.schemas": False, "use.latest.version": True}
    assert await call(AvroSerializer(theirs, conf=latest), {"total": 8}, CONTEXT) == ours


async def test_a_registry_of_this_library_may_be_a_gateway(serve: Serve) -> None:
    """V5, V6: the registry on a server, which uses that client, works with another gateway behind it."""
    async with serve() as gateway:
        registry = ConfluentRegistry(gateway.url)
        version = await registry.register("orders-value", Schema(ONE))
        assert await registry.schema(version.schema_id) == Schema(ONE)
        assert (await registry.register("orders-value", Schema(TWO))).version == 2
        await registry.close()


async def test_the_smaller_routes_of_the_dialect(client: Client) -> None:
    """V6: what other clients ask for: schemas alone, uses of a schema, kinds, modes, all versions, explanations."""
    for subject, text in (("a", ONE), ("a", TWO), ("b/c", ONE)):
        path = f"/subjects/{subject.replace('/', '%2F')}/versions"
        assert (await client.post(path, json={"schema": text})).status_code == 200
    assert (await client.get("/subjects?subjectPrefix=b")).json() == ["b/c"]
    assert (await client.get("/subjects?offset=1&limit=1")).json() == ["b/c"]
    assert (await client.get("/schemas/ids/1/subjects")).json() == ["a", "b/c"]
    assert (await client.get("/schemas/ids/1/versions")).json()[0] == {"subject": "a", "version": 1}
    assert (await client.get("/schemas/ids/2/schema")).json()["fields"][1]["name"] == "note"
    assert (await client.get("/subjects/a/versions/latest/schema")).json()["name"] == "Order"
    assert (await client.get("/schemas/types")).json() == ["AVRO"]
    assert (await client.get("/mode")).json() == {"mode": "READWRITE"}
    checked = await client.post("/compatibility/subjects/a/versions?verbose=true", json={"schema": BROKEN})
    assert checked.json()["is_compatible"] is False
    assert any("version 1" in each and "total" in each for each in checked.json()["messages"])
    unknown = await client.post("/compatibility/subjects/x/versions/latest", json={"schema": ONE})
    assert unknown.json() == {"is_compatible": True}
    assert (await client.get("/subjects/a/versions/0")).json()["error_code"] == 42202
    assert (await client.put("/config/a", json={"compatibility": "SOME"})).json()["error_code"] == 42203
    for wrong in ("x", "-1", "99999999999999999999"):
        assert (await client.get(f"/schemas/ids/{wrong}")).status_code == 404


async def test_a_schema_is_read_by_those_who_may_read_one_of_its_subjects(new_client: NewClient, hr: Headrace) -> None:
    """G10: an id alone opens nothing; subjects are listed only to those who may read them."""
    await hr.registry.register("open-value", Schema(ONE))
    await hr.registry.register("closed-value", Schema(TWO))
    client = new_client(grants={"anonymous": ["read schema/open-*"]}, signatures={"secrets": {"k": "A" * 44}})
    assert (await client.get("/subjects")).json() == ["open-value"]
    assert (await client.get("/schemas/ids/1")).status_code == 200
    assert (await client.get("/schemas/ids/2")).status_code == 401
    assert (await client.post("/subjects/open-value/versions", json={"schema": TWO})).status_code == 401
