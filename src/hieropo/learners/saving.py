"""The origin of a saved policy: learner, settings and columns, as JSON can hold them."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

from hieropo.model.gaussian import Gaussian
from hieropo.rows.batches import Roles


def origin(
    learner: str,
    settings: Mapping[str, Any],
    roles: Roles,
    rows: float,
    *,
    noise_told: bool,
    actions_given: bool,
) -> dict[str, Any]:
    """Return the provenance of what a learner saves, from which `load_learner` makes it again.

    Features and a known hierarchy are saved apart, so that of these it holds nothing, and whether there was one.
    ``noise_told`` is that of :class:`Learned`; ``actions_given`` says that the feature map was given, and lists them.
    """
    return {
        "learner": learner,
        "settings": {name: _plain(name, value) for name, value in settings.items() if name != "features"},
        "rows": rows,
        "columns": roles.to_dict(),
        **({} if noise_told else {"noise_told": False}),
        **({"actions_given": True} if actions_given else {}),
    }


def versions() -> dict[str, str]:
    """Return the versions of hieropo and of the libraries that its numbers come from."""
    from hieropo import __version__

    return {"hieropo": __version__, "numpy": version("numpy"), "scipy": version("scipy")}


def _plain(name: str, value: Any) -> Any:
    if name == "known":
        return value is not None
    if isinstance(value, Gaussian):
        return {"mean": value.mean.tolist(), "cov": value.cov.tolist()}
    return value if value is None or isinstance(value, str) else np.asarray(value).tolist()
