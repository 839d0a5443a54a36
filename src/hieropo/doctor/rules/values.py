"""Rules about single values: what is missing, what a role cannot take, what kind of number the reward is."""

from collections.abc import Iterator

from hieropo._utils.text import agreeing, counted, percent
from hieropo.doctor.collecting import Collected
from hieropo.doctor.examination import Finding
from hieropo.logs.arrow.schema import like_a_cost
from hieropo.logs.bad_rows.rejects import LIST_ROUNDED, ROUNDED, Reason

# A mean of fewer rarer rewards is known to no better than about 18 %.
_FEW_EVENTS = 30
# So many rarer rewards does a coefficient need: ten by Peduzzi et al. (J. Clin. Epidemiol. 49, 1996), five to nine by
# Vittinghoff and McCulloch (Am. J. Epidemiol. 165, 2007); here tasks share strength besides.
_EVENTS_PER_ACTION = 5
# Share of one row in all squares around the mean: of a normal reward 2 log(n) / n, .01 of 1,000 rows; without a row
# that has half, half of the noise is gone.
_OUTWEIGHS, _HALF = 0.1, 0.5
_ROWS_FOR_WEIGHT = 1_000  # from which on one row's weight is telling
_LOST = 1e15  # standard deviations at which the sum with another reward keeps none of its digits
_FAR = 1e5  # sds between the mean reward and 0: sums of squares around 0 lose 10 of their 16 digits
_DROP = "lenient=True, on the command line --lenient, sets such rows aside and counts them."

_PLAIN = ("missing", "NaN", "an empty list", "a list with a null")
_WHOLE = (
    "In floats of this size different whole numbers are one, and so different ids. Keep them whole from their source "
    "on, before a merge or a missing value makes floats of them, or make them text there; "
)
_CURES = {
    "missing": "Was a join incomplete, or is a value not known yet? Fill it in where it is known, or drop such rows; ",
    "NaN": "Is it a missing value, or a division of 0 by 0? Fill it in where it is known, or drop such rows; ",
    "infinite": "Was there a division by 0? Drop or repair such rows; ",
    "huge": "Its powers do not fit a float64. Does it stand for a missing value, or is the unit too small? Drop such "
    "rows, or rescale the column; ",
    "above 2**53": "A float64 would round it. Is it an id? Then it is a task or an action, not a quantity; ",
    "0 or below": "An action that was taken had a chance. Was 0 filled in for a missing value, or is it the propensity "
    "of another action? ",
    "a precision of 0 or below": "A precision is 1 / the relative variance of a reward. Where 0 says that a row does "
    "not count, name the column as weight; ",
    "a sampling weight of 0 or below": "A sampling weight is 1 / P(the row was kept). Where 0 says that a row does not "
    "count, name the column as weight; ",
    "above 1": "Is it a percentage, odds, a density or an inverse propensity? Make it a probability; ",
    "not a number": "It is text, and is not read as one. Write numbers with a point before decimals and nothing else, "
    "or leave the value out; ",
    "negative": "A weight says how often a row counts. To take rows out again, subtract their moments; ",
    "a list with a null": "Leave out what is no action; ",
    "a list without the action taken": "Lists name all that could be taken when the action was chosen; ",
    ROUNDED: _WHOLE,
    LIST_ROUNDED: _WHOLE,
    "an empty list": "Then nothing could be chosen. List what can be taken, or drop such rows; ",
}


def faults(seen: Collected) -> Iterator[Finding]:
    """Values that a role cannot take: `fit` refuses them."""
    for reason in dict.fromkeys(fault.reason for fault in seen.faults):
        same = [fault for fault in seen.faults if fault.reason == reason]
        places = ", ".join(f"column {fault.column!r} from row {fault.first_row:,}" for fault in same)
        yield Finding(
            "stops", "unusable value", places, _said(reason, same, seen), _CURES.get(reason, "") + _DROP
        )
    if not seen.usable:
        yield Finding(
            "stops", "no usable row", "all rows", "No row has a task, an action and a reward that can be used.",
            "See whether the right columns are named.",
        )  # fmt: skip
    if seen.misplaced is not None:
        said, _, cure = seen.misplaced.partition(". ")
        yield Finding("stops", "misplaced task", "levels and metadata", f"{said}.", cure)


def _said(reason: str, same: list[Reason], seen: Collected) -> str:
    shown = reason not in _PLAIN
    rows, roles = seen.looked_at, {column: role for role, column in reversed(list(seen.roles.items()))}
    each = [
        f"column {fault.column!r} ({roles[fault.column]}) in {counted(fault.rows, 'row')} "
        f"({percent(fault.rows / rows)}), first row {fault.first_row:,}{f': {fault.value}' if shown else ''}"
        for fault in same
    ]
    title = "Missing" if reason == "missing" else reason[0].upper() + reason[1:]
    return f"{title}: {'; '.join(each)}."


def reward(seen: Collected) -> Iterator[Finding]:
    """Yield findings about the reward."""
    column, found = seen.roles.reward, seen.reward
    if not found.rows:
        return
    if found.kind == "constant" and found.rows > 1:
        yield constant(column, found.low)
        return
    yield from sign(seen)
    yield from outlying(seen)
    yield from variation(seen)
    level = seen.roles.action is not None or any(
        seen.numbers[name].kind == "constant" for name in seen.roles.context
    )
    if not level and abs(found.mean) > _FAR * found.sd:
        yield Finding(
            "limits", "far from 0", f"column {column!r}",
            f"Column {column!r} lies around {found.mean:.6g} with a standard deviation of {found.sd:.3g}, and no "
            "column of features is constant: so far from 0 digits are lost, and estimates can be wrong.",
            "Add a context column that is 1 in every row, or subtract a number near the mean.",
        )  # fmt: skip


def kept_by_chance(seen: Collected) -> Iterator[Finding]:
    """Say how many rows those that were kept stand for, and which tests are left out."""
    column = seen.roles.sampling_weight
    assert column is not None
    found = seen.numbers[column]
    if not found.rows:
        return
    if found.low < 1.0:
        yield Finding(
            "limits", "sampling weights below 1", f"column {column!r}",
            f"The least sampling weight is {found.low:.3g}, and 1 / P(the row was kept) is at least 1. Rows stand for "
            "the sum of their weights, so that tasks are taken to have fewer rows than they had.",
            "Was a probability written in place of its inverse, or were weights divided by their mean? Write 1 / P(the "
            "row was kept); where rows only count for less, name the column as weight.",
        )  # fmt: skip
    effective = found.rows * found.mean**2 / (found.mean**2 + found.sd**2)
    stand_for = counted(round(found.rows * found.mean), "row")
    yield Finding(
        "note", "kept by chance", f"column {column!r}",
        f"The {counted(found.rows, 'row')} were kept by chance and stand for {stand_for} (Kish's "
        f"effective number of rows: {effective:,.0f}). Whether the incumbent knew something, and whether "
        "propensities match the actions, is tested on whole logs alone, and not here.",
        "Nothing to do, if the column is 1 / P(the row was kept).",
    )  # fmt: skip


def variation(seen: Collected) -> Iterator[Finding]:
    """Find few rewards that make up most of the variance of all."""
    column, found = seen.roles.reward, seen.reward
    if found.kind == "constant":
        return
    yield from _events(seen)
    if (
        found.kind == "binary"
        or found.rows < _ROWS_FOR_WEIGHT
        or seen.extremes.outlying(seen.all_rows) is not None
    ):
        return
    if (weight := _heaviest(seen)) > _OUTWEIGHS:
        low, high = seen.extremes.ends()
        row, far = high if found.high - found.mean > found.mean - found.low else low
        yield Finding(
            "limits" if weight > _HALF else "note", "a reward outweighs", f"column {column!r}, row {row:,}",
            f"One reward, {far:.6g} in row {row:,} where the mean is {found.mean:.3g}, makes up {percent(weight)} of "
            "the variance of all rewards.",
            "Is it an error? If not, clip large rewards or take their logarithm: that row decides too much.",
        )  # fmt: skip


def outlying(seen: Collected) -> Iterator[Finding]:
    """Rewards that lie far from all others, by their rows; of two different rewards, :func:`variation` says enough."""
    found = seen.extremes.outlying(seen.all_rows)
    if found is None or seen.reward.kind == "binary":
        return
    lost, one = found.distance > _LOST, len(found.rows) == 1
    rows = f"row {found.rows[0]:,}" if one else f"rows {', '.join(f'{row:,}' for row in found.rows)}"
    low, high = min(found.values), max(found.values)
    weight = (
        "In a sum with it the other rewards lose all their digits."
        if lost
        else f"{'It makes' if one else 'They make'} up {percent(found.share)} of the variance of all rewards."
    )
    yield Finding(
        "stops" if lost else "limits", "a reward outweighs", f"column {seen.roles.reward!r}, {rows}",
        f"The {'reward' if one else 'rewards'} in {rows}, {low:.6g}{'' if low == high else f' to {high:.6g}'}, "
        f"{'lies' if one else 'lie at least'} {_sds(found.distance)} standard deviations from the mean of all other "
        f"rewards, {found.mean:.3g}; the farthest of those lies {found.farthest:.2g} from it. {weight}",
        "Is it an error, or does it stand for a missing value? Correct it, or leave "
        f"{'that row' if one else 'those rows'} out. If it is right, clip large rewards or take their logarithm.",
    )  # fmt: skip


def _sds(distance: float) -> str:
    return f"{distance:,.0f}" if 100 <= distance < 1e6 else f"{distance:.3g}"


def constant(column: str, value: float) -> Finding:
    """Say that all rewards are one value."""
    return Finding(
        "stops", "constant reward", f"column {column!r}", f"All rewards are {value:g}: there is nothing to learn.",
        "Is it the right column, and did a filter leave one outcome only?",
    )  # fmt: skip


def _heaviest(seen: Collected) -> float:
    found = seen.reward
    return max(found.high - found.mean, found.mean - found.low) ** 2 / (found.rows * found.sd**2)


def sign(seen: Collected) -> Iterator[Finding]:
    """Find rewards that look like a cost."""
    column, found = seen.roles.reward, seen.reward
    if like_a_cost(column) and found.high > 0:
        yield Finding(
            "limits", "looks like a cost", f"column {column!r}",
            f"Column {column!r} is named like a cost, and larger rewards are taken as better.",
            f"If less of it is better, make a column of -{column} and name that.",
        )  # fmt: skip
    elif found.high <= 0:
        yield Finding(
            "note", "no reward above 0", f"column {column!r}",
            f"No reward is above 0 (from {found.low:.4g} to {found.high:.4g}).",
            "Right for costs with their sign turned; larger is better.",
        )  # fmt: skip


def _events(seen: Collected) -> Iterator[Finding]:
    column, found = seen.roles.reward, seen.reward
    if not found.values or found.rows < 2 * _FEW_EVENTS:
        return
    usual, count = max(found.values.items(), key=lambda each: each[1])
    rare = found.rows - count
    if rare < _FEW_EVENTS:
        yield Finding(
            "limits", "few events", f"column {column!r}",
            f"Only {rare:,} of {found.rows:,} rewards {agreeing(rare, 'differs', 'differ')} from {usual:g}: a mean of "
            f"so few is known to no better than {percent(1 / max(rare, 1) ** 0.5)}.",
            "Collect more rows, or take an outcome that is less rare.",
        )  # fmt: skip
    elif found.kind == "binary" and rare < _EVENTS_PER_ACTION * len(seen.actions):
        yield Finding(
            "limits", "few events an action", f"column {column!r}",
            f"{rare:,} of {found.rows:,} rewards differ from {usual:g}, {rare / len(seen.actions):.2g} for each of "
            f"{len(seen.actions):,} actions: differences between actions are hardly told by fewer than "
            f"{_EVENTS_PER_ACTION}.", "Put actions together, describe them by a few columns, or collect more rows.",
        )  # fmt: skip
