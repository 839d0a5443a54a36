"""Settings that every test shares.

Drawn examples are the same in every run (``HYPOTHESIS_PROFILE=search`` draws new ones, and more; ``quick``, of `make
quick`, ten for each test that does not say how many). No example has a deadline: the first call of a compiled kernel
takes seconds. Their cache stays where the package puts it, so that a second run compiles nothing.
"""

import os

from hypothesis import HealthCheck, settings

fixed = settings(derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", fixed)
settings.register_profile("quick", fixed, max_examples=10)
settings.register_profile("search", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
