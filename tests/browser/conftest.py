"""Tests in a real browser, run by ``make browser`` alone: they need chromium and the extra ``browser``."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

if not os.environ.get("HIEROPO_BROWSER"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    assert chromium is not None, "No chromium is installed; `make browser` says how."
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()
