"""Learn the hierarchies that a log leaves possible under the crossed prior: relative sizes, grid, and mixtures.

The laws and the grid are those of :mod:`mixture`.
"""

from dataclasses import replace

import numpy as np

from hieropo._utils.arrays import Array
from hieropo.errors import warn
from hieropo.estimation.crossed.grid import (
    LEVEL_NODES,
    Groups,
    Window,
    compressed,
    determined,
    grid,
    group_sds,
    window_around,
)
from hieropo.estimation.crossed.kinds import (
    MixedKinds,
    TaskKindsSetting,
    mixed_kinds,
    warn_of_unused,
)
from hieropo.estimation.crossed.mixture import CrossedHierarchies, SpreadsSetting
from hieropo.estimation.crossed.no_effect import with_no_effect
from hieropo.estimation.crossed.noise_given_effects import (
    learn_noise_at_least_usual,
    learn_noise_given_effects,
)
from hieropo.estimation.crossed.shapes import (
    Pattern,
    Shapes,
    learn_shapes,
    least_noise,
    part_of_tasks,
    with_untold_noise,
)
from hieropo.estimation.crossed.short_logs import refuse_too_few, warn_of_few
from hieropo.estimation.crossed.spreads import SCALES, MixedSpreads, mixed_spreads
from hieropo.estimation.crossed.task_noise import ODDS, EqualBecause, NoiseOfLog, learn_task_noise
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.crossed.in_shards import check_in_shards
from hieropo.model.crossed.posterior import check_crossed
from hieropo.model.crossed.unit_designs import UnitDesigns
from hieropo.model.hierarchy import Grouping
from hieropo.model.in_shards import refuse_groups
from hieropo.model.metadata import Metadata
from hieropo.moments.in_shards import AnyMoments, MomentsInShards
from hieropo.moments.statistics import Moments

_SMALLEST = 1e-5  # weight of a node that is kept
_SHAPE_UNITS = 4_000  # units that relative sizes are learned from
_TOLD_UNITS = 8_192  # units of a part of the tasks that may tell the standard deviations of a similar log


def integrate_crossed(
    moments: AnyMoments,
    shapes: Shapes | None = None,
    *,
    levels: tuple[Grouping, ...] = (),
    metadata: Metadata | None = None,
    similar: CrossedHierarchies | None = None,
    spreads: SpreadsSetting = "one",
    task_kinds: TaskKindsSetting = "one",
    equal_noise: bool = False,
) -> CrossedHierarchies:
    """Integrate the crossed prior over its standard deviations.

    Parameters
    ----------
    moments : Moments or MomentsInShards
    shapes : Shapes, optional
        Relative variances of columns and of the noise of actions; default as the log says.
    levels : tuple of Grouping
        Groups of the tasks, and so on upwards.
    metadata : Metadata, optional
        Known of every task of the log.
    similar : CrossedHierarchies, optional
        Those of a log that shares most rows: relative sizes are searched from theirs, and the grid spans their standard
        deviations, and a little more. Where that is not enough, it is searched for as without them. What is learned is
        for choices and predictions in single tasks: where the log tells the standard deviations well enough for these,
        one hierarchy stands for all. Sums over tasks need all: what hardly moves a task moves all tasks alike.
    spreads : {"one", "auto"}
        "auto" looks for tasks that differ in the spread of their interactions; "one" does not.
    task_kinds : {"one", "auto"} or int
        "auto" looks for kinds of tasks; a number says how many there are.
    equal_noise : bool
        True takes the noise of all tasks as equal, as for moments in shards. Default: where the log asks for it, it
        differs between tasks (:mod:`task_noise`), and all else is learned from rows of these precisions. With constant
        rewards in many tasks noise is equal in the posterior, and P(no effect) is at least the mean of that of equal
        noise and of that of noise that no task has less than usual: neither tells how noisy a task of zeros is.

    Raises
    ------
    InputError, MismatchError, NumericalError
        As :class:`CrossedHierarchy` and :func:`condition_crossed`; fewer rows than the noise needs (p + 1); rewards
        that are all explained.
    """

    def learned(moments: AnyMoments, pattern: Pattern) -> CrossedHierarchies:
        return _integrated(moments, pattern, shapes, levels, metadata, similar)

    def mixed(moments: AnyMoments, one: CrossedHierarchies) -> CrossedHierarchies:
        return (
            one
            if similar is not None and one.determined
            else _with_mixtures(moments, one, spreads, task_kinds)
        )

    log_moments = moments
    moments, pattern = _with_metadata(moments, metadata)
    _check(moments, shapes, levels, metadata)
    if equal_noise or isinstance(log_moments, MomentsInShards):
        return mixed(moments, learned(moments, pattern))
    noise = learn_task_noise(log_moments)
    of_log, because = None if noise.law is None else noise.law.on(log_moments), noise.because
    if of_log is None:
        one = learned(moments, pattern)
        if not levels and metadata is None:
            of_log, because = _noise_given_effects(log_moments, one, because, similar)
        if of_log is None:
            return replace(mixed(moments, one), equal_noise_because=because)
    if of_log.at_least_usual:
        doubted = _of_doubted_noise(of_log, because, shapes, task_kinds, similar)
        return doubted if because != "constant" else _of_both(log_moments, mixed(moments, one), doubted)
    moments, pattern = _with_metadata(of_log.for_learning(), metadata)
    hierarchies = mixed(moments, learned(moments, pattern))
    return replace(hierarchies, task_noise=of_log.precisions(hierarchies.central()))


def _of_doubted_noise(
    of_log: NoiseOfLog,
    because: EqualBecause,
    shapes: Shapes | None,
    task_kinds: TaskKindsSetting,
    similar: CrossedHierarchies | None,
) -> CrossedHierarchies:
    """Learn from rows whose noise a rule doubts: sizes of columns, noise of actions and spreads of tasks are equal.

    Rewards are far from normal there, so that evidence for any of these is too certain.
    """
    moments = of_log.for_learning()
    equal = Shapes.equal(moments) if shapes is None else shapes
    one = _integrated(moments, Pattern.of(moments.unit_dim), equal, (), None, similar)
    hierarchies = _with_mixtures(moments, one, "one", task_kinds)
    noise = of_log.precisions(hierarchies.central())
    return replace(hierarchies, task_noise=noise, equal_noise_because=because)


def _of_both(moments: Moments, equal: CrossedHierarchies, doubted: CrossedHierarchies) -> CrossedHierarchies:
    """Return the hierarchies of equal noise, with a P(no effect) of at least the mean of both."""
    least = (equal.no_effect + doubted.no_effect) / 2
    return replace(with_no_effect(moments, equal, least), equal_noise_because=doubted.equal_noise_because)


def _check(
    moments: AnyMoments, shapes: Shapes | None, levels: tuple[Grouping, ...], metadata: Metadata | None
) -> None:
    """Raise for moments of which no hierarchy can be learned, and warn of those of which hardly one can."""
    p = moments.unit_dim
    zero, ratio = np.zeros((p, p)), np.ones(moments.n_actions) if shapes is None else shapes.noise_ratio
    flat = CrossedHierarchy(zero, zero, zero, ratio)
    if isinstance(moments, MomentsInShards):
        refuse_groups(levels, metadata)
        check_in_shards(moments, flat)
    else:
        check_crossed(moments, flat)
    refuse_too_few(moments)
    warn_of_few(moments)


def _noise_given_effects(
    moments: Moments, one: CrossedHierarchies, because: EqualBecause, similar: CrossedHierarchies | None
) -> tuple[NoiseOfLog | None, EqualBecause]:
    """Return the noise of tasks that the likelihood of all rows tells, and the rule that doubts it.

    ``because`` is the rule by which residuals do not tell it. That of extreme rewards does not count where all rows
    tell it. Without contexts a rule keeps noise equal: few rows that repeat an action hardly tell it from interactions.
    """
    contexts = moments.unit_dim > 1
    if because == "constant" and not contexts:
        return None, because
    given = learn_noise_given_effects(moments, one.shapes, *_sds(one))
    doubted: EqualBecause = given.because or ("" if because == "rows" else because)
    found = given.noise
    if doubted and contexts and given.log_odds > ODDS:
        plain = _integrated(moments, Pattern.of(moments.unit_dim), Shapes.equal(moments), (), None, similar)
        found = learn_noise_at_least_usual(moments, *_sds(plain))
    return None if found is None else found.on(moments), doubted or because


def _integrated(
    moments: AnyMoments,
    pattern: Pattern,
    shapes: Shapes | None,
    levels: tuple[Grouping, ...],
    metadata: Metadata | None,
    similar: CrossedHierarchies | None,
) -> CrossedHierarchies:
    """Learn relative sizes, and integrate the common standard deviations, for rows of known precisions."""
    p = moments.unit_dim
    if shapes is None:
        start = None if similar is None else similar.shapes.mode
        part = part_of_tasks(moments, max(_SHAPE_UNITS // p, 500))
        some_tasks = part.in_memory() if isinstance(part, MomentsInShards) else part
        shapes = learn_shapes(some_tasks, pattern, start)
        shapes = with_untold_noise(shapes, moments)
    groups = group_sds(moments, shapes, levels)
    if similar is not None:
        some = part_of_tasks(moments, _TOLD_UNITS)
        told = _hierarchies(moments, shapes, groups, metadata, similar, some)
        if some is moments or told.determined:
            return told
    return _hierarchies(moments, shapes, groups, metadata, similar, moments)


def _sds(one: CrossedHierarchies) -> tuple[tuple[float, float, float], float]:
    """Mean a, l and m of some hierarchies in units of the noise, and its mean variance."""
    noise = float(one.weights @ one.noise_var)
    sizes = one.weights * np.sqrt(one.noise_var / noise)
    a, level, m = (float(sizes @ sd) for sd in (one.action_sd, one.level_sd, one.interaction_sd))
    return (a, level, m), noise


def _with_mixtures(
    moments: AnyMoments, one: CrossedHierarchies, spreads: SpreadsSetting, task_kinds: TaskKindsSetting
) -> CrossedHierarchies:
    """Average hierarchies with those of spreads or kinds: kinds need more evidence, as few unlike tasks look so."""
    if one.levels or one.metadata is not None or isinstance(moments, MomentsInShards):
        warn_of_unused(task_kinds)
        return one
    of_log = moments, one.shapes, *_sds(one)
    number = None if isinstance(task_kinds, str) else task_kinds
    kinds = None if task_kinds == "one" else mixed_kinds(*of_log, number)
    if kinds is None:
        warn_of_unused(task_kinds)
    else:
        rival = mixed_spreads(*of_log, screened=False) if task_kinds == "auto" else None
        if rival is None or kinds.log_odds >= rival.log_odds:
            return _averaged_with_kinds(one, kinds, asked=task_kinds != "auto")
    mixed = mixed_spreads(*of_log) if spreads == "auto" else None
    return one if mixed is None else _averaged(one, mixed)


def _averaged_with_kinds(one: CrossedHierarchies, kinds: MixedKinds, *, asked: bool) -> CrossedHierarchies:
    """Put hierarchies of one kind and of several side by side; where kinds were asked for, several alone."""
    share = 0.0 if asked else float(np.exp(-np.logaddexp(0.0, kinds.log_odds)))
    kept = len(one) if share > _SMALLEST else 0
    share, n = share if kept else 0.0, kinds.weights.size

    def both(first: Array, second: Array) -> Array:
        return np.concatenate([first[:kept], second])

    return replace(
        one,
        weights=both(share * one.weights, (1 - share) * kinds.weights),
        conditioned=both(share * one.conditioned, (1 - share) * kinds.few),
        action_sd=both(one.action_sd, kinds.action_sd),
        level_sd=both(one.level_sd, kinds.level_sd),
        interaction_sd=both(one.interaction_sd, kinds.interaction_sd),
        noise_var=both(one.noise_var, np.full(n, kinds.noise_var)),
        group_level_sd=np.zeros((kept + n, 0)),
        group_interaction_sd=np.zeros((kept + n, 0)),
        kinds=kinds.after(kept),
    )


def _averaged(one: CrossedHierarchies, mixed: MixedSpreads) -> CrossedHierarchies:
    """Put the hierarchies of both side by side, with weights by their evidence; those of no weight are left out."""
    share = float(np.exp(-np.logaddexp(0.0, mixed.log_odds)))
    kept = slice(0, len(one) if share > _SMALLEST else 0)
    share, n = share if kept.stop else 0.0, mixed.weights.size

    def both(first: Array, second: Array) -> Array:
        return np.concatenate([first[kept], second])

    single = np.zeros((len(one), SCALES))
    single[:, 1] = 1.0
    return replace(
        one,
        weights=both(share * one.weights, (1 - share) * mixed.weights),
        conditioned=both(share * one.conditioned, (1 - share) * mixed.few),
        action_sd=both(one.action_sd, mixed.action_sd),
        level_sd=both(one.level_sd, np.full(n, mixed.level_sd)),
        interaction_sd=both(one.interaction_sd, mixed.interaction_sd),
        noise_var=both(one.noise_var, np.full(n, mixed.noise_var)),
        group_level_sd=np.zeros((kept.stop + n, 0)),
        group_interaction_sd=np.zeros((kept.stop + n, 0)),
        spread_scales=both(single, mixed.scales),
        spread_weights=both(single, mixed.spread_weights),
        spread_odds=mixed.log_odds,
    )


def _hierarchies(
    moments: AnyMoments,
    shapes: Shapes,
    groups: Groups,
    metadata: Metadata | None,
    similar: CrossedHierarchies | None,
    some: AnyMoments,
) -> CrossedHierarchies:
    """Integrate the common standard deviations over the rows of some of the tasks."""
    dof = some.n_rows - some.unit_dim
    windows = None if similar is None else _windows_around(similar)
    axes, weights, squares = grid(some, shapes, groups, windows)
    least = least_noise(some)
    if squares.ravel()[weights.argmax()] < 2 * dof * least:
        warn(
            f"Rewards are without noise given the features; their noise is kept at a variance of {least:.3g}, far "
            "below that of the rewards."
        )
    kept = weights > _SMALLEST * weights.max()
    a, level, m, group_m = (sds[kept] for sds in np.meshgrid(*(axis.nodes for axis in axes), indexing="ij"))
    level_sd = level * np.sqrt(1 + m**2)
    share = weights[kept] / weights[kept].sum()
    s2 = squares[kept] / max(dof - 2, 1.0)
    of_groups = np.tile(groups.level_sds, (share.size, 1)), np.tile(groups.interaction_sds, (share.size, 1))
    if groups.levels:
        of_groups[1][:, 0] = group_m
    sds = a, level, m, group_m
    once = similar is not None and determined(moments, shapes, share, sds)
    few = np.zeros(share.size) if once else compressed(share, sds)
    return CrossedHierarchies(share, a, level_sd, m, s2, few, shapes, *of_groups, groups.levels, metadata)


def _windows_around(similar: CrossedHierarchies) -> tuple[Window, Window, Window]:
    """Return windows of a, l and m for a log like that of some hierarchies."""
    level_sd = similar.level_sd / np.sqrt(1 + similar.interaction_sd**2)
    return (
        window_around(similar.action_sd),
        window_around(level_sd, LEVEL_NODES),
        window_around(similar.interaction_sd),
    )


def _with_metadata(moments: AnyMoments, metadata: Metadata | None) -> tuple[AnyMoments, Pattern]:
    """Moments of all columns of an action, with those of metadata, and the columns that tasks vary in."""
    if metadata is None or isinstance(moments, MomentsInShards):
        return moments, Pattern.of(moments.unit_dim)
    described = UnitDesigns.of(metadata, moments).described(moments)
    common = metadata.values.ndim == 3
    return described, Pattern.of(described.unit_dim, moments.unit_dim, common=common)
