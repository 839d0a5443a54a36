"""Rules about single values: missing and impossible values, and the distribution of the reward."""

from collections.abc import Iterator, Sequence

from hieropo._utils.text import agreeing, counted, percent
from hieropo.doctor.collecting import LogStatistics
from hieropo.doctor.examination import Finding
from hieropo.logs.arrow.log_source import counted_from
from hieropo.logs.arrow.schema import like_a_cost
from hieropo.logs.bad_rows.rejects import LIST_ROUNDED, ROUNDED, Reason
from hieropo.logs.formats.text_types import commas_advice

# Events below which a rate has a relative standard error above about 18 %.
_FEW_EVENTS = 30
# Events that a coefficient needs: ten by Peduzzi et al. (J. Clin. Epidemiol. 49, 1996), five to nine by
# Vittinghoff and McCulloch (Am. J. Epidemiol. 165, 2007); here tasks share strength besides.
_EVENTS_PER_ACTION = 5
# Share of one row in the sum of squares around the mean: for a normal reward 2 log(n) / n, .01 of 1,000 rows; without
# a row that holds half of it, half of the noise variance is gone.
_OUTWEIGHS, _HALF = 0.1, 0.5
_AVERAGED = (
    3.0  # mean weight from which on means that are taken for equal rows make intervals much too narrow
)
_ROWS_FOR_WEIGHT = 1_000  # from which on the share of one row is informative
_LOST = 1e15  # standard deviations at which adding another reward loses all its digits
_FAR = 1e5  # sds between the mean reward and 0: sums of squares around 0 lose 10 of their 16 digits
_DROP = "lenient=True, on the command line --lenient, sets such rows aside and counts them."

_PLAIN = ("missing", "NaN", "an empty list", "a list with a null")
_WHOLE = (
    "Floats of this size cannot tell neighbouring whole numbers apart, so that different ids become one. Keep ids as "
    "integers or text from their source on, before a merge or a missing value turns them into floats; "
)
_CURES = {
    "missing": "Was a join incomplete, or is a value not known yet? Fill it in where it is known, or drop such rows; ",
    "NaN": "Is it a missing value, or a division of 0 by 0? Fill it in where it is known, or drop such rows; ",
    "infinite": "Was there a division by 0? Drop or repair such rows; ",
    "huge": "Its powers do not fit a float64. Does it stand for a missing value, or is the unit too small? Drop such "
    "rows, or rescale the column; ",
    "above 2**53": "A float64 would round it. Is it an id? Then it is a task or an action, not a quantity; ",
    "0 or below": "The propensity of a logged action is above 0. Does 0 stand for a missing value, or does it "
    "belong to another action? ",
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


def faults(stats: LogStatistics) -> Iterator[Finding]:
    """Yield findings about values that a role cannot take, which `fit` refuses."""
    for reason in dict.fromkeys(fault.reason for fault in stats.faults):
        columns = [fault for fault in stats.faults if fault.reason == reason]
        places = ", ".join(
            f"column {fault.column!r} from {stats.place_of(fault.first_row)}" for fault in columns
        )
        yield Finding(
            "stops", "unusable value", places, _said(reason, columns, stats),
            f"{_read_commas(columns)}{_CURES.get(reason, '')}{_DROP}",
        )  # fmt: skip
    if not stats.usable:
        yield Finding(
            "stops", "no usable row", "all rows", "No row has a usable task, action and reward.",
            "Check that the right columns are named.",
        )  # fmt: skip
    if stats.misplaced is not None:
        error = stats.misplaced
        text = str(error) if error.row is None else error.text_at(stats.place_of(error.row))
        said, _, cure = text.partition(". ")
        yield Finding("stops", "misplaced task", "levels and metadata", f"{said}.", cure)


def _read_commas(columns: list[Reason]) -> str:
    """Return a sentence on how to read numbers with commas, before a space; empty where the first values have none."""
    advice = next(filter(None, (commas_advice(fault.value or "") for fault in columns)), "")
    return advice and f"Numbers with commas are not read: {advice}. Hand over this frame. "


def _said(reason: str, columns: list[Reason], stats: LogStatistics) -> str:
    shows_value = reason not in _PLAIN
    rows, roles = stats.looked_at, {column: role for role, column in reversed(list(stats.roles.items()))}
    places = [stats.place_of(fault.first_row) for fault in columns]
    items = [
        f"column {fault.column!r} ({roles[fault.column]}) in {counted(fault.rows, 'row')} "
        f"({percent(fault.rows / rows)}), first in {place}{f': {fault.value}' if shows_value else ''}"
        for fault, place in zip(columns, places, strict=True)
    ]
    title = "Missing" if reason == "missing" else reason[0].upper() + reason[1:]
    return f"{title}: {'; '.join(items)}.{counted_from(*places)}"


def reward(stats: LogStatistics) -> Iterator[Finding]:
    """Yield findings about the reward."""
    column, numbers = stats.roles.reward, stats.reward
    if not numbers.rows:
        return
    if numbers.kind == "constant" and numbers.rows > 1:
        yield constant(column, numbers.low)
        return
    yield from sign(stats)
    yield from outlying(stats)
    yield from variation(stats)
    has_intercept = stats.roles.action is not None or any(
        stats.numbers[name].kind == "constant" for name in stats.roles.context
    )
    if not has_intercept and abs(numbers.mean) > _FAR * numbers.sd:
        yield Finding(
            "limits", "far from 0", f"column {column!r}",
            f"Column {column!r} lies around {numbers.mean:.6g} with a standard deviation of {numbers.sd:.3g}, and no "
            "feature is constant: a large offset loses precision, and estimates can be wrong.",
            "Add a context column that is 1 in every row, or subtract a number near the mean.",
        )  # fmt: skip


def kept_by_chance(stats: LogStatistics) -> Iterator[Finding]:
    """Yield findings about sampling weights, and the tests that they rule out."""
    column = stats.roles.sampling_weight
    assert column is not None
    numbers = stats.numbers[column]
    if not numbers.rows:
        return
    if numbers.low < 1.0:
        yield Finding(
            "limits", "sampling weights below 1", f"column {column!r}",
            f"The least sampling weight is {numbers.low:.3g}, and 1 / P(the row was kept) is at least 1. The "
            "weights add to fewer rows than the log holds, so that the rows of tasks are undercounted.",
            "Was a probability written in place of its inverse, or were weights divided by their mean? Write 1 / P(the "
            "row was kept); where rows only count less, name the column as weight.",
        )  # fmt: skip
    effective = numbers.rows * numbers.mean**2 / (numbers.mean**2 + numbers.sd**2)
    stand_for = counted(round(numbers.rows * numbers.mean), "row")
    yield Finding(
        "note", "kept by chance", f"column {column!r}",
        f"The {counted(numbers.rows, 'row')} are a random sample that represents {stand_for} (Kish's "
        f"effective sample size: {effective:,.0f}). Tests of the incumbent's knowledge and of propensities need the "
        "whole "
        "log, and are left out.",
        "Nothing to do, if the column is 1 / P(the row was kept).",
    )  # fmt: skip


def averaged(stats: LogStatistics) -> Iterator[Finding]:
    """Yield a finding where weights seem to count the rows of which a reward is the mean.

    A weight of c stands for c rows with equal rewards. Rows of many different rewards are seldom equal; and where equal
    rows were counted, no two rows are equal in all columns.
    """
    column, numbers = stats.roles.weight, stats.reward
    if column is None or not numbers.rows or not stats.numbers[column].whole:
        return
    mean = stats.rows / max(stats.looked_at, 1)
    uncounted = numbers.kind == "few values" and not numbers.whole and stats.repeats.repeated > 0
    if mean < _AVERAGED or not (numbers.kind == "continuous" or uncounted):
        return
    yield Finding(
        "limits", "weights may count averaged rows", f"column {column!r}",
        f"The mean weight is {mean:.3g}: a row counts as that many rows, all with exactly its reward. That is right "
        "for equal rows that were counted. If a reward is the mean of as many rows as its weight says, intervals are "
        f"too narrow, by a factor of about {mean**0.5:.2g}, and rows that are close in time seem alike.",
        f"If rewards are means, name the column as precision: precision={column!r}, on the command line --precision "
        f"{column}.",
    )  # fmt: skip


def variation(stats: LogStatistics) -> Iterator[Finding]:
    """Yield a finding where few rewards make up most of the variance."""
    column, numbers = stats.roles.reward, stats.reward
    if numbers.kind == "constant":
        return
    yield from _events(stats)
    if (
        numbers.kind == "binary"
        or numbers.rows < _ROWS_FOR_WEIGHT
        or stats.extremes.outlying(stats.all_rows) is not None
    ):
        return
    if (weight := _heaviest(stats)) > _OUTWEIGHS:
        low, high = stats.extremes.ends()
        row, value = high if numbers.high - numbers.mean > numbers.mean - numbers.low else low
        place = stats.place_of(row)
        yield Finding(
            "limits" if weight > _HALF else "note", "a reward outweighs", f"column {column!r}, {place}",
            f"One reward, {value:.6g} in {place} where the mean is {numbers.mean:.3g}, makes up {percent(weight)} "
            f"of the variance of all rewards.{counted_from(place)}",
            "That row has too much influence. Is it an error? If not, clip large rewards, take their logarithm, or fit "
            "with likelihood='auto'.",
        )  # fmt: skip


def outlying(stats: LogStatistics) -> Iterator[Finding]:
    """Yield a finding about rewards far from all others; :func:`variation` covers binary rewards."""
    outliers = stats.extremes.outlying(stats.all_rows)
    if outliers is None or stats.reward.kind == "binary":
        return
    overwhelms, single = outliers.distance > _LOST, len(outliers.rows) == 1
    places = [stats.place_of(row) for row in outliers.rows]
    rows = _together(places)
    low, high = min(outliers.values), max(outliers.values)
    weight = (
        "Added to it, the other rewards lose all their digits."
        if overwhelms
        else f"{'It makes' if single else 'They make'} up {percent(outliers.share)} of the variance of all rewards."
    )
    yield Finding(
        "stops" if overwhelms else "limits", "a reward outweighs", f"column {stats.roles.reward!r}, {rows}",
        f"The {'reward' if single else 'rewards'} in {rows}, {low:.6g}{'' if low == high else f' to {high:.6g}'}, "
        f"{'lies' if single else 'lie at least'} {_sds(outliers.distance)} standard deviations from the mean of all "
        "other "
        f"rewards, {outliers.mean:.3g}; the farthest of those lies {outliers.farthest:.2g} from it. {weight}"
        f"{counted_from(*places)}",
        "Is it an error, or does it stand for a missing value? Correct it, or leave "
        f"{'that row' if single else 'those rows'} out. If it is right, clip large rewards, take their "
        f"logarithm{'' if overwhelms else ', or fit with another likelihood'}.",
    )  # fmt: skip


def _together(places: Sequence[str]) -> str:
    """Return the places of rows as text; those of one kind and file as "rows 3, 5" or "lines 3, 5 of 'log.csv'"."""
    parts = [place.split(" ", 2) for place in places]
    kinds = {(part[0], *part[2:]) for part in parts}
    if len(places) == 1 or len(kinds) > 1:
        return ", ".join(places)
    kind, *file = kinds.pop()
    return " ".join([f"{kind}s", ", ".join(part[1] for part in parts), *file])


def _sds(distance: float) -> str:
    return f"{distance:,.0f}" if 100 <= distance < 1e6 else f"{distance:.3g}"


def constant(column: str, value: float) -> Finding:
    """Return the finding that all rewards have one value."""
    return Finding(
        "stops", "constant reward", f"column {column!r}", f"All rewards are {value:g}: there is nothing to learn.",
        "Is it the right column, or did a filter leave one outcome only?",
    )  # fmt: skip


def _heaviest(stats: LogStatistics) -> float:
    numbers = stats.reward
    return max(numbers.high - numbers.mean, numbers.mean - numbers.low) ** 2 / (numbers.rows * numbers.sd**2)


def sign(stats: LogStatistics) -> Iterator[Finding]:
    """Yield a finding where the reward looks like a cost."""
    column, numbers = stats.roles.reward, stats.reward
    if like_a_cost(column) and numbers.high > 0:
        yield Finding(
            "limits", "looks like a cost", f"column {column!r}",
            f"Column {column!r} is named like a cost, but larger rewards count as better.",
            f"If less of it is better, name a column of -{column} instead.",
        )  # fmt: skip
    elif numbers.high <= 0:
        yield Finding(
            "note", "no reward above 0", f"column {column!r}",
            f"No reward is above 0 (from {numbers.low:.4g} to {numbers.high:.4g}).",
            "That is right for negated costs: larger is better.",
        )  # fmt: skip


def _events(stats: LogStatistics) -> Iterator[Finding]:
    column, numbers = stats.roles.reward, stats.reward
    if not numbers.values or numbers.rows < 2 * _FEW_EVENTS:
        return
    usual, count = max(numbers.values.items(), key=lambda item: item[1])
    rare = numbers.rows - count
    if rare < _FEW_EVENTS:
        yield Finding(
            "limits", "few events", f"column {column!r}",
            f"Only {rare:,} of {numbers.rows:,} rewards {agreeing(rare, 'differs', 'differ')} from {usual:g}: a "
            f"rate of so few events has a relative standard error of {percent(1 / max(rare, 1) ** 0.5)} or more.",
            "Collect more rows, or use a less rare outcome.",
        )  # fmt: skip
    elif numbers.kind == "binary" and rare < _EVENTS_PER_ACTION * len(stats.actions):
        yield Finding(
            "limits", "few events an action", f"column {column!r}",
            f"{rare:,} of {numbers.rows:,} rewards differ from {usual:g}, {rare / len(stats.actions):.2g} for each of "
            f"{len(stats.actions):,} actions: effects of actions are hardly estimable from fewer than "
            f"{_EVENTS_PER_ACTION}.", "Merge actions, describe them by a few columns, or collect more rows.",
        )  # fmt: skip
