"""From a fitted learner and a log to an evaluation."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hieropo.core.crossed_mixture import condition_hierarchies
from hieropo.core.hierarchy import Hierarchy
from hieropo.core.keys import Keys
from hieropo.core.logs import Batch, Roles, unit_rows
from hieropo.core.uncertainty import condition_with
from hieropo.core.units import UnitMoments
from hieropo.errors import InputError
from hieropo.evaluation.assemble import Options, evaluate
from hieropo.evaluation.crossfit import cross_fit
from hieropo.evaluation.evaluation import Evaluation
from hieropo.evaluation.folds import FOLDS
from hieropo.evaluation.pessimism import PessimismChoice, choose_pessimism
from hieropo.evaluation.propensity import propensities_of
from hieropo.evaluation.rivals import named_rivals
from hieropo.evaluation.subject import Subject
from hieropo.evaluation.survey import fold_moments, survey
from hieropo.rejection import settle
from hieropo.sources import open_log, read
from hieropo.sources.rejects import Rejects
from hieropo.sources.schema import check_listed


def subject_of(learner: Any) -> Subject:
    """Return the policy of a fitted learner, and how to learn it again."""
    hierarchy, doubt = learner.hierarchy_, learner._doubt

    def condition(moments: Any) -> Any:
        if isinstance(hierarchy, Hierarchy):
            return condition_with(moments, hierarchy, doubt)
        return condition_hierarchies(moments, hierarchy)

    return Subject(
        policy=learner.policy_,
        moments=learner.moments_,
        posterior=learner.posterior_,
        condition=condition,
        relearn=lambda moments, features: (
            learner.learned_from(moments, features, learner._placement).posterior
        ),
        by_words=all(
            isinstance(learner.get_params().get(name, ""), str | None)
            for name in ("task_cov", "hyper", "known", "mu")
        ),
        sketch=learner._sketch,
        logging=learner.logging,
        placed=bool(getattr(hierarchy, "levels", ())) or getattr(hierarchy, "metadata", None) is not None,
    )


def evaluated(
    subject: Subject,
    log: Any,
    roles: Roles,
    options: Mapping[str, Any],
    rejects: Rejects | None = None,
    *,
    usual_time: str | None = None,
) -> Evaluation:
    """Evaluate a policy on a log that plays these roles.

    Parameters
    ----------
    subject : Subject
    log : anything that ``open_log`` takes
    roles : Roles
    options : mapping
        Fields of :class:`assemble.Options`.
    rejects : Rejects, optional
        Takes the rows that cannot be used.
    usual_time : str, optional
        The column of times of the log of the fit, which is read where this log has it and ``roles`` name none.

    Raises
    ------
    InputError
        An option is unknown, and what :func:`assemble.evaluate` refuses.
    """
    strays = [name for name in options if name not in Options.__slots__]
    if strays:
        raise InputError(f"evaluate() has no option {strays[0]!r}; it has {list(Options.__slots__)}.")
    settings = Options(**options)
    if settings.propensities in ("estimated", "none"):
        roles = replace(roles, pscore=None)
    source = open_log(log, rereadable=True, lenient=rejects is not None)
    check_listed(source.schema, roles.eligible, source.name)
    if roles.time is None and usual_time in source.schema.names:
        roles = replace(roles, time=usual_time)
    read(source, roles, rejects=rejects)  # checks all columns before the first row is read
    passes = _Passes(source, roles, rejects)
    named = named_rivals(settings.compare, subject.features, roles)
    found = evaluate(subject, passes.batches, settings, pscored=roles.pscore is not None, named=named)
    found = replace(found, eligible=roles.eligible)
    if rejects is None:
        return found
    return replace(found, rejected=settle(rejects, roles, passes.kept, found.keys))


class _Passes:
    """Passes over one log, of which the first keeps account of the rows that cannot be used."""

    def __init__(self, source: Any, roles: Roles, rejects: Rejects | None) -> None:
        self._source, self._roles, self._rejects = source, roles, rejects
        self._begun, self.kept = False, 0

    def batches(self) -> Iterator[Batch]:
        """Read the log from its first row on, each row as often as its weight says."""
        return unit_rows(self._read())

    def _read(self) -> Iterator[Batch]:
        if self._rejects is None or self._begun:
            return read(self._source, self._roles, rejects=self._rejects and self._rejects.silent())
        self._begun = True
        return self._first(self._rejects)

    def _first(self, rejects: Rejects) -> Iterator[Batch]:
        for batch in read(self._source, self._roles, rejects=rejects):
            self.kept += len(batch)
            yield batch
        if not self.kept:
            settle(rejects, self._roles, 0, Keys(np.zeros(0)))


def best_pessimism(
    subject: Subject, log: Any, roles: Roles, rejects: Rejects | None = None
) -> PessimismChoice:
    """Choose a pessimism by what each is worth on rows of the log that were not learned from.

    Raises
    ------
    InputError
        The actions of the log were chosen without chance, so that weighted rewards say nothing.
    """
    source = open_log(log, rereadable=True)
    features, apart = subject.features, isinstance(subject.moments, UnitMoments)
    roles = replace(roles, levels=(), metadata=())
    estimating = roles.pscore is None

    def rows() -> Iterator[Batch]:
        return unit_rows(read(source, roles, rejects=None if rejects is None else rejects.silent()))

    offset = subject.moments.offset
    glance = survey(rows(), features, apart=apart, estimating=estimating, offset=offset)
    chances = propensities_of("auto", glance, 0)
    if chances.of is None:
        raise InputError(
            f"A pessimism cannot be chosen from this log. {chances.refused} Give pessimism a number."
        )
    parts = fold_moments(rows(), features, FOLDS, 0, apart=apart, offset=offset)
    actions = glance.counts.sum(axis=0)
    fitted = cross_fit(subject, parts, actions)
    if fitted.refused is not None:
        raise InputError(
            f"A pessimism cannot be chosen from this log. {fitted.refused} Or give pessimism a number."
        )
    found = choose_pessimism(fitted, rows(), features, chances.of, glance.keys)
    return replace(found, limits=fitted.limits(features, actions))
