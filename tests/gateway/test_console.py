"""The console's routes: what callers see and do with their grants, and what is said when something is not there."""

from __future__ import annotations

import asyncio
import gzip
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hatchling.builders.wheel import WheelBuilder
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.gateway.conftest import Client, NewClient, Serve, app_of, settings_with
from tests.gateway.test_security import Issuer, bearer, issuer  # noqa: F401 - the last one is a fixture
from tests.suites.journal_holds import poison
from tests.suites.journal_setting import replicate

from headrace import Event
from headrace.app import Headrace
from headrace.config import HeadraceSettings
from headrace.gateway.console import ConsoleRecorder, LogTopics, PartitionOffsets, TopicFacts
from headrace.gateway.console.pages import ConsolePages
from headrace.model import TopicConfig
from headrace.observe import MetricSample
from headrace.outbox import JsonSerializer, Outbox, Relay, engine_for, migrate

API = "/console/api"
ACTION = {"headrace-action": "test"}


def client_of(hr: Headrace, **sections: Any) -> Client:
    """Return a client of a gateway with these sections of the settings."""
    hr.settings = HeadraceSettings.model_validate({"registry": {"address": "memory:"}, **sections})
    return Client(transport=httpx.ASGITransport(hr.gateway()), base_url="http://localhost")


async def test_the_page_is_complete_and_lets_in_nothing_else(client: Client) -> None:
    """G15: everybody gets the page and each file it names; its policy allows this origin only, and no text as code."""
    page = await client.get("/console")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "<script>" not in page.text
    assert "://" not in page.text
    for name in ConsolePages().names:
        found = await client.get(f"/console/assets/{name}")
        assert found.status_code == 200
        assert found.headers["content-security-policy"] == policy


def test_the_wheel_has_the_page() -> None:
    """Whoever installs the package has the console: no file of it is left out of the wheel."""
    root = Path(__file__).parents[2]
    included = {each.relative_path for each in WheelBuilder(str(root)).recurse_included_files()}
    folder = "src/headrace/gateway/console/assets"
    names = {*ConsolePages().names, "index.html"}
    assert {f"{folder}/{name}" for name in names} <= included


async def test_a_file_is_sent_compressed_and_once(client: Client) -> None:
    """A browser gets it compressed, and nothing at all while it has the same; other names are not files."""
    plain = await client.get("/console/assets/main.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    packed = await client.get("/console/assets/main.js", headers={"accept-encoding": "br, gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.text == plain.text
    assert len(gzip.compress(plain.content)) < len(plain.content) / 2
    again = await client.get("/console/assets/main.js", headers={"if-none-match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for name in ("index.html", "..%2Fpages.py", "pages.py", "%2Fetc%2Fpasswd"):
        assert (await client.get(f"/console/assets/{name}")).status_code == 404


async def test_the_page_works_where_the_gateway_is_mounted(hr: Headrace) -> None:
    """A gateway inside of another application has its files below its own place."""
    outer = Starlette(routes=[Mount("/inner", app_of(hr))])
    async with Client(transport=httpx.ASGITransport(outer), base_url="http://localhost") as client:
        page = await client.get("/inner/console")
        assert 'src="/inner/console/assets/main.js"' in page.text
        assert (await client.get("/inner/console/assets/main.js")).status_code == 200


async def test_the_console_can_be_switched_off(new_client: NewClient) -> None:
    """Without gateway.console there is neither the page nor its routes."""
    client = new_client(console=False)
    assert (await client.get("/console")).status_code == 404
    assert (await client.get(f"{API}/overview")).status_code == 404


async def test_topics_show_head_replicated_and_lag(client: Client, hr: Headrace) -> None:
    """The lag of journals is what the store has not got; a topic that nothing replicates has none."""
    journal = hr.journal("accounts")
    await journal.append("a", [Event(1, {"n": 1})])
    await replicate(hr.log, hr.store, "accounts")
    await journal.append("a", [Event(2, {"n": 2})])
    (accounts,) = (await client.get(f"{API}/topics")).json()["topics"]
    (used,) = [each for each in accounts["partitions"] if each["head"]]
    assert (used["head"], used["replicated"], used["lag"]) == (2, 1, 1)
    assert (accounts["is_journal"], accounts["lag"]) == (True, 1)
    (line,) = (await client.get(f"{API}/journals/accounts")).json()["journals"]
    assert (line["id"], line["seq_nr"], line["is_held"]) == ("a", 1, False)
    moments = (await client.get(f"{API}/journals/accounts/a/history")).json()["moments"]
    assert [each["what"] for each in moments] == ["append event 1", "append event 2"]


async def test_a_caller_sees_what_it_may_read_and_nothing_else(
    new_client: NewClient,
    hr: Headrace,
    issuer: Issuer,  # noqa: F811
) -> None:
    """G15: topics, lines of charts, held journals and the rest are those of the caller's grants; silence is named."""
    for topic in ("accounts", "secrets"):
        await hr.journal(topic, partitions=1).append("a", [Event(1, {"n": 1})])
    client = new_client(jwt=issuer.settings(), grants={"alice": ["read topic/accounts"]})
    assert (await client.get(f"{API}/overview")).status_code == 401
    client.headers.update(bearer(issuer.token()))
    overview = (await client.get(f"{API}/overview")).json()
    assert overview["unseen"] == ["health", "cluster", "outbox"]
    assert (overview["nodes"], overview["may_change"]) == (None, {"outbox": False, "quarantine": False})
    assert [each["name"] for each in (await client.get(f"{API}/topics")).json()["topics"]] == ["accounts"]
    assert (await client.get(f"{API}/quarantine")).json()["topics"] == 1
    for path in ("cluster", "outbox", "journals/secrets", "journals/secrets/a/history"):
        assert (await client.get(f"{API}/{path}")).status_code == 403
    stranger = bearer(issuer.token(sub="mallory"))
    assert (await client.get(f"{API}/overview", headers=stranger)).status_code == 403
    assert (await client.get(f"{API}/topics", headers=stranger)).json()["topics"] == []


async def test_what_is_not_there_is_said_in_a_sentence(client: Client) -> None:
    """Without a node, an outbox or engines, the answer says so, and what to do about it."""
    cluster, outbox = (await client.get(f"{API}/cluster")).json(), (await client.get(f"{API}/outbox")).json()
    assert not cluster["is_available"]
    assert "headrace node run --http" in cluster["why"]
    assert not outbox["is_available"]
    assert "outbox.database" in outbox["why"]
    assert (await client.get(f"{API}/engines")).json() == {"engines": []}
    refused = await client.post(f"{API}/outbox/orders/replay", json={}, headers=ACTION)
    assert (refused.status_code, "outbox" in refused.json()["detail"]) == (404, True)


async def test_an_outbox_without_tables_says_what_to_run(hr: Headrace, tmp_path: Path) -> None:
    """The sentence has the command, and no names of files or hosts."""
    async with client_of(hr, outbox={"database": f"sqlite:///{tmp_path / 'shop.db'}"}) as client:
        found = (await client.get(f"{API}/outbox")).json()
    assert not found["is_available"]
    assert "headrace outbox migrate" in found["why"]
    assert str(tmp_path) not in found["why"]


@pytest.fixture
async def dead(hr: Headrace, tmp_path: Path) -> str:
    """Return the address of an outbox with two dead messages of topic `orders`: its records may not be so large."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    await hr.log.admin.create("orders", partitions=1, config=TopicConfig(max_record_bytes=6_000))
    await asyncio.to_thread(migrate, url)
    engine = engine_for(url)
    with engine.begin() as db:
        producer = Outbox().producer("orders", serializer=JsonSerializer())
        for name in ("<script>alert(1)</script>", "b"):
            producer.publish(db, {"name": name, "much": "x" * 8_000}, key=name)
    engine.dispose()
    async with Relay(url, hr.log) as relay:
        await relay.drain()
    return url


async def test_dead_messages_are_shown_replayed_and_purged(hr: Headrace, dead: str) -> None:
    """A dead message is cut to what a page can show; replay and purge change those that are named, or none."""
    async with client_of(hr, outbox={"database": dead}) as client:
        first, second = (await client.get(f"{API}/outbox")).json()["dead"]
        (problem,) = (await client.get(f"{API}/overview")).json()["problems"]
        assert problem == {"level": "warn", "text": "2 of the outbox's messages for orders could not be sent."}
        assert first["message"]["is_cut"]
        assert len(first["message"]["value"]) <= 4096
        assert first["key"]["value"] == "<script>alert(1)</script>"
        wrong = await client.post(f"{API}/outbox/orders/purge", json={"ids": [first["id"], 999]}, headers=ACTION)
        assert (wrong.status_code, "nothing was changed" in wrong.json()["detail"]) == (400, True)
        other = await client.post(f"{API}/outbox/others/purge", json={"ids": [first["id"]]}, headers=ACTION)
        assert other.status_code == 400
        done = await client.post(f"{API}/outbox/orders/replay", json={"ids": [first["id"]]}, headers=ACTION)
        assert done.json() == {"count": 1}
        now = (await client.get(f"{API}/outbox")).json()
        assert [each["id"] for each in now["dead"]] == [second["id"]]
        assert sum(lane["pending"] for lane in now["lanes"]) == 1
        assert (await client.post(f"{API}/outbox/orders/purge", json={}, headers=ACTION)).json() == {"count": 1}
        assert (await client.get(f"{API}/outbox")).json()["dead"] == []
        assert (await client.get(f"{API}/overview")).json()["problems"] == []


async def test_an_action_needs_the_grant_and_comes_from_the_console(
    hr: Headrace,
    dead: str,
    issuer: Issuer,  # noqa: F811
) -> None:
    """G15: no other page causes an action, and nobody without the grant: nothing is changed by any of these."""
    grants = {
        "reader": ["read system/outbox", "read topic/*"],
        "blind": ["read,write system/outbox"],
        "operator": ["read,write system/outbox", "read topic/*"],
    }
    gateway = {"jwt": issuer.settings(), "grants": grants}
    async with client_of(hr, outbox={"database": dead}, gateway=gateway) as client:

        async def purge(subject: str, headers: dict[str, str]) -> int:
            sent = {**bearer(issuer.token(sub=subject)), **headers}
            return (await client.post(f"{API}/outbox/orders/purge", json={}, headers=sent)).status_code

        assert await purge("reader", ACTION) == 403
        assert await purge("blind", ACTION) == 403
        assert await purge("operator", {}) == 403
        assert await purge("operator", {**ACTION, "sec-fetch-site": "cross-site"}) == 403
        assert await purge("operator", {**ACTION, "origin": "https://evil.example"}) == 403
        assert (await client.post(f"{API}/outbox/orders/purge", json={}, headers=ACTION)).status_code == 401
        shown = await client.get(f"{API}/outbox", headers=bearer(issuer.token(sub="reader")))
        assert (len(shown.json()["dead"]), shown.json()["may_change"]) == (2, False)
        hidden = await client.get(f"{API}/outbox", headers=bearer(issuer.token(sub="blind")))
        assert (hidden.json()["dead"], hidden.json()["lanes"]) == ([], [])
        assert await purge("operator", {**ACTION, "sec-fetch-site": "same-origin", "origin": "http://localhost"}) == 200


async def test_a_held_journal_is_shown_and_decided_about(client: Client, hr: Headrace) -> None:
    """A decision names the record, so that another one is not meant; the next replication carries it out."""
    await hr.journal("accounts").append("a", [Event(1, {"n": 1})])
    await poison(hr.log, "accounts", "a")
    await replicate(hr.log, hr.store, "accounts")
    (held,) = (await client.get(f"{API}/quarantine")).json()["held"]
    assert (held["topic"], held["id"], held["records"]) == ("accounts", "a", 1)
    where = f"{API}/quarantine/accounts/a/skip"
    assert (await client.post(where, json={"offset": held["offset"]})).status_code == 403
    assert (await client.post(where, json={"offset": held["offset"] + 1}, headers=ACTION)).status_code == 400
    assert (await client.post(where, json={"offset": held["offset"]}, headers=ACTION)).status_code == 200
    await replicate(hr.log, hr.store, "accounts")
    assert (await client.get(f"{API}/quarantine")).json()["held"] == []


async def test_a_part_that_is_down_is_a_problem_at_once(hr: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that does not answer is said by the overview, and topics are an error, not what was known before."""
    async with client_of(hr) as client:
        assert (await client.get(f"{API}/overview")).json()["problems"] == []
    async with client_of(hr) as client:

        async def fail() -> list[str]:
            raise ConnectionError("no route")

        monkeypatch.setattr(hr.log.admin, "topics", fail)
        (problem,) = (await client.get(f"{API}/overview")).json()["problems"]
        assert problem["level"] == "bad"
        assert "log is down" in problem["text"]
        assert (await client.get(f"{API}/topics")).status_code == 500


async def test_a_served_gateway_records_charts(serve: Serve, hr: Headrace) -> None:
    """Charts grow while the gateway serves, whoever looks: the rate is that of all writers to the log."""
    journal = hr.journal("accounts")
    async with serve(console_sample_s=0.1) as running, httpx.AsyncClient(base_url=running.url) as client:
        async with asyncio.timeout(60):
            for n in itertools.count(1):
                await journal.append("a", [Event(n, {"n": n})])
                charts = (await client.get(f"{API}/charts")).json()["charts"]
                if any(value for _, value in charts["rate"].get("accounts", [])) and charts["requests"]:
                    break
        assert charts["lag"]["accounts"][-1][1] > 0


class _Growing:
    """A log whose one topic grows by 10 each time that it is asked, unless it is down; there is nothing else."""

    def __init__(self) -> None:
        self.is_down = False
        self.asked = 0

    async def topics(self) -> LogTopics:
        if self.is_down:
            raise TimeoutError
        self.asked += 1
        return LogTopics((TopicFacts("t", True, (PartitionOffsets(0, 0, 10 * self.asked, 0),)),))


def recorder_of(log: _Growing, metrics: Callable[[], list[MetricSample]] = list) -> ConsoleRecorder:
    parts: Any = SimpleNamespace(topics=log, outbox=None, cluster=None)
    return ConsoleRecorder(parts, every_s=1.0, read_metrics=metrics)


async def test_what_could_not_be_measured_is_a_gap() -> None:
    """While the log is away there is no rate, not a rate of 0; and none is made up over the time it was away."""
    log = _Growing()
    recorder = recorder_of(log)
    for is_down in (False, False, True, False, False):
        log.is_down = is_down
        await recorder.measure()
    rates = [point.value for point in recorder.charts.lines("rate")["t"]]
    assert [value is None for value in rates] == [False, True, False]
    assert [point.value is None for point in recorder.charts.lines("lag")["t"]] == [False, False, True, False, False]


async def test_many_viewers_ask_the_log_once() -> None:
    """What is costly to ask is asked once for all that look within a second."""
    log = _Growing()
    recorder = recorder_of(log)
    found = await asyncio.gather(*(recorder.topics() for _ in range(50)))
    assert log.asked == 1
    assert len(set(map(id, found))) == 1


async def test_times_are_those_since_the_last_look() -> None:
    """Rates and quantiles come from what was counted in between, summed over routes; failures are statuses of 5xx."""
    counts = {"0.1": 0.0, "1.0": 0.0, "+Inf": 0.0}

    def metrics() -> list[MetricSample]:
        name = "headrace_gateway_request_seconds_bucket"
        return [
            MetricSample(name, {"route": route, "status": status, "le": bound}, value)
            for route, status in (("/a", "200"), ("/b", "503"))
            for bound, value in counts.items()
        ]

    recorder = recorder_of(_Growing(), metrics)
    await recorder.measure()
    counts.update({"0.1": 0.0, "1.0": 100.0, "+Inf": 100.0})
    await recorder.measure()
    p99 = recorder.charts.last("request_p99_ms", "gateway")
    requests, failed = recorder.charts.last("requests", "gateway"), recorder.charts.last("failed", "gateway")
    assert p99 == pytest.approx(991.0)
    assert requests is not None
    assert failed is not None
    assert requests == pytest.approx(2 * failed)


def test_the_settings_bound_the_charts() -> None:
    """An hour of points at most, however often they are taken."""
    assert settings_with().gateway.console_sample_s == 10.0
    with pytest.raises(ValueError, match="console_sample_s"):
        settings_with(console_sample_s=0.01)
