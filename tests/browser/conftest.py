"""Tests in a real browser, run by ``make browser`` alone: they need chromium and the extra ``browser``."""

import os

if not os.environ.get("HIEROPO_BROWSER"):
    collect_ignore_glob = ["test_*.py"]
