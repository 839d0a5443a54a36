"""From moments to a posterior: the hierarchy is given, or learned in one of three forms."""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hieropo.errors import InputError, NumericalError
from hieropo.estimation.conditioning import condition_learned
from hieropo.estimation.crossed.drift import DriftSetting
from hieropo.estimation.crossed.integration import integrate_crossed
from hieropo.estimation.crossed.kinds import TaskKindsSetting, check_task_kinds
from hieropo.estimation.crossed.mixture import CrossedHierarchies, CrossedMixture, SpreadsSetting
from hieropo.estimation.crossed.shapes import Shapes
from hieropo.estimation.crossed.short_logs import noise_identified
from hieropo.estimation.crossed.two_part import integrate_two_part
from hieropo.estimation.hyper.uncertainty import HyperUncertainty, Learned, Uncertainty, condition_with, learn
from hieropo.estimation.reml import Estimate, TaskCov
from hieropo.estimation.sites import check_likelihood, check_roles_of_likelihood, check_settings_of_likelihood
from hieropo.estimation.tree_estimation import estimate_levels
from hieropo.features.maps import FeatureMap
from hieropo.features.per_action import Crossed
from hieropo.logging_policy.incumbents import Logging, informed_metadata
from hieropo.model.crossed.hierarchy import CrossedHierarchy
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Grouping, Hierarchy
from hieropo.model.in_shards import refuse_groups
from hieropo.model.metadata import Metadata
from hieropo.model.moved_priors import (
    moved_crossed,
    recentred_coefficients,
    recentred_covariance,
    recentred_gaussian,
    recentred_hierarchy,
)
from hieropo.model.task_levels import TaskLevels
from hieropo.moments.in_shards import AnyMoments
from hieropo.moments.statistics import Moments
from hieropo.moments.units import one_action
from hieropo.rows.batches import Roles

Hyper = Gaussian | Literal["flat"]
TaskCovariance = TaskCov | Literal["block", "crossed"] | NDArray[Any]
_SHAPES = (*get_args(TaskCov), "block", "crossed")


def _is_one_of(value: Any, words: tuple[str, ...]) -> bool:
    return isinstance(value, str) and value in words


def _quoted(choices: Any) -> str:
    return ", ".join(map(repr, get_args(choices)))


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """The user's settings of the hierarchy; see :class:`learners.HierOPO`. ``mu`` is that of :class:`OracleOPO`.

    ``equal_noise`` keeps the noise of all tasks equal: of rows that share a cause no other noise is derived. ``shapes``
    are relative sizes of coefficients and noise under the crossed prior, where they are known from a fit before.
    """

    task_cov: Any
    hyper: Any
    uncertainty: Uncertainty
    known: Hierarchy | CrossedHierarchy | None
    logging: Logging = "unknown"
    mu: Any = None
    spreads: SpreadsSetting = "one"
    task_kinds: TaskKindsSetting = "one"
    drift: DriftSetting = "auto"
    equal_noise: bool = False
    likelihood: str = "gaussian"
    shapes: Shapes | None = None

    def check(self) -> None:
        """Raise InputError for an unknown choice, before a long pass over a log.

        Raises
        ------
        InputError
            Names the setting.
        """
        if not (self.known is None or isinstance(self.known, Hierarchy | CrossedHierarchy)):
            raise InputError(
                f"known={self.known!r}; a Hierarchy or a CrossedHierarchy is needed, or None to learn one from the "
                "log."
            )
        self._check_shared()
        if not (isinstance(self.hyper, Gaussian) or _is_one_of(self.hyper, ("flat",))):
            raise InputError(f"hyper={self.hyper!r}; 'flat' or a Gaussian is needed.")
        if self.uncertainty not in get_args(Uncertainty):
            raise InputError(f"uncertainty={self.uncertainty!r}; one of {_quoted(Uncertainty)} is needed.")
        if self.task_cov is None or (isinstance(self.task_cov, str) and not self._has_shape(*_SHAPES)):
            raise InputError(
                f"task_cov={self.task_cov!r}; one of {', '.join(map(repr, _SHAPES))}, or a (d, d) array that is "
                "known up to its scale, is needed."
            )
        if self.logging not in get_args(Logging):
            raise InputError(f"logging={self.logging!r}; one of {_quoted(Logging)} is needed.")
        self._check_together()
        if self.logging == "frozen":
            try:
                self.check_placed()
            except InputError as error:
                error.add_note("logging='frozen' takes the shares of actions as metadata of each task.")
                raise

    def _check_shared(self) -> None:
        if _is_one_of(self.hyper, ("shared",)):
            raise InputError(
                "hyper='shared' is gone: the crossed prior (task_cov='crossed', the default where each action has "
                "coefficients of its own) lets actions borrow from each other. Leave hyper out."
            )

    def _check_together(self) -> None:
        """Raise InputError for choices that do not go together, and for spreads, kinds and drift that are none."""
        check_task_kinds(self.task_kinds)
        if self.spreads not in get_args(SpreadsSetting):
            raise InputError(f"spreads={self.spreads!r}; one of {_quoted(SpreadsSetting)} is needed.")
        if not (self.drift is None or _is_one_of(self.drift, ("auto",))):
            raise InputError(f"drift={self.drift!r}; 'auto' or None is needed.")
        own_prior = isinstance(self.hyper, Gaussian)
        check_likelihood(self.likelihood, given=own_prior or self.known is not None)
        check_settings_of_likelihood(
            self.likelihood, spreads=self.spreads, task_kinds=self.task_kinds, logging=self.logging
        )
        if self.known is not None and own_prior:
            raise InputError(
                "known=Hierarchy(...) holds its own hyper-prior: leave hyper out, or leave known out and let the "
                "rest be learned."
            )
        if self.uncertainty in ("integrated", "first-order") and (own_prior or self.known is not None):
            raise InputError(
                f"uncertainty={self.uncertainty!r} is for a hierarchy that is learned with hyper='flat'; with "
                "known=Hierarchy(...) or a Gaussian as hyper the hierarchy is taken as known: leave "
                "uncertainty at 'auto', or say 'plug-in'."
            )
        if self._has_shape("crossed"):
            for setting, given in (
                ("known=Hierarchy(...)", isinstance(self.known, Hierarchy)),
                ("a Gaussian as hyper", own_prior),
                (f"uncertainty={self.uncertainty!r}", self.uncertainty in ("first-order", "plug-in")),
            ):
                if given:
                    raise InputError(
                        f"task_cov='crossed' does not go with {setting}: its standard deviations are learned, and "
                        "always integrated. Leave one of the two out."
                    )

    def check_roles(self, roles: Roles) -> None:
        """Raise InputError for settings that do not use the columns of a log.

        Raises
        ------
        InputError
            Names the setting.
        """
        if roles.levels or roles.metadata:
            self.check_placed()
        check_roles_of_likelihood(self.likelihood, roles)
        if roles.sampling_weight is not None:
            self._check_sampled()

    def _check_sampled(self) -> None:
        """Raise InputError for settings that are not derived for rows with sampling weights."""
        for setting, given in (
            ("task_cov='crossed'", self._has_shape("crossed")),
            ("known=CrossedHierarchy(...)", isinstance(self.known, CrossedHierarchy)),
            ("logging='frozen'", self.logging == "frozen"),
            (f"uncertainty={self.uncertainty!r}", self.uncertainty in ("integrated", "first-order")),
        ):
            if given:
                raise InputError(
                    f"{setting} does not go with sampling_weight: the robust standard errors of rows that were kept "
                    "by chance are derived for two levels whose hierarchy is taken as known. Leave the setting out; "
                    "or, where rows were kept whatever came of them, leave sampling_weight out."
                )

    def check_placed(self) -> None:
        """Raise InputError for settings that do not use levels and metadata.

        Raises
        ------
        InputError
            Names the setting.
        """
        if self.known is not None:
            raise InputError(
                "known=Hierarchy(...) holds its own levels and metadata: name no columns for them, or let them be "
                "learned."
            )
        if not self._has_shape("crossed", *get_args(TaskCov)):
            raise InputError(
                f"With levels or metadata task_cov can be 'crossed' or {_quoted(TaskCov)}; got {self._shape()}."
            )
        if self.uncertainty == "first-order":
            raise InputError(
                "With levels or metadata uncertainty can be 'auto', 'integrated' or 'plug-in': the first-order "
                "correction is for two levels without metadata."
            )

    def check_features(self, features: FeatureMap) -> None:
        """Raise InputError for a feature map without coefficients per action, where these are needed.

        Raises
        ------
        InputError
            Names the setting.
        """
        given = isinstance(self.known, CrossedHierarchy)
        if not given and (self.known is not None or not self._has_shape("block", "crossed")):
            return
        if one_action(features) is None or features.actions is None:
            setting = "known=CrossedHierarchy(...)" if given else f"task_cov={self.task_cov!r}"
            raise InputError(
                f"{setting} is for actions with coefficients of their own, as features='per-action' or 'indicator' "
                f"have; this learner has {features!r}. Name a column of actions, or leave {setting} out."
            )

    def coefficients(self, features: FeatureMap) -> int:
        """Return the number of coefficients of each action that its own rows alone identify; 0 where it borrows."""
        unit_map = one_action(features)
        shared = unit_map is None or self.known is not None or isinstance(self.hyper, Gaussian)
        return 0 if shared else unit_map.dim  # type: ignore[union-attr]  # own is a map

    def recentred(self, first: FeatureMap, second: FeatureMap) -> "Settings":
        """Return the settings with their coefficients of one map moved to those of an equivalent map.

        Settings that do not fit the map stay as they are; they are refused where they are used.
        """
        d, known, hyper, task_cov, mu = first.dim, self.known, self.hyper, self.task_cov, self.mu
        if isinstance(known, Hierarchy) and known.dim == d:
            known = recentred_hierarchy(known, first, second)
        elif isinstance(known, CrossedHierarchy):
            known = moved_crossed(known, first, second)
        if isinstance(hyper, Gaussian) and hyper.dim % d == 0:
            hyper = recentred_gaussian(hyper, first, second, crossed=self.logging != "frozen")
        if not (task_cov is None or isinstance(task_cov, str)) and np.shape(task_cov) == (d, d):
            task_cov = recentred_covariance(task_cov, first, second)
        if mu is not None and np.shape(mu) == (d,):
            mu = recentred_coefficients(mu, first, second)
        return replace(self, task_cov=task_cov, hyper=hyper, known=known, mu=mu)

    def _has_shape(self, *shapes: str) -> bool:
        return _is_one_of(self.task_cov, shapes)

    def _shape(self) -> str:
        return repr(self.task_cov) if isinstance(self.task_cov, str) else "an array"

    def crossed(self, features: FeatureMap, roles: Roles) -> bool:
        """Return True if the crossed prior is taken: always where it is named or given, by default where it is derived.

        That is where each of several actions has coefficients of its own, few enough of them where tasks are in groups,
        nothing of the hierarchy is given, its uncertainty is to be integrated, and rows were not kept by chance.

        Raises
        ------
        InputError
            It is named, and groups of tasks would have too many coefficients.
        """
        if isinstance(self.known, CrossedHierarchy):
            return True
        size = _group_size(features, roles)
        if self._has_shape("crossed"):
            if size > _WIDEST_GROUP:
                raise InputError(
                    f"Each group of {list(roles.levels)} has {size} coefficients under the crossed prior, those of "
                    "all actions together, of which dense matrices are made for every group: at most "
                    f"{_WIDEST_GROUP} are possible. Name fewer actions, context columns or metadata, or leave levels "
                    "or task_cov='crossed' out."
                )
            return True
        many_actions = one_action(features) is not None and len(features.actions or ()) > 1
        learned = self.known is None and not isinstance(self.hyper, Gaussian)
        integrated = self.uncertainty in ("auto", "integrated") and not roles.sampling_weight
        derived = many_actions and size <= _WIDEST_GROUP
        return derived and learned and integrated and self._has_shape("auto")


_WIDEST_GROUP = 64  # coefficients of a group, of which dense matrices are made for every hierarchy of a grid


def _group_size(features: FeatureMap, roles: Roles) -> int:
    """Return the number of coefficients of a group of tasks under the crossed prior; 0 without groups."""
    unit_map = one_action(features)
    if unit_map is None or not roles.levels:
        return 0
    return (len(features.actions or ()) + 1) * unit_map.dim * (1 + len(roles.metadata))


@dataclass(frozen=True, slots=True, eq=False)
class Learning:
    """A learned or given hierarchy, and its posterior.

    Attributes
    ----------
    hierarchy : Hierarchy, CrossedHierarchies, or CrossedHierarchy where one was given
    posterior : Posterior or one with the same views
    estimate : Estimate or None
        None where the hierarchy was given.
    learned : Learned or None
        With the uncertainty of the hierarchy, where it was learned for one level or a tree of tasks.
    """

    hierarchy: Hierarchy | CrossedHierarchies | CrossedHierarchy
    posterior: Any
    estimate: Estimate | None = None
    learned: Learned | None = None

    @property
    def noise_identified(self) -> bool:
        """False where the log does not identify the noise, so that a learned hierarchy assumes it."""
        if isinstance(self.posterior, CrossedMixture):
            return noise_identified(self.posterior.moments)
        return self.learned is None or self.learned.noise_identified

    @property
    def hyper_uncertainty(self) -> HyperUncertainty:
        """The uncertainty of the hierarchy."""
        return None if self.learned is None else self.learned.hyper_uncertainty


def identifiability_inputs(moments: Moments, features: FeatureMap) -> tuple[Moments, FeatureMap]:
    """Return moments and features whose coefficients the rows alone have to identify.

    Where actions share a prior, all rows together have to identify each of the p features.
    """
    if not moments.per_action:
        return moments, features
    assert isinstance(features, Crossed)
    return moments.pooled(), replace(features, actions=("any action",))


def given(moments: AnyMoments, hierarchy: Hierarchy | CrossedHierarchy) -> Learning:
    """Return a known hierarchy and its posterior."""
    return Learning(hierarchy, condition_learned(moments, hierarchy, None))


def learning(
    moments: AnyMoments,
    task_levels: TaskLevels,
    settings: Settings,
    features: FeatureMap,
    similar: CrossedHierarchies | None = None,
) -> Learning:
    """Return the hierarchy that the settings ask for, learned from the moments, and its posterior.

    Parameters
    ----------
    moments : Moments
        Per action for the crossed prior.
    task_levels : TaskLevels
        Levels and metadata of the tasks.
    settings : Settings
    features : FeatureMap
    similar : CrossedHierarchies, optional
        Of a log that shares most rows, as :func:`integrate_crossed` takes them.

    Raises
    ------
    InputError, LogError, NumericalError
        Settings do not fit together; what :func:`reml.estimate` refuses.
    """
    if settings.known is not None:
        return given(moments, settings.known)
    if moments.per_action:
        levels = tuple(Grouping(parent, name) for name, parent in task_levels.levels().items())
        metadata = _known_of_tasks(moments, task_levels, settings, features)
        if isinstance(moments, Moments) and moments.positive is not None and not levels and metadata is None:
            two_part = integrate_two_part(moments, similar)
            return Learning(two_part, condition_learned(moments, two_part, None))
        hierarchies = integrate_crossed(
            moments,
            settings.shapes,
            levels=levels,
            metadata=metadata,
            similar=similar,
            equal_noise=settings.equal_noise,
            spreads=settings.spreads,
            task_kinds=settings.task_kinds,
        )
        return Learning(hierarchies, condition_learned(moments, hierarchies, None))
    learned = _learned(moments, task_levels, settings, features)
    if isinstance(settings.hyper, Gaussian):
        hierarchy = replace(learned.estimate.hierarchy, hyper=settings.hyper)
        return Learning(hierarchy, condition_with(moments, hierarchy, None), learned.estimate)
    return Learning(learned.hierarchy, learned.posterior, learned.estimate, learned)


def _known_of_tasks(
    moments: AnyMoments, task_levels: TaskLevels, settings: Settings, features: FeatureMap
) -> Metadata | None:
    """Return metadata of the tasks: columns of the log, or what the choices of an incumbent that was frozen say."""
    metadata = task_levels.metadata()
    if settings.logging != "frozen":
        return metadata
    assert isinstance(moments, Moments)  # learners refuse it in shards
    if metadata is not None:
        raise InputError(
            "logging='frozen' takes the shares of actions as metadata, and cannot be combined with columns of "
            "metadata yet: leave one of them out."
        )
    return informed_metadata(moments, features)


def _learned(
    moments: AnyMoments, task_levels: TaskLevels, settings: Settings, features: FeatureMap
) -> Learned:
    levels, shape = task_levels.levels(), settings.task_cov
    metadata = _known_of_tasks(moments, task_levels, settings, features)
    apart = one_action(features) is not None and features.actions is not None
    divisible = isinstance(shape, str) and shape in ("auto", "block")
    blocks = len(features.actions or ()) if apart and divisible else None
    uncertainty: Uncertainty = "plug-in" if isinstance(settings.hyper, Gaussian) else settings.uncertainty
    if not levels and metadata is None:
        given = shape if isinstance(shape, str) else np.asarray(shape, dtype=np.float64)
        return learn(moments, given, uncertainty=uncertainty, blocks=blocks)  # type: ignore[arg-type]
    if not isinstance(moments, Moments):
        refuse_groups(tuple(levels), metadata)
    assert isinstance(moments, Moments)
    try:
        estimate = estimate_levels(moments, shape, levels=levels, metadata=metadata)
    except NumericalError as error:
        if metadata is not None:
            error.add_note(
                f"The features from number {moments.dim} on say how the {moments.dim} coefficients move with the "
                f"metadata {list(metadata.names)}: each action needs rows of tasks that differ in them."
            )
        raise
    return learn(moments, shape, uncertainty=uncertainty, estimated=estimate)
