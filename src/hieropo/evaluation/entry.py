"""Evaluate a fitted learner on a log, in two or three passes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from hieropo._utils.arrays import Array, Mask
from hieropo._utils.text import counted
from hieropo.errors import InputError, LogError
from hieropo.estimation.conditioning import condition_learned
from hieropo.estimation.sites import as_sites
from hieropo.evaluation.comparisons.comparing import Comparing, Comparison, Weighing
from hieropo.evaluation.comparisons.crossfit import CrossFit, Judge, cross_fit
from hieropo.evaluation.comparisons.rivals import (
    MAX_FEATURES,
    MAX_WORK,
    ONE,
    POOLED,
    SEPARATE,
    NamedRival,
    OneAction,
    Regressions,
    Rival,
    action_scores,
    blocks_of,
    named_rivals,
    ridge,
    work_of,
)
from hieropo.evaluation.diagnostics.predictive import PredictiveChecks
from hieropo.evaluation.evaluation import MAX_HARM, Evaluation
from hieropo.evaluation.parts.by_model import ByModel, by_model
from hieropo.evaluation.parts.claims import claim
from hieropo.evaluation.parts.incumbency import Reacting, finding, rotation
from hieropo.evaluation.parts.randomised import RandomisationTests, randomisation_tests
from hieropo.evaluation.passes.first_pass import (
    FOLDS,
    FirstPass,
    Overlap,
    RowSample,
    RowSampler,
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
from hieropo.evaluation.passes.subject import AsSites, Subject, SubjectInShards
from hieropo.evaluation.pessimism import PessimismChoice, choose_pessimism
from hieropo.features.maps import FeatureMap
from hieropo.logs.arrow.log_source import LogSource, located, place_of
from hieropo.logs.arrow.schema import check_listed
from hieropo.logs.arrow.times_of_text import with_times
from hieropo.logs.bad_rows.rejects import Rejects
from hieropo.logs.encoding import opened_requests
from hieropo.logs.opening import open_log
from hieropo.logs.reading import read, read_again
from hieropo.model.crossed.task_noise import noise_variance
from hieropo.moments.clusters import drawn_by_cluster
from hieropo.moments.statistics import Moments
from hieropo.ope.off_policy import OffPolicyMoments, OffPolicySums
from hieropo.ope.shrinkage import shrink
from hieropo.ope.value_estimates import ValueEstimate, bernstein, many_tasks, task_gains, values
from hieropo.passes.rejection import settle
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.batches import Batch, Roles, unit_rows
from hieropo.rows.keys import GrowingKeys, Keys

Source = Literal["auto", "logged", "estimated", "none"]
Batches = Callable[[], Iterable[Batch]]

_FROM_SAME_ROWS = "learned from the rows that the policy was learned from"
_CONTEXTS = 16  # contexts a task in its certificate


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an evaluation.

    Parameters
    ----------
    level : float
        Of intervals and certificates.
    max_harm : float
        Probability of harm up to which a task counts as safe.
    propensities : {"auto", "logged", "estimated", "none"}
        "auto" takes logged ones where there are any and estimates them otherwise; "none" evaluates by the model alone.
    show_all : bool
        True to show withheld estimates too.
    compare : bool or mapping
        True compares with one action for all, a pooled regression and one for each task; a mapping also with the
        policies that it names, as :func:`rivals.named_rivals` reads it; False with nothing.
    randomise : bool
        False leaves out the randomisation tests.
    seed : int
        Of folds, draws and bootstraps.

    Raises
    ------
    InputError
        An option has an impossible value.
    """

    level: float = 0.95
    max_harm: float = MAX_HARM
    propensities: Source = "auto"
    show_all: bool = False
    compare: Any = True
    randomise: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("level", "max_harm"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0.0 < value < 1.0):
                raise InputError(f"{name}={value!r} is not a probability in (0, 1). For 95 % give 0.95.")
        if self.propensities not in get_args(Source):
            raise InputError(
                f"propensities={self.propensities!r}; one of {', '.join(map(repr, get_args(Source)))} is needed."
            )
        if self.seed < 0:
            raise InputError(f"seed={self.seed!r}; a whole number of at least 0 is needed.")


def evaluate(
    subject: Subject,
    batches: Batches,
    options: Options,
    *,
    pscored: bool,
    named: Sequence[NamedRival] = (),
    clustered: bool = False,
) -> Evaluation:
    """Evaluate a policy.

    Parameters
    ----------
    subject : Subject
    batches : callable
        Each call returns the batches of the log from the first row on.
    options : Options
    pscored : bool
        True where the log has a column of propensities.
    named : sequence of NamedRival
        Policies that the user compares with.
    clustered : bool
        True where rows form clusters. Row by row checks of predictions, and bounds for independent rows, are then left
        out.

    Raises
    ------
    LogError, UnknownActionError, UnknownTaskError, InputError
        A row cannot be used; the policy lists no actions.
    """
    features = subject.features
    per_action = subject.moments.per_action
    estimating = options.propensities == "estimated" or (options.propensities == "auto" and not pscored)
    sampler = RowSampler(len(features.actions or ()), len(features.columns), options.seed)
    first = first_pass(
        batches(), features,
        per_action=per_action, estimating=estimating, seed=options.seed, offset=subject.moments.offset, sampler=sampler,
        correlation=subject.correlation, sites=subject.sites, positive=subject.in_two_parts,
    )  # fmt: skip
    new_tasks = _new_tasks(subject, first)
    of_rows = subject.sites is None and not subject.drifting
    overlap = learned_from(first, subject.moments, subject.sketch, by_rows=not of_rows)
    posterior = subject.covering(first.keys)
    propensities = propensities_of(options.propensities, first, options.seed)
    refused = (
        propensities.refused or _gate_on_own_rows(subject, overlap) or _part_on_own_rows(subject, overlap)
    )

    sampled, actions = first.moments.sampled, first.counts.sum(axis=0)
    sums = FeatureSums(features, len(first.keys))
    contexts = Contexts(first.counts.sum(axis=1), _CONTEXTS)
    means = np.asarray(posterior.table().means)[np.asarray(posterior.moments.keys.require(first.keys.values))]
    reacting = Reacting(first.counts, Predictions(means, features))
    readers: list[Reader] = [sums, contexts, reacting]
    checking = None
    gaussian = subject.sites is None and not subject.in_two_parts
    independent = not (sampled or clustered or subject.drifting) and gaussian
    if overlap != "partly" and independent:  # it is unknown which rows were learned from
        checking = Checking(posterior, features, first.keys, learned_from=overlap == "yes")
        readers.append(checking)
    terms = OffPolicySums(first.low, first.high, float(first.weight.sum()), sampled=sampled)
    fitted = CrossFit((), refused=refused)
    if refused is None:
        fitted = _fitted(subject, overlap, first, batches, posterior, options)
        refused = fitted.refused
    weighing, comparing = None, None
    if refused is None and propensities.of is not None:
        judges = [Judge(policy, first.keys, features) for policy in fitted.policies]
        sums.shift = ActionFeatures(features, len(first.keys)) if len(judges) > 1 else None
        comparing = _comparing(subject, options, named, first, sampler.sample(), fitted)
        fitted = replace(fitted, rests=())  # free the sums of all tasks
        weighing = Weighing(
            terms, propensities.of, judges, options.seed, fitted.missing, sums.shift, comparing,
            few_tasks=not many_tasks(first.weight),
        )  # fmt: skip
        readers.append(weighing)
    judge(batches(), subject.policy, first.keys, readers)

    rng = np.random.default_rng(options.seed)
    model = by_model(
        posterior, features, first.keys, sums, contexts,
        pessimism=subject.plain.pessimism, level=options.level, seed=options.seed,
    )  # fmt: skip
    weighted = _Weighted()
    if weighing is not None:
        weighted = _weighted(terms.moments(), first, propensities.kind, options.level, rng)
        missing_rows = weighing.rows_of_missing(len(first.keys))
        if missing_rows.any():
            weighted = weighted.withheld(
                fitted.withheld(features, actions, int(missing_rows.sum())), missing_rows > 0
            )
    estimates = weighted.estimates
    return Evaluation(
        policy=subject.policy,
        rows=float(first.weight.sum()),
        new_tasks=new_tasks,
        counts=first.weight,
        model=model,
        comparisons=_compared(comparing, estimates, options, rng),
        randomisation=_tests(subject, sampler, propensities, first, options, clustered=clustered),
        claim=claim(estimates, refused, model.judged, overlap, options.level),
        estimates=tuple(estimate.shown() for estimate in estimates) if options.show_all else estimates,
        refused=refused,
        any_n=None if clustered else weighted.any_n,
        task_estimates=weighted.tasks,
        propensities="none" if refused else propensities.kind,
        learned_from=overlap,
        checks=None if checking is None else checking.checks(),
        limits=(
            *_limits(subject, propensities, reacting, overlap, model),
            *_in_rotation(first, overlap),
            *fitted.limits(features, actions),
            *((_NOT_CHECKED,) if clustered else ()),
            *(() if gaussian else (_NOT_CHECKED_BY_SITES,)),
            *(_of_drift(overlap) if subject.drifting else ()),
        ),
        max_harm=options.max_harm,
    )


_NOT_CHECKED = (
    "Predictions are not checked against the rows: those of one cluster deviate together, and the checks need "
    "independent rows."
)


_NOT_CHECKED_BY_SITES = (
    "Predictions are not checked against the rows: the checks are for Gaussian rewards, and the policy was learned "
    "with another likelihood."
)


def _in_rotation(first: FirstPass, overlap: Overlap) -> tuple[str, ...]:
    """Return a sentence on actions in rotation, which cross-fitting takes for independent draws."""
    found = None if overlap == "no" or first.moments.sampled else rotation(first.counts)
    return () if found is None else (found,)


def _of_drift(overlap: Overlap) -> tuple[str, ...]:
    """Return sentences about a policy whose coefficients drift, or whose rows of one period are alike."""
    unchecked = (
        "Predictions are not checked against the rows: coefficients may drift, or rows that are close in time have "
        "alike rewards. Predictions are those at the end of the log of the fit."
    )
    mean = (
        "Coefficients may drift in time. The model's estimates are for the end of the log. Importance-weighted "
        "estimates are means over the log, of policies that are learned without drift from other rows."
    )
    return (unchecked,) if overlap == "no" else (unchecked, mean)


class _Weighted(NamedTuple):
    """Importance-weighted estimates of the policy, and of the gain of each task (m, 4)."""

    estimates: tuple[ValueEstimate, ...] = ()
    any_n: tuple[tuple[float, float], tuple[float, float]] | None = None
    tasks: Array | None = None

    def withheld(self, reason: str, tasks: Mask) -> "_Weighted":
        """Withhold all estimates, and those of these tasks (m,)."""
        assert self.tasks is not None
        of_tasks = np.where(tasks[:, None], np.nan, self.tasks)
        return _Weighted(
            tuple(replace(estimate, withheld=reason) for estimate in self.estimates), None, of_tasks
        )


def _weighted(
    sums: OffPolicyMoments, first: FirstPass, kind: Kind, level: float, rng: np.random.Generator
) -> _Weighted:
    any_n = None
    if kind == "logged" and first.logged is not None and not first.moments.sampled:
        any_n = bernstein(sums, 1.0 / first.logged.low, level=level)
    return _Weighted(values(sums, level=level, rng=rng), any_n, _task_estimates(sums, first, level))


def _comparing(
    subject: Subject,
    options: Options,
    named: Sequence[NamedRival],
    first: FirstPass,
    sample: RowSample,
    fitted: CrossFit,
) -> Comparing | None:
    """Return the other policies of the comparison; None without one."""
    if options.compare is False:
        return None
    features, keys = subject.features, first.keys
    propensity = sample.pscore
    if first.estimated is not None:
        context = sample.context if first.estimated.columns else None
        propensity = first.estimated.taken(
            sample.task, sample.action, context, sample.eligible, fold=sample.fold
        )
    rivals: dict[str, Rival] = {ONE: OneAction(action_scores(sample, propensity, first.counts.shape[1]))}
    notes = {
        ONE: "in each fifth of the rows the action with the largest importance-weighted mean reward in the other fifths"
    }
    rests = fitted.rests or (subject.moments,)
    learned = (
        "learned without the fifth of the rows that it is evaluated on" if fitted.rests else _FROM_SAME_ROWS
    )
    if float(first.weight.sum()) * features.dim <= MAX_FEATURES:
        tables = [ridge(blocks_of(rest, features, pooled=True)).reshape(1, -1) for rest in rests]
        everywhere = np.zeros(len(keys), dtype=np.int64)
        rivals[POOLED] = Regressions(features, tables, [everywhere] * len(rests))
        notes[POOLED] = f"one regression for all tasks, {learned}"
        if work_of(features, len(rests[0].keys)) <= MAX_WORK:
            rivals[SEPARATE] = _separate(rests, features, keys, tables)
            notes[SEPARATE] = f"a ridge regression for each task, {learned}"
    for policy in named:
        rivals[policy.name] = policy.rival(keys)
        notes[policy.name] = "as given; it is flattered by rows that it was learned from"
    return Comparing(rivals, notes, first.low, options.seed, int(first.counts.sum()))


def _separate(rests: Sequence[Moments], features: FeatureMap, keys: Keys, pooled: Sequence[Array]) -> Rival:
    """Return a regression of each task by itself, with the pooled one for unknown tasks."""
    tables, table_rows = [], []
    for rest, table in zip(rests, pooled, strict=True):
        coefficients = ridge(blocks_of(rest, features)).reshape(len(rest.keys), -1)
        rows = np.asarray(rest.keys.locate(keys.values))
        tables.append(np.concatenate([coefficients, table]))
        table_rows.append(np.where(rows >= 0, rows, len(coefficients)))
    return Regressions(features, tables, table_rows)


def _compared(
    comparing: Comparing | None,
    estimates: Sequence[ValueEstimate],
    options: Options,
    rng: np.random.Generator,
) -> tuple[Comparison, ...]:
    """Return the figures of other policies; withheld with the doubly robust estimate."""
    if comparing is None:
        return ()
    withheld = next((estimate.withheld for estimate in estimates if estimate.name == "DR"), None)
    comparisons = comparing.comparisons(options.level, rng)
    if withheld is None and not options.show_all:
        return comparisons
    withheld = None if options.show_all else withheld
    return tuple(replace(comparison, withheld=withheld) for comparison in comparisons)


def _tests(
    subject: Subject,
    sampler: RowSampler,
    propensities: Propensities,
    first: FirstPass,
    options: Options,
    *,
    clustered: bool,
) -> RandomisationTests:
    if not options.randomise:
        return RandomisationTests(refused="They were not asked for (randomise=False).")
    if first.moments.sampled:
        return RandomisationTests(
            refused="Rows are a random sample (sampling_weight), and redrawn actions would change the sample."
        )
    sample = sampler.sample()
    if clustered and drawn_by_cluster(sample.task, sample.action, sample.cluster):
        return RandomisationTests(
            refused="Rows of a cluster mostly have one action, so that actions were drawn for clusters, and the tests "
            "redraw them row by row."
        )
    return randomisation_tests(
        sample, propensities, first.estimated,
        n_actions=first.counts.shape[1], adaptive=subject.logging == "adaptive", seed=options.seed,
    )  # fmt: skip


def _new_tasks(subject: Subject, first: FirstPass) -> int:
    unknown = np.flatnonzero(np.asarray(subject.moments.keys.locate(first.keys.values)) < 0)
    if unknown.size and subject.placed:
        task = first.keys.values[unknown[:1]].tolist()[0]
        raise LogError(
            f"Task {task!r} is not known to the policy ({counted(unknown.size, 'such task')}). With levels or "
            "metadata a new task has no place in the hierarchy. Leave its rows out, or fit again with them."
        )
    return int(unknown.size)


def _gate_on_own_rows(subject: Subject, overlap: Overlap) -> str | None:
    if overlap == "no" or not isinstance(subject.policy, GatedPolicy):
        return None
    return (
        "The gate was set on these rows, so that importance-weighted estimates of the tasks that passed it are biased "
        "upwards by selection. Evaluate the gated policy on later rows."
    )


def _part_on_own_rows(subject: Subject, overlap: Overlap) -> str | None:
    if overlap != "partly" or not subject.part:
        return None
    return (
        "The policy was learned from some of these rows, by moments in shards. Importance-weighted estimates then need "
        "policies that are learned from four fifths of these rows and from no others, and a fit in shards cannot learn "
        "them. Evaluate it on later rows, or on rows of the fit alone."
    )


def _fitted(
    subject: Subject, overlap: Overlap, first: FirstPass, batches: Batches, posterior: Any, options: Options
) -> CrossFit:
    """Return the policies that importance weighting evaluates: the policy, or one per fold, learned without it."""
    if overlap == "no":
        return CrossFit((LCBPolicy(posterior, subject.features, pessimism=subject.plain.pessimism),))
    per_action = subject.moments.per_action
    offset = subject.moments.offset
    parts = fold_moments(
        batches(), subject.features, FOLDS, options.seed,
        per_action=per_action, offset=offset, expected=int(first.counts.sum()), correlation=subject.correlation,
        sites=subject.sites, positive=subject.in_two_parts,
    )  # fmt: skip
    of_fit = overlap == "yes" and subject.sites is None and not subject.drifting
    base: Moments = subject.moments if of_fit else first.moments
    return cross_fit(subject, parts, first.counts.sum(axis=0), base)


def _task_estimates(weighted: OffPolicyMoments, first: FirstPass, level: float) -> Array:
    gain, se, ess = task_gains(weighted)
    if not np.isfinite(gain).all():  # the policy takes none of the actions that were logged
        return np.full((len(gain), 4), np.nan)
    shrunken = shrink(gain, se, level=level)
    order = np.asarray(weighted.moments.keys.require(np.arange(len(first.keys))))
    return np.stack([shrunken.value, shrunken.low, shrunken.high, ess], axis=1)[order]


def _limits(
    subject: Subject, propensities: Propensities, reacting: Reacting, overlap: Overlap, model: ByModel
) -> tuple[str, ...]:
    findings = [finding(subject, reacting.reacted())]
    if overlap == "no":
        findings.append(reacting.misfit(noise_variance(subject.posterior) ** 0.5, model.incumbent.sd))
    limits = [*(finding for finding in findings if finding is not None), *propensities.findings]
    if isinstance(subject.policy, GatedPolicy):
        limits.extend(finding for finding in subject.policy.limits if finding not in limits)
    return tuple(limits)


def subject_of(learner: Any) -> Subject:
    """Return the policy of a fitted learner, with functions that learn it again."""
    hierarchy, hyper_uncertainty = learner.hierarchy_, learner._hyper_uncertainty
    settings = learner._settings_in_force()

    return Subject(
        policy=learner.policy_,
        moments=learner.moments_,
        posterior=learner.posterior_,
        condition=lambda moments: condition_learned(moments, hierarchy, hyper_uncertainty),
        relearn=lambda moments, features: (
            learner.learned_from(moments, features, learner._task_levels, settings, hierarchy).posterior
        ),
        by_words=all(
            isinstance(learner.get_params().get(name, ""), str | None)
            for name in ("task_cov", "hyper", "known", "mu")
        ),
        sketch=learner._sketch,
        logging=learner.logging_,
        placed=bool(getattr(hierarchy, "levels", ())) or getattr(hierarchy, "metadata", None) is not None,
        correlation=learner.cluster_correlation_,
        sites=_sites_of(learner),
        drifting=learner.drift_ is not None and learner.drift_.present,
    )


def _sites_of(learner: Any) -> AsSites | None:
    """Return the function that turns batches into those of pseudo-rewards; None of Gaussian rewards."""
    rule = learner.sites_
    if rule is None:
        return None
    table, features = learner.posterior_.table(), learner.features_
    return lambda batch, codes: as_sites(batch, codes, rule, table, features)


def evaluated(
    subject: Subject | SubjectInShards,
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
    subject : Subject or SubjectInShards
    log : anything that ``open_log`` takes
    roles : Roles
    options : mapping
        Fields of :class:`Options`.
    rejects : Rejects, optional
        Collects the rows that cannot be used.
    usual_time : str, optional
        The column of times of the log of the fit, which is read where this log has it and ``roles`` name none.

    Raises
    ------
    InputError
        An option is unknown; otherwise as :func:`evaluate`.
    """
    unknown = [name for name in options if name not in Options.__slots__]
    if unknown:
        raise InputError(
            f"evaluate() has no option {unknown[0]!r}. Its options are {list(Options.__slots__)}."
        )
    settings = Options(**options)
    if settings.propensities in ("estimated", "none"):
        roles = replace(roles, pscore=None)
    source = opened_requests(log, subject.features, rereadable=True, lenient=rejects is not None)
    check_listed(source.schema, roles.eligible, source.name)
    if roles.time is None and usual_time in source.schema.names:
        roles = replace(roles, time=usual_time)
    source = with_times(source, roles.time, lenient=rejects is not None)
    read(source, roles, rejects=rejects)  # checks all columns before the first row is read
    if not isinstance(subject, Subject):
        subject = subject.of_tasks(_tasks_of(source, roles, rejects))
    passes = _Passes(source, roles, rejects)
    named = named_rivals(settings.compare, subject.features, roles)
    with located(source):  # of rows that the policy cannot judge
        evaluation = evaluate(
            subject, passes.batches, settings,
            pscored=roles.pscore is not None, named=named, clustered=roles.cluster is not None,
        )  # fmt: skip
    evaluation = replace(evaluation, checks=_placed(evaluation.checks, source))
    option_values = {name: getattr(settings, name) for name in Options.__slots__ if name != "compare"}
    origin = {"evaluated on": source.name, "options": option_values}
    evaluation = replace(evaluation, eligible=roles.eligible, origin=origin)
    if rejects is None:
        return evaluation
    return replace(evaluation, rejected=settle(rejects, roles, passes.n_rows, evaluation.keys))


def _placed(checks: PredictiveChecks | None, source: LogSource) -> PredictiveChecks | None:
    """Return the checks with the places of the rows of the largest residuals."""
    if checks is None:
        return None
    outliers = tuple(one._replace(place=place_of(source, one.row)) for one in checks.outliers)
    return replace(checks, outliers=outliers)


def _tasks_of(source: Any, roles: Roles, rejects: Rejects | None) -> Keys:
    """Return the tasks of a log, by a pass of its own."""
    keys = GrowingKeys()
    for batch in read_again(source, roles, rejects):
        keys.rows(batch.task)
    return keys.keys()


class _Passes:
    """Passes over one log; the first records the rows that cannot be used."""

    def __init__(self, source: Any, roles: Roles, rejects: Rejects | None) -> None:
        self._source, self._roles, self._rejects = source, roles, rejects
        self._begun, self.n_rows = False, 0

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of the log from its first row on, each row repeated by its weight."""
        return unit_rows(self._read())

    def _read(self) -> Iterator[Batch]:
        if self._rejects is None or self._begun:
            return read_again(self._source, self._roles, self._rejects)
        self._begun = True
        return self._first(self._rejects)

    def _first(self, rejects: Rejects) -> Iterator[Batch]:
        for batch in read(self._source, self._roles, rejects=rejects):
            self.n_rows += len(batch)
            yield batch
        if not self.n_rows:
            settle(rejects, self._roles, 0, Keys(np.zeros(0)))


def best_pessimism(
    subject: Subject, log: Any, roles: Roles, rejects: Rejects | None = None
) -> PessimismChoice:
    """Choose a pessimism by cross-fitted doubly robust values.

    Raises
    ------
    InputError
        The log has no overlap, so that importance weighting is not possible.
    """
    source = open_log(log, rereadable=True)
    features, per_action = subject.features, subject.moments.per_action
    roles = replace(roles, levels=(), metadata=())
    estimating = roles.pscore is None

    def rows() -> Iterator[Batch]:
        return unit_rows(read_again(source, roles, rejects))

    offset = subject.moments.offset
    correlation = subject.correlation
    first = first_pass(
        rows(),
        features,
        per_action=per_action,
        estimating=estimating,
        offset=offset,
        correlation=correlation,
        sites=subject.sites,
        positive=subject.in_two_parts,
    )
    propensities = propensities_of("auto", first, 0)
    if propensities.of is None:
        raise InputError(
            f"A pessimism cannot be chosen from this log. {propensities.refused} Give pessimism a number."
        )
    parts = fold_moments(
        rows(), features, FOLDS, 0,
        per_action=per_action, offset=offset, expected=int(first.counts.sum()), correlation=correlation,
        sites=subject.sites, positive=subject.in_two_parts,
    )  # fmt: skip
    actions = first.counts.sum(axis=0)
    of_fit = subject.sites is None and not subject.drifting
    fitted = cross_fit(subject, parts, actions, None if of_fit else first.moments)
    if fitted.refused is not None:
        raise InputError(
            f"A pessimism cannot be chosen from this log. {fitted.refused} Or give pessimism a number."
        )
    choice = choose_pessimism(fitted, rows(), features, propensities.of, first.keys)
    return replace(choice, limits=fitted.limits(features, actions))
