"""Pictures of results with matplotlib, an extra (``pip install 'hieropo[plots]'``).

Each function draws numbers of a result on an Axes, which it returns; none fits or reads a log. With ``ax=`` it draws on
a given Axes, else on a new one.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from hieropo._utils.arrays import Array
from hieropo._utils.packed import unpack
from hieropo.errors import InputError
from hieropo.evaluation.reporting import calibration_chart, effect_chart, gain_chart, task_chart
from hieropo.report.document import Intervals
from hieropo.rows.ids import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from hieropo.evaluation.evaluation import Evaluation
    from hieropo.learners.fitted import Fitted

__all__ = ["calibration", "caterpillar", "effect", "gains", "overlap", "pooling"]

_PLAIN, _MARKED, _GREY = "#0072b2", "#d55e00", "#6b6b6b"
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c564b")
_DASHES = ("-", "--", ":", "-.")
_BINS, _CURVES, _MOST = 20, 8, 40
_SEEN = 1e-8  # least eigenvalue of a task's scaled information at which its own estimate is drawn


def caterpillar(evaluation: "Evaluation", *, ax: "Axes | None" = None) -> "Axes":
    """Draw the gain of each task over the incumbent with its interval by the model, sorted.

    Diamonds are tasks that a gate holds back. Of more than 60 tasks, those most likely harmed and most improved.
    """
    return _intervals(task_chart(evaluation), _axes(ax))


def gains(evaluation: "Evaluation", *, ax: "Axes | None" = None) -> "Axes":
    """Draw the gain of the policy over the incumbent, by weights and by the model, beside those of simpler policies."""
    return _intervals(gain_chart(evaluation), _axes(ax))


def overlap(evaluation: "Evaluation", *, ax: "Axes | None" = None) -> "Axes":
    """Draw the effective sample size of each task, as a share of its rows.

    A share near 0: the log hardly has rows in which the incumbent did as the policy would.

    Raises
    ------
    InputError
        The evaluation has no importance-weighted estimates of tasks.
    """
    if evaluation.task_estimates is None:
        raise InputError(
            "This evaluation has no importance-weighted estimates of tasks, so that effective sample sizes are not "
            f"known. {evaluation.refused or 'Evaluate on a log with propensities.'}"
        )
    share = evaluation.task_estimates[:, 3] / evaluation.counts
    ax = _axes(ax)
    ax.hist(
        share[np.isfinite(share)],
        bins=np.linspace(0, max(1.0, float(np.nanmax(share))), _BINS + 1).tolist(),
        color=_PLAIN,
    )
    ax.set(xlabel="effective sample size, as a share of the rows of a task", ylabel="tasks")
    estimate = evaluation.claim.estimate
    if estimate is not None:
        whole = estimate.ess / evaluation.rows
        ax.axvline(whole, color=_MARKED, linestyle="--", label=f"all rows: {whole:.0%}")
        ax.legend(frameon=False)
    ax.set_title("Overlap of the log with the policy")
    return ax


def calibration(evaluation: "Evaluation", *, ax: "Axes | None" = None) -> "Axes":
    """Draw the distribution of the predicted probability of a smaller reward: flat where the model is right.

    Raises
    ------
    InputError
        The evaluation has no predictive checks.
    """
    if evaluation.checks is None:
        raise InputError(
            "This evaluation has no predictive checks: some rows were learned from and others not, or rows were kept "
            "by chance. Evaluate on new rows, or on those of the fit."
        )
    chart, ax = calibration_chart(evaluation.checks), _axes(ax)
    edges = np.linspace(0.0, 1.0, len(chart.shares) + 1)
    ax.bar(edges[:-1], chart.shares, width=np.diff(edges), align="edge", color=_PLAIN, edgecolor="white")
    ax.axhline(chart.expected, color=_MARKED, linestyle="--", label="expected")
    ax.set(title=chart.title, xlabel=chart.axis, ylabel="share of rewards")
    ax.legend(frameon=False)
    return ax


def effect(
    evaluation: "Evaluation", column: str, *, actions: "Sequence[Any] | None" = None, ax: "Axes | None" = None
) -> "Axes":
    """Draw the expected reward of actions over one context column, over all tasks, with bands by the model.

    Parameters
    ----------
    evaluation : Evaluation
    column : str
        A context column; the others are at their means.
    actions : sequence of ids, optional
        Default: the first eight of the policy.
    ax : Axes, optional

    Raises
    ------
    InputError
        The column is no context column, or does not vary; an action is not of the policy; there is no list of actions.
    """
    model = evaluation.model
    if model.actions is None or column not in model.columns:
        raise InputError(
            f"column={column!r} is not among the context columns {list(model.columns)} of a policy with a list of "
            "actions. Name one of these."
        )
    known = [plain(action) for action in model.actions]
    named = known[:_CURVES] if actions is None else [plain(action) for action in actions]
    unknown = [action for action in named if action not in known]
    if unknown:
        raise InputError(
            f"{unknown[0]!r} is not among the actions {known[:_MOST]} of the policy. Name some of these."
        )
    chart = effect_chart(
        model, model.columns.index(column), [(known.index(action), str(action)) for action in named]
    )
    if chart is None:
        raise InputError(
            f"Column {column!r} is the same in 90 % of the rows, so that nothing varies with it. Name another."
        )
    ax = _axes(ax)
    for k, curve in enumerate(chart.curves):
        colour, dash = _COLOURS[k % len(_COLOURS)], _DASHES[k % len(_DASHES)]
        ax.fill_between(chart.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
        ax.plot(chart.x, curve.mean, dash, color=colour, label=curve.label)
    ax.set(title=chart.title, xlabel=chart.axis, ylabel=chart.unit)
    ax.legend(frameon=False)
    return ax


def pooling(learner: "Fitted", feature: str, *, ax: "Axes | None" = None) -> "Axes":
    """Draw how far each task is drawn to the population mean in one coefficient.

    A line leads from the least-squares estimate of the task's own rows (a circle) to its posterior mean (a disc); the
    dashed line is the population mean. The axis holds 90 % of the circles and all discs. Tasks whose own rows do not
    identify the coefficient have no circle.

    Parameters
    ----------
    learner : a fitted learner
    feature : str
        One of ``learner.features_.names``.
    ax : Axes, optional

    Raises
    ------
    InputError
        The feature is not one of the learner's; the learner is not fitted.
    """
    learner._fitted()
    names = list(learner.features_.names)
    if feature not in names:
        raise InputError(f"feature={feature!r} is not among the features {names[:_MOST]}. Name one of these.")
    own, drawn = _own_and_drawn(learner, names.index(feature))
    centre = float(learner.posterior_.new_task().mean[names.index(feature)])
    order, ax = np.argsort(drawn, kind="stable"), _axes(ax)
    ends, beyond = _limits(own, drawn)
    y = np.arange(order.size)
    ax.hlines(y, own[order], drawn[order], color=_GREY, linewidth=0.8)
    ax.plot(own[order], y, "o", markersize=3.5, markerfacecolor="none", color=_MARKED, label="own rows alone")
    ax.plot(drawn[order], y, "o", markersize=3, color=_PLAIN, label="posterior mean")
    ax.axvline(centre, color="black", linestyle="--", linewidth=0.8, label="population mean")
    more = f" ({beyond} of the circles lie outside)" if beyond else ""
    ax.set(
        title=f"Pooling of {feature}",
        xlabel=f"coefficient{more}",
        xlim=ends,
        yticks=[],
        ylabel=f"{order.size:,} tasks",
    )
    ax.legend(frameon=False)
    return ax


def _limits(own: Array, drawn: Array) -> tuple[tuple[float, float], int]:
    """Return the ends of the axis, and how many own estimates lie outside: those of few rows may lie far away."""
    some = own[np.isfinite(own)]
    middle = np.quantile(some, (0.05, 0.95)) if some.size else drawn[:0]
    low, high = float(min([*middle, drawn.min()])), float(max([*middle, drawn.max()]))
    room = 0.15 * (high - low) or 1.0
    return (low - room, high + room), int(np.count_nonzero((some < low - room) | (some > high + room)))


def _own_and_drawn(learner: "Fitted", j: int) -> tuple[Array, Array]:
    """Return estimates (m,) of a coefficient: by each task's own rows (NaN without), and posterior means."""
    moments, table = learner.posterior_.moments, learner.posterior_.table()
    p = moments.unit_dim
    sums = unpack(moments.unit_sums[j // p :: moments.n_actions], p + 1)
    own = np.array([_least_squares(joint, j % p) for joint in sums])
    offset = 0.0 if moments.offset is None else moments.offset[j]
    return own + offset, np.asarray(table.means).reshape(len(moments), -1)[:, j]


def _least_squares(joint: Array, j: int) -> float:
    """Return coefficient j of the regression with the sums [[G, B], [B', .]]; NaN where G does not identify it."""
    gram, products = joint[:-1, :-1], joint[:-1, -1]
    seen = np.flatnonzero(np.diagonal(gram) > 0)
    if j not in seen:
        return float("nan")
    scale = np.sqrt(np.diagonal(gram)[seen])
    scaled = gram[np.ix_(seen, seen)] / np.outer(scale, scale)
    if np.linalg.eigvalsh(scaled)[0] < _SEEN:
        return float("nan")
    return float((np.linalg.solve(scaled, products[seen] / scale) / scale)[seen.tolist().index(j)])


def _intervals(chart: Intervals, ax: "Axes") -> "Axes":
    for y, one in enumerate(chart.intervals):
        colour = _MARKED if one.marked else _PLAIN
        if one.low is not None and one.high is not None:
            ax.hlines(y, one.low, one.high, color=colour, linewidth=1.5)
        ax.plot(one.value, y, "D" if one.marked else "o", color=colour, markersize=4)
    if chart.zero:
        ax.axvline(0.0, color=_GREY, linestyle="--", linewidth=0.8)
    size = 6 if chart.dense else None
    ax.set_yticks(range(len(chart.intervals)), [one.label for one in chart.intervals], fontsize=size)
    ax.invert_yaxis()
    ax.set(title=chart.title, xlabel=chart.axis)
    if chart.marked:
        ax.plot([], [], "D", color=_MARKED, markersize=4, label=chart.marked)
        ax.legend(frameon=False, fontsize="small")
    return ax


def _axes(ax: "Axes | None") -> "Axes":
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise InputError(
            "Plots need matplotlib, which is not installed. Install it with: pip install 'hieropo[plots]'"
        ) from error
    made: Axes = plt.subplots(layout="constrained")[1]
    return made
