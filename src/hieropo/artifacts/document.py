"""Values of the core as entries of the document, and back."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hieropo.core.gaussian import Gaussian
from hieropo.core.hierarchy import Hierarchy, Level


def from_gaussian(law: Gaussian | None) -> dict[str, Any] | None:
    """Write a Gaussian; None stays None."""
    return None if law is None else {"mean": law.mean.tolist(), "cov": law.cov.tolist()}


def to_gaussian(entry: dict[str, Any] | None) -> Gaussian | None:
    """Read a Gaussian, to the last bit."""
    return None if entry is None else Gaussian.trusted(_array(entry["mean"]), _array(entry["cov"]))


def from_hierarchy(hierarchy: Hierarchy | None) -> dict[str, Any] | None:
    """Write a hierarchy; who hangs on whom lies in tables of its own."""
    if hierarchy is None:
        return None
    return {
        "hyper": from_gaussian(hierarchy.hyper),
        "task_cov": hierarchy.task_cov.tolist(),
        "noise_var": float(hierarchy.noise_var),
        "levels": [{"name": level.name, "cov": level.cov.tolist()} for level in hierarchy.levels],
    }


def to_hierarchy(entry: dict[str, Any], parents: Callable[[int], dict[Any, Any]]) -> Hierarchy:
    """Read a hierarchy; ``parents`` gives the parent of every child of a level."""
    levels = tuple(
        Level(_array(level["cov"]), parents(number), name=level["name"])
        for number, level in enumerate(entry["levels"])
    )
    return Hierarchy(
        hyper=to_gaussian(entry["hyper"]),
        task_cov=_array(entry["task_cov"]),
        noise_var=entry["noise_var"],
        levels=levels,
    )


def _array(values: list[Any]) -> Any:
    return np.array(values, dtype=np.float64)
