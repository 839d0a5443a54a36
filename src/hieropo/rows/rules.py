"""Rules for the numbers of each role, with the reason of each, and the word by which rows that break it are counted."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hieropo._utils.arrays import Array, Mask

HUGE = 1e70  # fourth powers of smaller values, and sums of many of them, fit a float64


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for values.

    Parameters
    ----------
    why : str
        Follows the value in a message.
    broken : tuple of (reason, test)
        A test says which of the values (n,) break the rule; the reason is the word for it in counts.
    """

    why: str
    broken: tuple[tuple[str, Callable[[Array], Mask]], ...]

    def breaks(self, values: Array) -> Mask:
        """Return which values (n,) break the rule."""
        found: Mask = np.zeros(np.shape(values), dtype=np.bool_)
        for _, test in self.broken:
            found |= test(values)
        return found


def _huge(values: Array) -> Mask:
    size = np.abs(values)
    return (size > HUGE) & np.isfinite(size)


_NOT_FINITE: tuple[tuple[str, Callable[[Array], Mask]], ...] = (("NaN", np.isnan), ("infinite", np.isinf))
_HUGE = Rule(
    "is so large that its powers do not fit a float64. Does it stand for a missing value, or is the unit too "
    "small? Drop such rows, or rescale the column.",
    (("huge", _huge),),
)

RULES: dict[str, tuple[Rule, ...]] = {
    "reward": (
        Rule(
            "is not a reward, and is not read as 0. Was a join incomplete, or the outcome not in yet? Drop "
            "such rows, or write the reward they had.",
            _NOT_FINITE,
        ),
        _HUGE,
    ),
    "context": (
        Rule(
            "is not a context. Nothing is filled in: drop such rows, or fill the value in and add a "
            "column that says so.",
            _NOT_FINITE,
        ),
        _HUGE,
    ),
    "pscore": (
        Rule(
            "is not a propensity. Log the probability with which the action was chosen, or name no pscore "
            "column if the log has none.",
            (("NaN", np.isnan),),
        ),
        Rule(
            "is the propensity of an action that was taken, so it must be above 0. Was 0 filled in for a "
            "missing value, or is it the propensity of another action?",
            (("0 or below", lambda values: values <= 0.0),),
        ),
        Rule(
            "is a propensity above 1. Is it a percentage, odds, a density or an inverse propensity? Convert "
            "it to a probability; if it is 1 up to rounding, clip it.",
            (("above 1", lambda values: values > 1.0),),
        ),
    ),
    "weight": (
        Rule(
            "is not a weight. Was a division by zero or a missing value left in? A row of weight 0 counts "
            "for nothing; a weight of 1 is a plain row.",
            _NOT_FINITE,
        ),
        Rule(
            "is a negative weight. To take rows out again, subtract their moments.",
            (("negative", lambda values: values < 0.0),),
        ),
        _HUGE,
    ),
    "precision": (
        Rule(
            "is not a precision: that is 1 / the relative variance of a reward. Drop such rows, or name no column of "
            "precisions.",
            _NOT_FINITE,
        ),
        Rule(
            "is not above 0, as a precision is: the variance of a reward is the noise variance divided by it. Drop "
            "such rows; where 0 says that a row does not count, name the column as weight.",
            (("a precision of 0 or below", lambda values: values <= 0.0),),
        ),
        _HUGE,
    ),
    "sampling_weight": (
        Rule(
            "is not a sampling weight: that is 1 / P(the row was kept). Drop such rows, or name no column of sampling "
            "weights.",
            _NOT_FINITE,
        ),
        Rule(
            "is not above 0, as a sampling weight is: 1 / P(the row was kept). Drop such rows; where 0 says that a row "
            "does not count, name the column as weight.",
            (("a sampling weight of 0 or below", lambda values: values <= 0.0),),
        ),
        _HUGE,
    ),
    "metadata": (
        Rule("is not finite. Metadata are finite: fill such values in, or leave the column out.", _NOT_FINITE),
    ),
    "time": (
        Rule("is not a time. Write when the action was chosen, or name no time column.", _NOT_FINITE),
    ),
}  # fmt: skip
