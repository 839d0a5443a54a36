"""One fault of a model after the other: the test of it, how large it is, and what to say of it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from hieropo._utils.arrays import Array
from hieropo._utils.text import agreeing
from hieropo._utils.ties import first_largest, first_smallest, ordered
from hieropo.evaluation.diagnostics.curvature import Bend
from hieropo.evaluation.diagnostics.residual_tests import (
    NoiseTest,
    Residuals,
    heavy_tails,
    noise_along,
    wrong_scale,
)
from hieropo.evaluation.diagnostics.task_distances import TaskDistances
from hieropo.rows.ids import plain
from hieropo.rows.keys import Keys

_VARIATION, _RATIO = 0.1, 1.25  # of noise sds: between groups, and of one group to all
_ALONG = 0.1  # change of the noise sd with one sd of a number
_EXCESS = 1.0  # kurtosis
_BEND, _OFF = 0.05, 0.1  # noise sds
_SCALE = 1.1  # of residuals
_LIKE = 1.4  # of squared distances
_MANY = 0.02  # share of tasks
_NAMED = 3  # tasks or columns in a sentence
_ENOUGH = 30  # rows that tell an sd
_HALF = 0.5  # of all squares
ALONG = "noise along numbers"
_WEIGH = (
    "Intervals are too wide where it is small, and too narrow where it is large. Give rows a precision in proportion "
    "to 1 / noise variance (precision=, --precision), and fit again."
)


class Misfit(NamedTuple):
    """A test: its kind, p, the size of what was found, and what to say of that, or None where it is too little."""

    kind: str
    p: float
    effect: float
    said: str | None


class Outlier(NamedTuple):
    """A row whose reward is far from what all others say of it: its number, task and standardised residual."""

    row: int
    task: Any
    residual: float


def off(ratio: float) -> float:
    """Return how many times a ratio is away from 1, up or down."""
    return max(ratio, 1.0 / max(ratio, 1e-9))


def of_values(values: Sequence[float], partitions: Sequence[tuple[str, Residuals]], sd: float) -> Misfit:
    """Few distinct rewards, by groups of each kind; nothing is said where they scatter alike in all groups of each."""
    if len(values) == 1:
        said = f"All rewards are {values[0]:g}: there is nothing to learn from them."
        return Misfit("few values", 0.0, 1.0, said)
    shown = (
        f"two values only, {values[0]:g} and {values[1]:g}"
        if len(values) == 2
        else f"{len(values)} values only"
    )
    ends = {}
    for kind, groups in partitions:
        sds = groups.sd[groups.rows >= _ENOUGH] / max(sd, 1e-300)
        if sds.size > 1:
            ends[kind] = float(sds.min()), float(sds.max())
    differ = {kind for kind, (low, high) in ends.items() if high > (1.0 + _VARIATION) * low}
    between = ""
    if "action" in differ:
        low, high = ends["action"]
        between = f" (by action {low:.2g} to {high:.2g} times that of all rows)"
    said = (
        f"Rewards take {shown}. How far they scatter then depends on their mean{between}, where the model has one noise"
        " for all: means are estimated sensibly, their intervals are too wide where rewards scatter little and too "
        "narrow where they scatter much, and an interval for a single reward means nothing."
    )
    return Misfit("few values", 0.0, float(len(values)), None if ends and not differ else said)


def of_scale(every: Residuals, inflation: float, learned_rows: float) -> Misfit:
    """Rewards that vary more or less than the model says."""
    sd, p = wrong_scale(every, inflation, np.inf if every.learned else max(learned_rows, 1.0))
    where = "" if every.learned else ", and than those that it was learned from"
    said = (
        f"Rewards vary {'more' if sd > 1 else 'less'} than the model says{where}: residuals are {sd:.2g} times as "
        "large as expected. Is noise_var right, and are all rewards in the same unit?"
    )
    return Misfit("scale", p, sd, said if off(sd) >= _SCALE else None)


def of_noise(
    kind: str, groups: Residuals, found: NoiseTest, names: Sequence[Any] | NDArray[Any], level: float
) -> Misfit:
    """Noise that differs between the groups that are called ``names``."""
    ratio = groups.sd / max(float(groups.all.sd[0]), 1e-300)
    away = np.maximum(ratio, 1.0 / np.maximum(ratio, 1e-9))
    single = found.each * len(names)
    p = min(2.0 * min(found.p, float(single.min())), 1.0)
    clear = np.flatnonzero((single <= level) & (away >= _RATIO))
    clear = clear[ordered(single[clear])]
    if clear.size:
        shown = ", ".join(
            f"{plain(names[g])!r} (sd {ratio[g]:.2g} times that of all rows)" for g in clear[:_NAMED].tolist()
        )
        more = f" and {clear.size - _NAMED:,} more" if clear.size > _NAMED else ""
        size = f"most clearly in {shown}{more}"
    else:
        size = f"its sd varies by {found.variation:.0%} of its mean"
    matters = min(found.variation, _variation(groups)) >= _VARIATION or clear.size
    said = f"Noise differs between {kind}s: {size}. {_WEIGH}"
    return Misfit(f"noise by {kind}", p, found.variation, said if matters else None)


def _variation(groups: Residuals) -> float:
    """Return the sd of the sds of groups by their mean; small where groups differ in the shape of noise alone."""
    rows = groups.of("rows")
    mean = float(rows @ groups.sd) / max(float(rows.sum()), 1.0)
    return float(np.sqrt(rows @ (groups.sd - mean) ** 2 / max(float(rows.sum()), 1.0))) / max(mean, 1e-300)


def of_noise_along(gram: Array, inflation: float, columns: Sequence[str]) -> Misfit:
    """Noise that changes with a context column or with the prediction."""
    p, effect = noise_along(gram, inflation)
    at = int(ordered(p, -np.abs(effect))[0])
    name = f"column {columns[at]!r}" if at < len(columns) else "the predicted reward"
    said = (
        f"Noise changes with {name}: its sd by {effect[at]:+.0%} for each standard deviation of it. {_WEIGH}"
    )
    matters = abs(effect[at]) >= _ALONG
    return Misfit(ALONG, min(p.size * float(p[at]), 1.0), float(effect[at]), said if matters else None)


def outweighing(every: Residuals, outliers: Sequence[Outlier]) -> float:
    """Return the share of one row in the squares of all residuals, where it is more than a half; else 0."""
    square = float(every.of("square").sum())
    share = outliers[0].residual ** 2 / square if outliers and square > 0 else 0.0
    return share if share > _HALF else 0.0


def of_tails(partitions: Sequence[Residuals], along: float, outliers: Sequence[Outlier]) -> Misfit | None:
    """Heavy tails within the groups of every partition; None where rows are too few.

    ``along`` is how much the noise sd changes with one sd of a number, which makes tails heavy by itself: of residuals
    with log sd ~ N(0, b^2) the excess kurtosis is 3 (exp(4 b^2) - 1).
    """
    found = heavy_tails(partitions) or heavy_tails([partitions[0].all])
    if found is None:
        return None
    if share := outweighing(partitions[0].all, outliers):
        row, task, residual = outliers[0]
        said = (
            f"The reward of row {row:,}, task {plain(task)!r}, lies {residual:+.3g} noise sds from its prediction by "
            f"all other rows, and makes up {share:.0%} of the sum of squared residuals. It widens all intervals, and "
            "hides other faults. Is it an error, or does it stand for a missing value? Correct it or leave that row "
            "out, and fit again."
        )
        return Misfit("heavy tails", found.p, found.excess, said)
    worst = ""
    if outliers:
        row, task, residual = outliers[0]
        worst = f"; the largest residual, {residual:+.3g} sds, is that of row {row:,}, task {plain(task)!r}"
    said = (
        f"Rewards have heavy tails (excess kurtosis {found.excess:.2g}{worst}). A few rows weigh much in all that is "
        "said: see whether they are errors, clip rewards, or take their logarithm."
    )
    own = found.excess - 3.0 * np.expm1(4.0 * min(along * along, 4.0))
    return Misfit("heavy tails", found.p, found.excess, said if own >= _EXCESS else None)


def of_level(bends: Sequence[Bend], actions: Sequence[Any] | None) -> Misfit | None:
    """Rewards that are above or below what was learned, of rows that were not learned from."""
    some = [each for each in bends if each.column < 0]
    if not some:
        return None
    worst, matters = _worst(some)
    said = (
        f"Rewards{_of(worst, actions)} are {'above' if worst.score > 0 else 'below'} what was learned, by "
        f"{worst.effect:.2g} noise sds on average. Has the world changed, or the unit of the reward?"
    )
    return Misfit("level", min(len(some) * worst.p, 1.0), worst.effect, said if matters else None)


def of_curvature(
    bends: Sequence[Bend], columns: Sequence[str], actions: Sequence[Any] | None, level: float
) -> Misfit | None:
    """A mean that bends along a column."""
    some = [each for each in bends if each.column >= 0]
    if not some:
        return None
    worst, matters = _worst(some)
    others = {columns[e.column] for e in some if e.effect >= _BEND and e.p * len(some) <= level}
    others.discard(columns[worst.column])
    more = f" So it does along {', '.join(map(repr, sorted(others)[:_NAMED]))}." if others else ""
    said = (
        f"The mean reward{_of(worst, actions)} bends {'up' if worst.score > 0 else 'down'} along column "
        f"{columns[worst.column]!r}, along which the features are straight, by {worst.effect:.2g} noise sds in the "
        f"root mean square.{more} Add the square of the column, or transform it."
    )
    return Misfit("curvature", min(len(some) * worst.p, 1.0), worst.effect, said if matters else None)


def _worst(some: Sequence[Bend]) -> tuple[Bend, bool]:
    large = [each for each in some if each.effect >= _BEND]
    told = large or some
    at = ordered([each.p for each in told], [-each.effect for each in told])[0]
    return told[int(at)], bool(large)


def _of(bend: Bend, actions: Sequence[Any] | None) -> str:
    return "" if bend.action < 0 or actions is None else f" of action {actions[bend.action]!r}"


def of_actions(groups: Residuals, actions: Sequence[Any]) -> Misfit:
    """An action whose rewards are off, in rows that were learned from: the features do not tell it from others."""
    t = np.abs(groups.of("total")) / np.sqrt(np.maximum(groups.of("rows"), 1.0))
    a = int(first_largest(t))
    mean = float(groups.mean[a])
    said = (
        f"Rewards of action {actions[a]!r} are off by {mean:+.2g} noise sds on average: the features do not tell it "
        "from the others. Give it a feature of its own."
    )
    p = min(2.0 * t.size * float(ndtr(-t[a])), 1.0)
    return Misfit("level by action", p, mean, said if abs(mean) >= _OFF else None)


def of_tasks(found: TaskDistances, keys: Keys, level: float) -> list[Misfit]:
    """A task unlike the others; tasks that are more or less alike than Sigma_0 says."""
    p, count = found.p, int((found.free > 0).sum())
    s = int(first_smallest(p))
    beyond = int((p * count <= level).sum())
    name = plain(keys.values[s])
    far = f"its squared distance to what they say is {found.square[s]:.3g}, where about {found.free[s]} is expected"
    if beyond > max(_NAMED, _MANY * count):
        unlike = (
            f"{beyond:,} of {count:,} tasks are too far from what the others say of them, {name!r} the most ({far})"
            ": tasks differ in ways that task_cov does not have. Learn one of another shape, or tell what is known of "
            "tasks, by levels or metadata."
        )
    else:
        others = beyond - 1
        more = f", and {others:,} more {agreeing(others, 'is', 'are')} too far off" if others > 0 else ""
        unlike = (
            f"Task {name!r} is unlike the others: {far}{more}. Is it one of the family? It makes all tasks look less "
            "alike; leave it out, or put it in a group of its own."
        )
    ratio, ratio_p = found.ratio(p * count > level)  # those far off are one fault, not two
    population_summary = (
        f"Tasks differ {'more' if ratio > 1 else 'less'} than task_cov says: squared distances are {ratio:.2g} times "
        "those expected. Learn task_cov from the log."
    )
    effect = float(found.square[s] / max(found.free[s], 1))
    return [
        Misfit("unlike task", min(count * float(p[s]), 1.0), effect, unlike),
        Misfit(
            "likeness", ratio_p, ratio, population_summary if off(ratio) >= _LIKE and not beyond else None
        ),
    ]
