"""Settings that every test shares.

Drawn examples are the same in every run (``HYPOTHESIS_PROFILE=search`` draws new ones, and more; ``quick``, of `make
quick`, ten for each test that does not say how many). No example has a deadline: the first call of a compiled kernel
takes seconds. Their cache stays where the package puts it, so that a second run compiles nothing.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

collect_ignore = ["schemathesis_hooks.py"]  # of a tool that the tests do not install

fixed = settings(derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", fixed)
settings.register_profile("quick", fixed, max_examples=10)
settings.register_profile("search", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each worker begin with modules that have slow tests, so that none idles while another ends a long one.

    ``--dist worksteal`` gives each worker a run of the list, and takes from the end of the longest one for who is done.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    parts = [[item for item in items if (item.path in slow) == first] for first in (True, False)]
    items[:] = [
        item
        for w in range(workers)
        for part in parts
        for item in part[len(part) * w // workers : len(part) * (w + 1) // workers]
    ]
