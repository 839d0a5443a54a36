"""A browser against the service: a page of its own origin can ask it, and one of another origin cannot read it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser
from served_clients import client_of
from served_worlds import saved

ASKS = """async ([address, kind]) => {
    const body = JSON.stringify({task: 3, context: {age: 0.5}});
    try {
        const answer = await fetch(address + '/v1/decide', {method: 'POST', headers: {'content-type': kind}, body});
        return [answer.status, await answer.json()];
    } catch (error) { return [0, error.name]; }
}"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("browsed")
    with client_of(saved(folder), folder) as client:
        yield client


def asked(browser: Browser, page_at: str, address: str, kind: str) -> Any:
    page = browser.new_context().new_page()
    page.goto(page_at)
    return page.evaluate(ASKS, [address, kind])


def test_a_page_of_the_same_origin_decides(browser: Browser, client: httpx.Client) -> None:
    address = str(client.base_url)
    status, decision = asked(browser, f"{address}/livez", address, "application/json")
    assert status == 200
    assert decision["task_known"]


def test_a_page_of_another_origin_neither_decides_nor_reads(
    browser: Browser, client: httpx.Client, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><title>elsewhere</title>")
    before = client.get("/metrics").text.count("hieropo_decisions_total")
    for kind in ("application/json", "text/plain"):
        assert asked(browser, page.as_uri(), str(client.base_url), kind) == [0, "TypeError"]
    counts = [
        line
        for line in client.get("/metrics").text.splitlines()
        if line.startswith("hieropo_decisions_total")
    ]
    assert before
    assert sum(float(line.rpartition(" ")[2]) for line in counts) <= 1  # that of the first test
