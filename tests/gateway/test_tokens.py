"""Consistency tokens over HTTP: writes answer with one, and every read takes it, whichever gateway is asked."""

from __future__ import annotations

import asyncio

from tests.gateway.conftest import Client, NewClient
from tests.suites.journal_setting import replicate

from headrace.app import Headrace
from headrace.model import ConsistencyToken
from headrace.tags import TagWriter

HEADER = "Headrace-Token"
ACCOUNT = "/journals/accounts/a"


async def test_writes_of_journals_answer_with_a_token_that_reads_take(hr: Headrace, new_client: NewClient) -> None:
    """The token of one gateway is good at another; tags, which come from the store, wait for replication."""
    client, other = new_client(), new_client()
    body = {"events": [{"payload": 1, "tags": ["vip"]}], "expected": 0}
    made = await client.post(ACCOUNT, json=body, headers={"Idempotency-Key": "once"})
    again = await other.post(ACCOUNT, json=body, headers={"Idempotency-Key": "once"})
    token = made.headers[HEADER]
    assert again.headers[HEADER] == token
    for path in (ACCOUNT, f"{ACCOUNT}/pointer", f"{ACCOUNT}/events/1", "/events?tag=vip"):
        assert (await other.get(path, headers={HEADER: token})).status_code == 200
    waiting = asyncio.create_task(other.get(f"{ACCOUNT}/tags", headers={HEADER: token}))
    await replicate(hr.log, hr.store, "accounts", views=TagWriter(hr.store, hr.settings.tags, log=hr.log))
    assert (await waiting).json() == {"vip": 1}
    deleted = await client.delete(ACCOUNT, params={"to": 1})
    purged = await client.post(f"{ACCOUNT}/purge")
    assert (await other.get(ACCOUNT, headers={HEADER: f"{token}, {deleted.headers[HEADER]}"})).json()["events"] == []
    assert (await other.get(f"{ACCOUNT}/pointer", headers={HEADER: purged.headers[HEADER]})).status_code == 404


async def test_a_token_that_does_not_fit_is_a_problem_that_tells_nothing_of_other_topics(client: Client) -> None:
    """Garbage is 400 at every route; a place that the log lacks is 409, without its topic's id or end."""
    made = await client.post(ACCOUNT, json={"events": [{"payload": 1}], "expected": 0})
    (place,) = ConsistencyToken.parse(made.headers[HEADER]).places
    for path in (ACCOUNT, "/events?tag=vip", "/subjects", "/health/live"):
        refused = await client.get(path, headers={HEADER: "garbage"})
        assert (refused.status_code, refused.json()["type"]) == (400, "urn:headrace:problem:bad-token")
    for wrong, kind in (
        (place._replace(offset=999), "token-ahead"),
        (place._replace(topic_id="another"), "token-of-other-topic"),
        (place._replace(topic="no-such-topic"), "token-of-other-topic"),
    ):
        for path in (ACCOUNT, "/events?tag=vip"):
            refused = await client.get(path, headers={HEADER: str(ConsistencyToken.of([wrong]))})
            assert (refused.status_code, refused.json()["type"]) == (409, f"urn:headrace:problem:{kind}")
            assert place.topic_id not in refused.text
            assert "ends at" not in refused.text


async def test_a_live_journal_is_refused_before_it_begins_if_the_token_does_not_fit(client: Client) -> None:
    """A client that resumes after all but 410 would come back forever with a token that will never fit."""
    made = await client.post(ACCOUNT, json={"events": [{"payload": 1}], "expected": 0})
    (place,) = ConsistencyToken.parse(made.headers[HEADER]).places
    wrong = str(ConsistencyToken.of([place._replace(offset=999)]))
    lines = {"accept": "application/x-ndjson"}
    refused = await client.get(f"{ACCOUNT}?live=true&to=1", headers={HEADER: wrong, **lines})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:headrace:problem:token-ahead")
    shown = await client.get(f"{ACCOUNT}?live=true&to=1", headers={HEADER: made.headers[HEADER], **lines})
    assert (shown.status_code, '"seq_nr":1' in shown.text) == (200, True)
