"""The provenance of a saved policy: learner, settings and columns, as JSON can hold them."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

from hieropo._utils.arrays import Array
from hieropo.estimation.crossed.drift import Drift
from hieropo.model.gaussian import Gaussian
from hieropo.rows.batches import Roles

_ELSEWHERE = ("features", "roles")  # settings that are stored as the feature map and as columns


def learner_provenance(  # noqa: PLR0913 - one parameter for each entry
    learner: str,
    settings: Mapping[str, Any],
    roles: Roles,
    rows: float,
    *,
    noise_identified: bool,
    actions_given: bool,
    cluster_correlation: Array | None = None,
    sites: Mapping[str, Any] | None = None,
    drift: Drift | None = None,
    likelihood_note: str = "",
    settings_note: str = "",
) -> dict[str, Any]:
    """Return the provenance of a policy that a learner saves; `load_learner` makes the learner again from it.

    The feature map and a known hierarchy have files of their own: the map is left out here, and ``known`` is stored as
    true or false. ``noise_identified`` is that of :class:`Learned`; ``actions_given`` is True where the
    feature map, and with it the list of actions, was given; ``cluster_correlation`` are those within clusters;
    ``sites`` are the parameters of a likelihood that is not Gaussian, and ``drift`` is how fast coefficients move;
    ``likelihood_note`` says why rewards with heavy tails are taken as Gaussian, and ``settings_note`` which settings
    the fit did not apply.
    """
    return {
        "learner": learner,
        "settings": {
            name: _as_json(name, value) for name, value in settings.items() if name not in _ELSEWHERE
        },
        "rows": rows,
        "columns": roles.to_dict(),
        **({} if noise_identified else {"noise_identified": False}),
        **({"actions_given": True} if actions_given else {}),
        **({} if cluster_correlation is None else {"cluster_correlation": cluster_correlation.tolist()}),
        **({} if sites is None else {"sites": dict(sites)}),
        **({} if drift is None else {"drift": drift.to_dict()}),
        **({"likelihood_note": likelihood_note} if likelihood_note else {}),
        **({"settings_note": settings_note} if settings_note else {}),
    }


def noise_identified(provenance: Mapping[str, Any]) -> bool:
    """Return True if the saved policy's log identified the noise; files of earlier commits name it ``noise_told``."""
    return bool(provenance.get("noise_identified", provenance.get("noise_told", True)))


def versions() -> dict[str, str]:
    """Return the versions of hieropo and of the libraries that its numbers come from."""
    from hieropo import __version__

    return {"hieropo": __version__, "numpy": version("numpy"), "scipy": version("scipy")}


def _as_json(name: str, value: Any) -> Any:
    if name == "known":
        return value is not None
    if isinstance(value, Gaussian):
        return {"mean": value.mean.tolist(), "cov": value.cov.tolist()}
    return value if value is None or isinstance(value, str) else np.asarray(value).tolist()
