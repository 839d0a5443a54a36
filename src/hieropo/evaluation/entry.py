"""From a fitted learner and a log to an evaluation, in two or three passes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from hieropo._utils.arrays import Array, Mask
from hieropo._utils.text import counted
from hieropo.errors import InputError, LogError
from hieropo.estimation.crossed.mixture import condition_with_crossed
from hieropo.estimation.hyper.uncertainty import condition_with
from hieropo.evaluation.comparisons.comparing import Comparing, Comparison, Weighing
from hieropo.evaluation.comparisons.crossfit import CrossFit, Judge, cross_fit
from hieropo.evaluation.comparisons.rivals import (
    MOST,
    ONE,
    POOLED,
    SEPARATE,
    WORK,
    Named,
    OneAction,
    Regressions,
    Rival,
    action_scores,
    blocks_of,
    named_rivals,
    ridge,
    work_of,
)
from hieropo.evaluation.evaluation import MAX_HARM, Evaluation
from hieropo.evaluation.parts.by_model import ByModel, by_model
from hieropo.evaluation.parts.claims import claim
from hieropo.evaluation.parts.incumbency import Reacting, finding
from hieropo.evaluation.parts.randomised import RandomisationTests, randomisation_tests
from hieropo.evaluation.passes.first_pass import (
    FOLDS,
    FirstPass,
    Kept,
    KeptRows,
    Seen,
    first_pass,
    fold_moments,
    learned_from,
)
from hieropo.evaluation.passes.judging import (
    ActionFeatures,
    Checking,
    Contexts,
    FeatureSums,
    Predictions,
    Reader,
    judge,
)
from hieropo.evaluation.passes.propensity import Kind, Propensities, propensities_of
from hieropo.evaluation.passes.subject import AnyMoments, Subject
from hieropo.evaluation.pessimism import PessimismChoice, choose_pessimism
from hieropo.features.maps import FeatureMap
from hieropo.logs.arrow.schema import check_listed
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.opening import open_log
from hieropo.logs.reading import read
from hieropo.model.crossed.hierarchy import typical_noise
from hieropo.model.hierarchy import Hierarchy
from hieropo.ope.off_policy import OffPolicyMoments, OffPolicySums
from hieropo.ope.shrinkage import shrink
from hieropo.ope.value_estimates import ValueEstimate, bernstein, task_gains, values
from hieropo.passes.rejection import settle
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.batches import Batch, Roles, unit_rows
from hieropo.rows.keys import Keys

Source = Literal["auto", "logged", "estimated", "none"]
Batches = Callable[[], Iterable[Batch]]

_BEFORE = "learned from the rows that the policy was learned from"
_CONTEXTS = 16  # that stand for a task in its certificate


@dataclass(frozen=True, slots=True)
class Options:
    """How to evaluate.

    Parameters
    ----------
    level : float
        Of intervals and certificates.
    max_harm : float
        Probability of harm up to which a task counts as safe.
    propensities : {"auto", "logged", "estimated", "none"}
        "auto" takes logged ones where there are any, else estimates them; with "none" the model alone is asked.
    show_all : bool
        Whether to show estimates that cannot be trusted, too.
    compare : bool or mapping
        True compares with one action for all, a pooled regression and one for each task; a mapping with what it names,
        too, as :func:`rivals.named_rivals` reads it; False with nothing.
    seed : int
        Of folds, draws and bootstraps.

    Raises
    ------
    InputError
        None of the choices.
    """

    level: float = 0.95
    max_harm: float = MAX_HARM
    propensities: Source = "auto"
    show_all: bool = False
    compare: Any = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("level", "max_harm"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0.0 < value < 1.0):
                raise InputError(f"{name}={value!r} is not a probability in (0, 1); 95 % is 0.95.")
        if self.propensities not in get_args(Source):
            raise InputError(
                f"propensities={self.propensities!r}; one of {', '.join(map(repr, get_args(Source)))} is needed."
            )
        if self.seed < 0:
            raise InputError(f"seed={self.seed!r}; a whole number of at least 0 is needed.")


def evaluate(
    subject: Subject, batches: Batches, options: Options, *, pscored: bool, named: Sequence[Named] = ()
) -> Evaluation:
    """Evaluate a policy.

    Parameters
    ----------
    subject : Subject
    batches : callable
        Gives the batches of the log, from the first row on, each time that it is called.
    options : Options
    pscored : bool
        Whether the log has a column of propensities.
    named : sequence of Named
        What the user compares with.

    Raises
    ------
    LogError, UnknownActionError, UnknownTaskError, InputError
        A row cannot be used; the policy lists no actions.
    """
    features = subject.features
    apart = subject.moments.per_action
    estimating = options.propensities == "estimated" or (options.propensities == "auto" and not pscored)
    kept = KeptRows(len(features.actions or ()), len(features.columns), options.seed)
    glance = first_pass(
        batches(), features,
        apart=apart, estimating=estimating, seed=options.seed, offset=subject.moments.offset, kept=kept,
    )  # fmt: skip
    new_tasks = _new_tasks(subject, glance)
    seen = learned_from(glance, subject.moments, subject.sketch)
    posterior = subject.covering(glance.keys)
    chances = propensities_of(options.propensities, glance, options.seed)
    refused = chances.refused or _gate_on_own_rows(subject, seen)

    chosen, actions = glance.moments.sampled, glance.counts.sum(axis=0)
    sums = FeatureSums(features, len(glance.keys))
    contexts = Contexts(glance.counts.sum(axis=1), _CONTEXTS)
    means = np.asarray(posterior.table().means)[
        np.asarray(posterior.moments.keys.require(glance.keys.values))
    ]
    reacting = Reacting(glance.counts, Predictions(means, features))
    readers: list[Reader] = [sums, contexts, reacting]
    checking = None
    if seen != "partly" and not chosen:  # some rows learned from and some not are told neither way
        checking = Checking(posterior, features, glance.keys, learned_from=seen == "yes")
        readers.append(checking)
    terms = OffPolicySums(glance.low, glance.high, float(glance.weight.sum()), sampled=chosen)
    fitted = CrossFit((), refused=refused)
    if refused is None:
        fitted = _fitted(subject, seen, glance, batches, posterior, options)
        refused = fitted.refused
    weighing, comparing = None, None
    if refused is None and chances.of is not None:
        judges = [Judge(each, glance.keys, features) for each in fitted.policies]
        sums.shift = ActionFeatures(features, len(glance.keys)) if len(judges) > 1 else None
        comparing = _comparing(subject, options, named, glance, kept.kept(), fitted)
        fitted = replace(fitted, rests=())  # sums of all tasks, no longer needed
        weighing = Weighing(terms, chances.of, judges, options.seed, fitted.lost, sums.shift, comparing)
        readers.append(weighing)
    judge(batches(), subject.policy, glance.keys, readers)

    rng = np.random.default_rng(options.seed)
    model = by_model(
        posterior, features, glance.keys, sums, contexts,
        pessimism=subject.plain.pessimism, level=options.level, rng=rng,
    )  # fmt: skip
    weighted = _Weighted()
    if weighing is not None:
        weighted = _weighted(terms.moments(), glance, chances.kind, options.level, rng)
        astray = weighing.lost_rows(len(glance.keys))
        if astray.any():
            weighted = weighted.withheld(fitted.withheld(features, actions, int(astray.sum())), astray > 0)
    estimates = weighted.estimates
    return Evaluation(
        policy=subject.policy,
        rows=float(glance.weight.sum()),
        new_tasks=new_tasks,
        counts=glance.weight,
        model=model,
        comparisons=_compared(comparing, estimates, options, rng),
        randomisation=_tests(subject, kept, chances, glance, options),
        claim=claim(estimates, refused, model.judged, seen, options.level),
        estimates=tuple(each.shown() for each in estimates) if options.show_all else estimates,
        refused=refused,
        any_n=weighted.any_n,
        task_estimates=weighted.tasks,
        propensities="none" if refused else chances.kind,
        learned_from=seen,
        checks=None if checking is None else checking.checks(),
        limits=(*_limits(subject, chances, reacting, seen, model), *fitted.limits(features, actions)),
        max_harm=options.max_harm,
    )


class _Weighted(NamedTuple):
    """Importance-weighted estimates of the policy, and of the gain of each task (m, 4)."""

    estimates: tuple[ValueEstimate, ...] = ()
    any_n: tuple[tuple[float, float], tuple[float, float]] | None = None
    tasks: Array | None = None

    def withheld(self, why: str, tasks: Mask) -> "_Weighted":
        """Withhold all estimates, and those of these tasks (m,)."""
        assert self.tasks is not None
        of_tasks = np.where(tasks[:, None], np.nan, self.tasks)
        return _Weighted(tuple(replace(each, withheld=why) for each in self.estimates), None, of_tasks)


def _weighted(
    sums: OffPolicyMoments, glance: FirstPass, kind: Kind, level: float, rng: np.random.Generator
) -> _Weighted:
    any_n = None
    if kind == "logged" and glance.logged is not None and not glance.moments.sampled:
        any_n = bernstein(sums, 1.0 / glance.logged.low, level=level)
    return _Weighted(values(sums, level=level, rng=rng), any_n, _task_estimates(sums, glance, level))


def _comparing(
    subject: Subject,
    options: Options,
    named: Sequence[Named],
    glance: FirstPass,
    kept: Kept,
    fitted: CrossFit,
) -> Comparing | None:
    """Put together what the policy is compared with."""
    if options.compare is False:
        return None
    features, keys = subject.features, glance.keys
    chance = kept.pscore
    if glance.estimated is not None:
        context = kept.context if glance.estimated.columns else None
        chance = glance.estimated.taken(kept.place, kept.action, context, kept.eligible, fold=kept.fold)
    rivals: dict[str, Rival] = {ONE: OneAction(action_scores(kept, chance, glance.counts.shape[1]))}
    notes = {
        ONE: "in each fifth of the rows the action that is worth most in the others, by weighted rewards"
    }
    rests = fitted.rests or (subject.moments,)
    learned = "learned without the fifth of the rows that it is judged on" if fitted.rests else _BEFORE
    if float(glance.weight.sum()) * features.dim <= MOST:
        tables = [ridge(blocks_of(each, features, together=True)).reshape(1, -1) for each in rests]
        everywhere = np.zeros(len(keys), dtype=np.int64)
        rivals[POOLED] = Regressions(features, tables, [everywhere] * len(rests))
        notes[POOLED] = f"one regression for all tasks, {learned}"
        if work_of(features, len(rests[0].keys)) <= WORK:
            rivals[SEPARATE] = _separate(rests, features, keys, tables)
            notes[SEPARATE] = f"a ridge regression for each task, {learned}"
    for each in named:
        rivals[each.name] = each.rival(keys)
        notes[each.name] = "as it was given; rows that it was learned from would flatter it"
    return Comparing(rivals, notes, glance.low, options.seed)


def _separate(
    rests: Sequence[AnyMoments], features: FeatureMap, keys: Keys, pooled: Sequence[Array]
) -> Rival:
    """A regression of each task by itself; of all tasks together for tasks that it does not know."""
    tables, places = [], []
    for rest, table in zip(rests, pooled, strict=True):
        own = ridge(blocks_of(rest, features)).reshape(len(rest.keys), -1)
        at = np.asarray(rest.keys.locate(keys.values))
        tables.append(np.concatenate([own, table]))
        places.append(np.where(at >= 0, at, len(own)))
    return Regressions(features, tables, places)


def _compared(
    comparing: Comparing | None,
    estimates: Sequence[ValueEstimate],
    options: Options,
    rng: np.random.Generator,
) -> tuple[Comparison, ...]:
    """Return the figures of other policies; withheld with the doubly robust estimate."""
    if comparing is None:
        return ()
    why = next((each.withheld for each in estimates if each.name == "DR"), None)
    found = comparing.comparisons(options.level, rng)
    if why is not None:
        found = tuple(replace(each, withheld=why) for each in found)
    return tuple(replace(each, withheld=None) for each in found) if options.show_all else found


def _tests(
    subject: Subject, kept: KeptRows, chances: Propensities, glance: FirstPass, options: Options
) -> RandomisationTests:
    if glance.moments.sampled:
        return RandomisationTests(
            refused="Rows were kept by chance (sampling_weight), which actions drawn anew would have to go through."
        )
    return randomisation_tests(
        kept.kept(), chances, glance.estimated,
        n_actions=glance.counts.shape[1], adaptive=subject.logging == "adaptive", seed=options.seed,
    )  # fmt: skip


def _new_tasks(subject: Subject, glance: FirstPass) -> int:
    new = np.flatnonzero(np.asarray(subject.moments.keys.locate(glance.keys.values)) < 0)
    if new.size and subject.placed:
        task = glance.keys.values[new[:1]].tolist()[0]
        raise LogError(
            f"Task {task!r} is not known to the policy ({counted(new.size, 'such task')}), and with levels or "
            "metadata a new task has no place in its hierarchy. Leave their rows out, or fit again with them."
        )
    return int(new.size)


def _gate_on_own_rows(subject: Subject, seen: Seen) -> str | None:
    if seen == "no" or not isinstance(subject.policy, GatedPolicy):
        return None
    return (
        "The gate was set by these rows, and weighted rewards of the tasks that passed would be those of the lucky "
        "ones. Evaluate the gated policy on rows that came later."
    )


def _fitted(
    subject: Subject, seen: Seen, glance: FirstPass, batches: Batches, posterior: Any, options: Options
) -> CrossFit:
    """Policies whose predictions weigh the rows: one, or those learned without each fold."""
    if seen == "no":
        return CrossFit((LCBPolicy(posterior, subject.features, pessimism=subject.plain.pessimism),))
    apart = subject.moments.per_action
    offset = subject.moments.offset
    parts = fold_moments(batches(), subject.features, FOLDS, options.seed, apart=apart, offset=offset)
    base: AnyMoments = subject.moments if seen == "yes" else glance.moments
    return cross_fit(subject, parts, glance.counts.sum(axis=0), base)


def _task_estimates(weighted: OffPolicyMoments, glance: FirstPass, level: float) -> Array:
    gain, se, ess = task_gains(weighted)
    if not np.isfinite(gain).all():  # the policy takes none of the actions that were logged
        return np.full((len(gain), 4), np.nan)
    found = shrink(gain, se, level=level)
    order = np.asarray(weighted.moments.keys.require(np.arange(len(glance.keys))))
    return np.stack([found.value, found.low, found.high, ess], axis=1)[order]


def _limits(
    subject: Subject, chances: Propensities, reacting: Reacting, seen: Seen, model: ByModel
) -> tuple[str, ...]:
    found = [finding(subject, reacting.reacted())]
    if seen == "no":
        found.append(
            reacting.misfit(typical_noise(subject.posterior.noise_variances) ** 0.5, model.incumbent.sd)
        )
    told = [*(each for each in found if each is not None), *chances.findings]
    if isinstance(subject.policy, GatedPolicy):
        told.extend(each for each in subject.policy.limits if each not in told)
    return tuple(told)


def subject_of(learner: Any) -> Subject:
    """Return the policy of a fitted learner, and how to learn it again."""
    hierarchy, hyper_uncertainty = learner.hierarchy_, learner._hyper_uncertainty

    def condition(moments: Any) -> Any:
        if isinstance(hierarchy, Hierarchy):
            return condition_with(moments, hierarchy, hyper_uncertainty)
        return condition_with_crossed(moments, hierarchy)

    return Subject(
        policy=learner.policy_,
        moments=learner.moments_,
        posterior=learner.posterior_,
        condition=condition,
        relearn=lambda moments, features: (
            learner.learned_from(moments, features, learner._task_levels).posterior
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
    features, apart = subject.features, subject.moments.per_action
    roles = replace(roles, levels=(), metadata=())
    estimating = roles.pscore is None

    def rows() -> Iterator[Batch]:
        return unit_rows(read(source, roles, rejects=None if rejects is None else rejects.silent()))

    offset = subject.moments.offset
    glance = first_pass(rows(), features, apart=apart, estimating=estimating, offset=offset)
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
