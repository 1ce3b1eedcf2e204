"""Journals over HTTP."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Client, NewClient, Serve
from tests.suites.journal_setting import replicate

from headrace.app import Headrace
from headrace.model import Event
from headrace.serde import GenericCodec, Schema, frame_header

PATH = "/journals/accounts/acc-1"
ORDER = Schema('{"type":"record","name":"Order","fields":[{"name":"total","type":"int"}]}')


async def post(client: Client, path: str = PATH, *, key: str | None = None, **body: Any) -> httpx.Response:
    return await client.post(path, json=body, headers={"idempotency-key": key} if key else {})


async def test_events_are_appended_read_deleted_and_purged(client: Client) -> None:
    """G4: a journal is served out of the box: append, read, pointer, delete, purge."""
    created = await post(client, events=[{"payload": {"opened": 100}, "tags": ["vip"]}, {"payload": "text"}])
    assert created.status_code == 201
    assert (created.json()["first"], created.json()["last"]) == (1, 2)
    page = (await client.get(PATH)).json()
    assert [(each["seq_nr"], each["payload_type"], each["payload"]) for each in page["events"]] == [
        (1, "json", {"opened": 100}),
        (2, "text", "text"),
    ]
    assert page["next"] is None
    assert (await client.get(f"{PATH}/pointer")).json() == {"pointer": 2}
    assert (await client.delete(PATH, params={"to": 1})).status_code == 204
    assert [each["seq_nr"] for each in (await client.get(PATH)).json()["events"]] == [2]
    assert (await client.post(f"{PATH}/purge")).status_code == 204
    assert (await client.get(f"{PATH}/pointer")).status_code == 404


async def test_what_is_not_there_is_404(client: Client) -> None:
    """G1: None is 404, also for deletes and purges; an empty journal is an empty page."""
    for answer in (
        await client.get(f"{PATH}/pointer"),
        await client.get(f"{PATH}/events/1"),
        await client.delete(PATH, params={"to": 1}),
        await client.post(f"{PATH}/purge"),
        await post(client, "/journals/no-such-topic/a", events=[{}]),
    ):
        assert answer.status_code == 404, answer.request.url
        assert answer.headers["content-type"] == "application/problem+json"
    assert (await client.get(PATH)).json() == {"events": [], "next": None}


async def test_an_append_from_the_wrong_place_is_a_conflict(client: Client) -> None:
    """G1: a conflict is 409, and says where the journal is; nothing was written."""
    await post(client, events=[{"payload": 1}, {"payload": 2}])
    for body in ({"expected": 1}, {"expected": 0}, {"expected": 5}):
        refused = await post(client, events=[{"payload": "x"}], **body)
        assert refused.status_code == 409
        assert refused.json()["actual"] == 2
    refused = await post(client, events=[{"seq_nr": 2, "payload": "x"}])
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:headrace:problem:wrong-seq-nr")
    assert (await post(client, events=[{"seq_nr": 3}], expected=2)).status_code == 201
    assert (await client.get(f"{PATH}/pointer")).json() == {"pointer": 3}
    for expected in (-1, 2**63 - 1):
        assert (await post(client, events=[{}], expected=expected)).json()["name"] == "expected", "what was sent"


WRONG_BODIES: list[Any] = [
    {},
    {"events": []},
    {"events": [{"seq_nr": 1}, {}]},
    {"events": [{"seq_nr": 2}, {"seq_nr": 1}]},
    {"events": [{"seq_nr": 0}]},
    {"events": [{"seq_nr": 2**63}]},
    {"events": [{"seq_nr": True}]},
    {"events": [{"seq_nr": "1"}]},
    {"events": [{"tags": [""]}]},
    {"events": [{"tags": "vip"}]},
    {"events": [{"payload": "no base64!", "payload_type": "binary"}]},
    {"events": [{"payload": 1, "payload_type": "binary"}]},
    {"events": [{"payload": 1, "payload_type": "text"}]},
    {"events": [{"payload": "x", "payload_type": "json"}]},
    {"events": [{"paylaod": 1}]},
    {"events": [{}], "expected": -1},
    {"events": [{}], "expected": 2**63 - 1},
    {"events": [{}], "expire_after": "soon"},
    {"events": [{}], "headers": {"a": 1}},
    [],
]


async def test_a_body_of_the_wrong_form_is_refused(client: Client) -> None:
    """G1: a bad argument is 400, and nothing is written."""
    for body in WRONG_BODIES:
        refused = await client.post(PATH, json=body)
        assert refused.status_code == 400, (body, refused.text)
    assert (await client.get(f"{PATH}/pointer")).status_code == 404


NO_JSON = [
    b'{"events": [{"payload": "\xed\xa0\x80"}]}',  # a surrogate, which UTF-8 does not have
    b'{"events": [{"payload": {"\xff": 1}}]}',
    b'{"events": [{"payload": "caf\xe9"}]}',  # Latin-1
    b'{"events": [{"payload": "\\ud800"}]}',
    b'{"events": [{"payload": NaN}]}',
    b"\xff\xfe{\x00}\x00",
    b"",
]


async def test_a_body_that_is_no_json_is_refused(client: Client) -> None:
    """G1: bytes that are no UTF-8 are the caller's mistake, as any other text that is no JSON: 400, and not 500."""
    for body in NO_JSON:
        refused = await client.post(PATH, content=body, headers={"content-type": "application/json"})
        assert refused.status_code == 400, (body, refused.text)
        assert refused.json()["name"] == "body"
    assert (await client.get(f"{PATH}/pointer")).status_code == 404


async def test_any_id_has_a_path(client: Client) -> None:
    """An id may hold slashes, spaces, percent signs and any script: its segment is decoded alone."""
    for id_ in ("a/b", "ü 你", "100%", "a%2Fb", "a?b=c#d", "pointer", " "):
        path = "/journals/accounts/" + "".join(f"%{byte:02X}" for byte in id_.encode())
        assert (await post(client, path, events=[{"payload": id_}])).json()["id"] == id_
        assert [each["payload"] for each in (await client.get(path)).json()["events"]] == [id_]
    assert (await client.get("/journals/accounts/%ff")).status_code == 400


async def test_pages_and_lines_hold_the_same_events(client: Client, hr: Headrace) -> None:
    """A journal is read in pages, each beginning where the last one says, or as lines in one stream."""
    await hr.journal("accounts").append("acc-1", [Event(n, n) for n in range(1, 24)])
    seen, first = [], 1
    while first is not None:
        page = (await client.get(PATH, params={"from": first, "to": 22, "limit": 5})).json()
        seen += [each["seq_nr"] for each in page["events"]]
        first = page["next"]
    lines = await client.get(PATH, params={"to": 22}, headers={"accept": "application/x-ndjson"})
    assert lines.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["seq_nr"] for line in lines.text.splitlines()] == seen == list(range(1, 23))
    refused = await client.get(PATH, params={"limit": 5}, headers={"accept": "application/x-ndjson"})
    assert (refused.status_code, refused.json()["name"]) == (400, "limit"), "it was ignored, and all lines were sent"


async def test_a_journal_is_followed_as_lines(serve: Serve, hr: Headrace) -> None:
    """With `live` the lines go on with each event that is appended; a purge ends them with a problem of status 410."""
    journal, lines_of_json = hr.journal("accounts"), {"accept": "application/x-ndjson"}
    await journal.append("acc-1", [Event(1, "a")])
    async with serve() as gateway, httpx.AsyncClient(base_url=gateway.url, timeout=10) as client:
        assert (await client.get(f"{PATH}?live=true")).status_code == 400
        ended = await client.get(f"{PATH}?live=true&to=1", headers=lines_of_json)
        assert [json.loads(line)["payload"] for line in ended.text.split()] == ["a"]
        found = []
        with contextlib.suppress(httpx.RemoteProtocolError):  # it is broken off, so that nobody takes it for the end
            async with client.stream("GET", f"{PATH}?live=true", headers=lines_of_json) as stream:
                async for line in stream.aiter_lines():
                    if line:
                        found.append(json.loads(line))
                        await (journal.purge("acc-1") if len(found) == 2 else journal.append_next("acc-1", ["b"]))
    assert [event["seq_nr"] for event in found[:2]] == [1, 2]
    assert (found[2]["problem"]["status"], found[2]["problem"]["key"]) == (410, "acc-1")


async def test_a_parameter_that_is_wrong_or_misspelt_is_refused(client: Client) -> None:
    """G1: what the route does not understand is 400, not ignored."""
    for query in ("limit=0", "limit=100000", "limit=x", "from=0", "to=-1", "from=1&from=2", "form=1", "from=%C2%B2"):
        assert (await client.get(f"{PATH}?{query}")).status_code == 400, query


async def test_a_repeated_append_happens_once_at_every_gateway(new_client: NewClient) -> None:
    """G14: an Idempotency-Key makes the append safe to repeat, here and at another gateway."""
    first, other = new_client(), new_client()
    events = [{"payload": {"b": 1, "a": [1, None]}, "tags": ["vip"]}, {"payload": "x"}]
    answers = [
        await post(client, key="k-1", events=events, expected=0) for client in (first, first, other, new_client())
    ]
    assert [each.status_code for each in answers] == [201] * 4
    assert all(each.json() == answers[0].json() for each in answers)
    assert (await other.get(f"{PATH}/pointer")).json() == {"pointer": 2}
    assert (await post(other, key="k-2", events=events, expected=0)).status_code == 409


async def test_a_repeated_append_happens_once_after_replication(new_client: NewClient, hr: Headrace) -> None:
    """G14: also when the first try was replicated, and the gateway that took it is gone."""
    events = [{"payload": {"b": 1, "a": [1, None]}, "tags": ["vip"]}, {"payload": "x"}]
    first = await post(new_client(), key="k-1", events=events, expected=0)
    await replicate(hr.log, hr.store, "accounts")
    again = await post(new_client(), key="k-1", events=events, expected=0)
    assert (again.status_code, again.json()) == (201, first.json())
    assert (await post(new_client(), key="k-1", events=[{}, {}], expected=0)).status_code == 422
    assert (await post(new_client(), key="k-2", events=events, expected=0)).status_code == 409
    assert (await new_client().get(f"{PATH}/pointer")).json() == {"pointer": 2}


async def test_a_repeated_append_may_hold_numbers_of_any_size(new_client: NewClient, hr: Headrace) -> None:
    """G14: JSON has whole numbers beyond 64 bits. Another gateway answered the repeat with 500 after replication."""
    events = [{"payload": {"n": 2**64, "below": -(10**40)}}, {"payload": [0.1, 10**4000]}]
    first = await post(new_client(), key="k", events=events, expected=0)
    await replicate(hr.log, hr.store, "accounts")
    again = await post(new_client(), key="k", events=events, expected=0)
    assert (first.status_code, again.status_code, again.json()) == (201, 201, first.json())
    other = [{"payload": {"n": 2**64 + 1}}, {}]
    assert (await post(new_client(), key="k", events=other, expected=0)).status_code == 422


async def test_the_same_key_with_other_events_is_refused(new_client: NewClient) -> None:
    """G14: the same Idempotency-Key with another body is 422, here and at another gateway."""
    first = new_client()
    assert (await post(first, key="k", events=[{"payload": {"b": 1}}], expected=0)).status_code == 201
    for client in (first, new_client()):
        for other in ({"payload": {"b": 2}}, {"payload": {"b": 1}, "tags": ["x"]}, {}, {"payload": {"b": True}}):
            assert (await post(client, key="k", events=[other], expected=0)).status_code == 422


async def test_the_same_key_with_other_metadata_is_refused(new_client: NewClient) -> None:
    """G14: metadata is part of the body: it must not be dropped in silence, here or at another gateway."""
    first = new_client()
    body: dict[str, Any] = {"events": [{"payload": 1}], "expected": 0}
    assert (await post(first, key="k", **body, metadata={"by": "ann", "at": 1})).status_code == 201
    for client in (first, new_client()):
        assert (await post(client, key="k", **body, metadata={"at": 1, "by": "ann"})).status_code == 201
        assert (await post(client, key="k", **body, metadata={"by": "bob"})).status_code == 422
        assert (await post(client, key="k", **body)).status_code == 422


async def test_two_keys_of_one_request_are_refused(client: Client) -> None:
    """G14: a request with two different keys could be remembered under either."""
    body = {"events": [{"payload": 1}], "expected": 0}
    headers = [("idempotency-key", "k-1"), ("idempotency-key", "k-2")]
    assert (await client.post(PATH, json=body, headers=headers)).status_code == 400


async def test_reading_creates_no_topic(client: Client, hr: Headrace) -> None:
    """G1: whatever is asked of a topic that is not there, the answer is 404, and it is still not there."""
    path = "/journals/nowhere/x"
    for method, url in (
        ("GET", path),
        ("GET", f"{path}/pointer"),
        ("GET", f"{path}/events/1"),
        ("DELETE", f"{path}?to=1"),
        ("POST", f"{path}/purge"),
    ):
        assert (await client.request(method, url)).status_code == 404, url
    lines = await client.get(path, headers={"accept": "application/x-ndjson"})
    assert (lines.status_code, lines.json()["topic"]) == (404, "nowhere")
    assert "nowhere" not in await hr.log.admin.topics()


@pytest.mark.parametrize("number", ["0" * 19 + "1" + "9" * 20, "0" * 19 + "1" + "9" * 5_000, "9" * 20])
async def test_a_number_in_a_path_is_read_whole(client: Client, number: str) -> None:
    """G1: a number with more digits than any has is refused, however it begins."""
    assert (await client.get(f"{PATH}/events/{number}")).status_code == 400
    assert (await client.get(f"/schemas/ids/{number}")).status_code == 404
    await client.post("/subjects/s/versions", json={"schema": '"string"'})
    assert (await client.get(f"/subjects/s/versions/{number}")).status_code == 422


async def test_a_key_without_numbers_is_refused(client: Client) -> None:
    """G14: what can't be made safe is not promised: without numbers a repeat looks like a new append."""
    refused = await post(client, key="k", events=[{}])
    assert refused.status_code == 400
    assert "expected" in refused.json()["detail"]


async def test_binary_and_avro_payloads(client: Client, hr: Headrace) -> None:
    """V7: binary payloads are base64; framed Avro is posted and fetched as it is, or shown as {type, data}."""
    version = await hr.registry.register("accounts-Order", ORDER)
    avro = GenericCodec(ORDER).encode({"total": 7}, prefix=frame_header(version.schema_id))
    await post(client, events=[{"payload": base64.b64encode(b"\1\2").decode(), "payload_type": "binary"}])
    media = {"content-type": "avro/binary"}
    assert (await client.post(PATH, content=avro, params={"seq_nr": 2}, headers=media)).status_code == 201
    one, two = (await client.get(PATH, params={"avro": "json"})).json()["events"]
    assert (one["payload_type"], base64.b64decode(one["payload"])) == ("binary", b"\1\2")
    assert (two["payload_type"], two["payload"]) == ("avro", {"type": "Order", "data": {"total": 7}})
    fetched = await client.get(f"{PATH}/events/2", headers={"accept": "avro/binary, application/json;q=0.5"})
    assert (fetched.headers["content-type"], fetched.content) == ("avro/binary", avro)
    assert (await client.get(f"{PATH}/events/1", headers={"accept": "avro/binary"})).status_code == 406
    for wrong in (b"", b"\1\2", avro[:1] + b"\0\0\0\x63" + avro[5:], avro[:5]):
        assert (await client.post(PATH, content=wrong, params={"seq_nr": 3}, headers=media)).status_code == 400
    assert (await client.post(PATH, content=b"<a/>", headers={"content-type": "text/xml"})).status_code == 415


async def test_tags_of_a_journal_are_those_the_caller_may_read(client: Client) -> None:
    """The tags of replicated events are listed with their counts; nothing is replicated here."""
    assert (await client.get(f"{PATH}/tags")).json() == {}


async def test_the_callers_trace_goes_into_the_record(client: Client) -> None:
    """A gateway that traces nothing itself passes the trace on; a long tracestate is left out, nonsense is ignored."""
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    long = ",".join(f"{name}={'b' * 200}" for name in "acd")
    cases = (
        ({**parent, "tracestate": "a=b"}, {**parent, "tracestate": "a=b"}),
        ({**parent, "tracestate": long}, parent),
        ({"traceparent": "nonsense"}, {}),
    )
    for n, (headers, expected) in enumerate(cases):
        path, body = f"/journals/accounts/traced-{n}", {"events": [{"payload": 1}], "expected": 0}
        assert (await client.post(path, json=body, headers=headers)).status_code == 201
        assert (await client.get(f"{path}/events/1")).json().get("headers", {}) == expected
