"""Pages in chromium: no console error, no violation that axe finds, nothing wider than a phone; times are printed."""

import functools
import http.server
import threading
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from hieropo import HierOPO, examine
from hieropo.report import write_page

SITE = Path(__file__).resolve().parents[2] / "site"
PAGES = ("villages", "many", "examination", "explanation")
MANY = 10_000


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages that hieropo writes: reports of 119 and of 10,000 tasks, an examination, an explanation."""
    folder = tmp_path_factory.mktemp("pages")
    paths = {name: folder / f"{name}.html" for name in PAGES}
    log = files("hieropo.data") / "thornton.parquet"
    roles: dict[str, Any] = {"task": "villnum", "action": "incentive", "reward": "reward", "pscore": "pscore"}
    learner = HierOPO(logging="random").fit(log, **roles, context=["distvct"])
    learner.evaluate(log).report(paths["villages"], title="Which incentive should each village get?")
    examine(log, **roles, context=["distvct"]).report(paths["examination"])
    write_page(learner.explain(17, {"distvct": 2.0}, log=log).document(), paths["explanation"])
    many, columns = many_tasks()
    HierOPO(logging="random").fit(many, **columns).evaluate(many).report(paths["many"])
    return paths


def many_tasks() -> tuple[pa.Table, dict[str, Any]]:
    rng = np.random.default_rng(6)
    user, message = np.repeat(np.arange(MANY), 4), rng.integers(2, size=4 * MANY)
    reply = message * rng.normal(0.3, 0.5, MANY)[user] + rng.normal(size=4 * MANY)
    table = {"user": user, "message": np.array(["none", "reminder"])[message], "reply": reply}
    columns = {"task": "user", "action": "message", "reward": "reply", "pscore": "p"}
    return pa.table({**table, "p": np.full(4 * MANY, 0.5)}), columns


def opened(browser: Browser, address: str, **settings: Any) -> tuple[Page, list[str]]:
    """Return a page in a new context, and the errors that its console shows."""
    page, errors = browser.new_context(**settings).new_page(), []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    return page, errors


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_an_error_and_without_the_network(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    requests: list[str] = []
    page, errors = opened(browser, "about:blank")
    page.on("request", lambda request: requests.append(request.url))
    begin = time.perf_counter()
    page.goto(pages[name].as_uri())
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    seconds = time.perf_counter() - begin
    print(f"\n{name}: {pages[name].stat().st_size / 1000:,.0f} kB, drawn after {1000 * seconds:.0f} ms")
    assert errors == []
    assert requests == [pages[name].as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_violation(browser: Browser, pages: dict[str, Path], name: str, scheme: str) -> None:
    page, _ = opened(browser, pages[name].as_uri(), color_scheme=scheme, bypass_csp=True)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_not_wider_than_a_phone(browser: Browser, pages: dict[str, Path], name: str) -> None:
    page, _ = opened(browser, pages[name].as_uri(), viewport={"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_ten_thousand_tasks_sort_filter_and_are_found(browser: Browser, pages: dict[str, Path]) -> None:
    page, errors = opened(browser, pages["many"].as_uri())
    heads = page.locator("[data-tasks] thead button")
    column = heads.all_inner_texts().index("gain")
    took = page.evaluate(
        """k => {const button = document.querySelectorAll('[data-tasks] thead button')[k], begin = performance.now();
        button.click(); document.body.offsetHeight; return performance.now() - begin}""",
        column,
    )
    print(f"\nsorting {MANY:,} tasks: {took:.0f} ms")
    cells = page.locator(f"[data-tasks] tbody tr > *:nth-child({column + 1})").all_inner_texts()
    gains = [float(cell) for cell in cells if cell]
    assert len(gains) > 10
    assert gains in (sorted(gains), sorted(gains, reverse=True))
    page.locator("[data-tasks] input[type=search]").fill("4321")
    page.wait_for_timeout(300)
    assert "4321" in page.locator("[data-tasks] tbody").inner_text()
    assert errors == []


@pytest.mark.parametrize("name", ["villages", "many"])
def test_a_report_prints_on_at_most_six_pages(browser: Browser, pages: dict[str, Path], name: str) -> None:
    page, _ = opened(browser, pages[name].as_uri())
    sheets = page.pdf(format="A4", prefer_css_page_size=True).count(b"/Type /Page\n")
    print(f"\n{name}: {sheets} pages")
    assert 1 <= sheets <= 6


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Write nothing of each request."""


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of the built site, served here."""
    if not SITE.exists():
        pytest.skip("The site is not built: `make docs`.")
    handler = functools.partial(Silent, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_the_site_fits_a_phone_and_its_console_is_silent(browser: Browser, address: str) -> None:
    wide, failed = [], []
    page, errors = opened(browser, "about:blank", viewport={"width": 390, "height": 800})
    page.on("response", lambda reply: failed.append(reply.url) if reply.status >= 400 else None)
    for path in sorted(SITE.rglob("*.html")):
        name = path.relative_to(SITE).as_posix()
        page.goto(f"{address}/{name}")
        if page.evaluate("document.documentElement.scrollWidth") > 390:
            wide.append(name)
    assert (wide, failed, errors) == ([], [], [])


def test_the_search_of_the_site_finds_a_page(browser: Browser, address: str) -> None:
    page, errors = opened(browser, f"{address}/index.html")
    page.keyboard.press("/")
    page.wait_for_timeout(500)
    page.keyboard.type("pessimism", delay=30)
    page.wait_for_timeout(2000)
    links = page.locator("a[href*='.html']").filter(has_text="essimism")
    assert links.count() > 0
    assert errors == []
