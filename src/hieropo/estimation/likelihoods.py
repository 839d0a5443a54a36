"""The likelihoods by name: how each is fitted, and read from the parameters in a file."""

from collections.abc import Callable, Mapping
from typing import Any

from hieropo.errors import warn
from hieropo.estimation.robust import StudentRule, fit_auto, fit_robust
from hieropo.estimation.sites import LogRows, SiteFit, SiteRule
from hieropo.estimation.two_part import fit_two_part, two_part_or

Learn = Callable[..., Any]  # from moments, and a similar hierarchy or None, to a Learning

_FITS: dict[str, Callable[[LogRows, Learn], SiteFit]] = {
    "robust": fit_robust, "two-part": fit_two_part, "auto": two_part_or(fit_auto),
}  # fmt: skip
_RULES: dict[str, Callable[[Mapping[str, Any]], SiteRule]] = {"robust": StudentRule.from_dict}


def fit_by_sites(likelihood: str, rows: LogRows, learn: Learn) -> SiteFit:
    """Return the fit under a likelihood.

    Parameters
    ----------
    likelihood : str
    rows : LogRows
    learn : callable
        From moments, and a similar hierarchy or None, to a Learning.

    Warns
    -----
    HieropoWarning
        The rewards do not fit the likelihood.
    """
    fit = _FITS[likelihood](rows, learn)
    if fit.rule is not None and fit.rule.warning:
        warn(fit.rule.warning)
    return fit


def rule_from_dict(parameters: Mapping[str, Any] | None) -> SiteRule | None:
    """Return the rule that :meth:`SiteRule.to_dict` wrote; None of None."""
    return None if parameters is None else _RULES[parameters["name"]](parameters)
