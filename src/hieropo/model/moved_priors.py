"""A given prior of coefficients, moved from one origin of the feature map to another.

Rewards do not change: theta' phi = theta~' phi~ with phi~ = T phi, so theta~ = B theta with B = T^-T. From far away the
prior of an intercept is a difference of large numbers, of which rounded products would leave little, so it is taken in
exact fractions, and rounded once.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array
from hieropo.features.maps import FeatureMap
from hieropo.model.crossed.hierarchy import CrossedHierarchy, CrossedLevel, feature_dim
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Hierarchy, Level
from hieropo.model.metadata import Metadata
from hieropo.moments.recentring import Exact, change_of


def recentred_hierarchy(hierarchy: Hierarchy, first: FeatureMap, second: FeatureMap) -> Hierarchy:
    """Return the hierarchy of the coefficients of an equivalent feature map.

    Raises
    ------
    MismatchError
        The maps differ by more than their origin.
    """
    back = change_of(second, first)
    levels = tuple(
        Level(_transformed_covariance(level.cov, back), level.parent, level.name)
        for level in hierarchy.levels
    )
    known, crossed = hierarchy.metadata, True
    if known is not None and known.values.ndim == 3:
        values, centre = (_coefficients(each, back, axis=-2) for each in (known.values, known.centre))
        known, crossed = Metadata(known.tasks, values, known.names, centre), False
    hyper = (
        None
        if hierarchy.hyper is None
        else recentred_gaussian(hierarchy.hyper, first, second, crossed=crossed)
    )
    return replace(
        hierarchy,
        hyper=hyper,
        task_cov=_transformed_covariance(hierarchy.task_cov, back),
        levels=levels,
        metadata=known,
    )


def moved_crossed(hierarchy: CrossedHierarchy, first: FeatureMap, second: FeatureMap) -> CrossedHierarchy:
    """Return the same crossed prior of the coefficients of another map; errors as :func:`recentred_hierarchy`.

    Covariances that do not fit the map are left as they are, to be refused where they are used.
    """
    known = hierarchy.metadata
    K = hierarchy.n_actions
    p = feature_dim(known, hierarchy.unit_dim, K)
    if p * K != first.dim:
        return hierarchy
    back = change_of(second, first)

    def sent(values: Exact) -> Exact:
        rest = values[p:]
        if known is not None and known.values.ndim == 2:
            rest = _transformed(rest.reshape(p, -1), back).reshape(rest.shape)
        return np.concatenate([_transformed(values[:p], back), rest])

    def recentred(cov: Array) -> Array:
        return np.asarray(sent(sent(_exact(cov)).T).T.astype(np.float64))

    if known is not None and known.values.ndim == 3:
        values, centre = (_coefficients(each, back, axis=-2) for each in (known.values, known.centre))
        known = Metadata(known.tasks, values, known.names, centre)
    levels = tuple(
        CrossedLevel(recentred(one.level_cov), recentred(one.interaction_cov), one.parent, one.name)
        for one in hierarchy.levels
    )
    kinds = hierarchy.kinds
    if kinds is not None:
        centres = _coefficients(kinds.centres, back, axis=-1)
        kinds = replace(kinds, effect_cov=recentred(kinds.effect_cov), centres=centres)
    return replace(
        hierarchy, action_cov=recentred(hierarchy.action_cov), level_cov=recentred(hierarchy.level_cov),
        interaction_cov=recentred(hierarchy.interaction_cov), levels=levels, metadata=known, kinds=kinds,
    )  # fmt: skip


def recentred_gaussian(
    law: Gaussian, first: FeatureMap, second: FeatureMap, *, crossed: bool = True
) -> Gaussian:
    """Return the distribution of the coefficients of an equivalent map, followed by those of metadata.

    With ``crossed`` there is a coefficient of metadata for each feature, which is moved like that of the feature.
    """
    back, d = change_of(second, first), first.dim

    def transformed(values: Exact) -> Exact:
        rest = values[d:]
        if crossed and rest.size:
            rest = _transformed(rest.reshape(d, -1), back).reshape(rest.shape)
        return np.concatenate([_transformed(values[:d], back), rest])

    mean, cov = transformed(_exact(law.mean)[:, None])[:, 0], transformed(transformed(_exact(law.cov)).T).T
    return Gaussian(mean.astype(np.float64), cov.astype(np.float64))


def recentred_coefficients(theta: ArrayLike, first: FeatureMap, second: FeatureMap) -> Array:
    """Return coefficients (d,) of one map as those of an equivalent map."""
    return _coefficients(np.asarray(theta, dtype=np.float64), change_of(second, first))


def recentred_covariance(cov: ArrayLike, first: FeatureMap, second: FeatureMap) -> Array:
    """Return a covariance (d, d) of coefficients of one map as that of an equivalent map."""
    return _transformed_covariance(np.asarray(cov, dtype=np.float64), change_of(second, first))


def _coefficients(theta: Array, back: Exact, axis: int = 0) -> Array:
    recentred = _transformed(np.moveaxis(_exact(theta), axis, 0), back)
    return np.moveaxis(recentred, 0, axis).astype(np.float64)


def _transformed_covariance(cov: Array, back: Exact) -> Array:
    moved: Array = _transformed(_transformed(_exact(cov), back).T, back).T.astype(np.float64)
    return moved


def _exact(values: Array) -> Exact:
    exact: Exact = np.frompyfunc(Fraction, 1, 1)(values.astype(object))
    return exact


def _transformed(values: Exact, back: Exact) -> Exact:
    """Return B values (d, ...), with B = I (x) (I + back)' of blocks as large as ``back`` (p, p)."""
    p = len(back)
    before: Any = values.reshape(len(values) // p, p, *values.shape[1:])
    moved = before.copy()
    for j, i in np.argwhere(back):
        moved[:, i] = moved[:, i] + back[j, i] * before[:, j]
    exact: Exact = moved.reshape(values.shape)
    return exact
