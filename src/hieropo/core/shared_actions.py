"""Coefficients for each action that borrow from all actions and all tasks: a tree over units (task, action).

    mu ~ N(mu_q, Sigma_q) or flat,   mu_a ~ N(mu, Sigma_1),   theta_sa ~ N(mu_a, Sigma_0),   r = (1, x)' theta_sa + e

All of dimension p, the features of one action; optionally, all actions of a task have an effect b_s ~ N(0, Sigma_b) in
common. :mod:`unit_laws` derives what the log says of them. Given the log two actions of a task are not independent, but
what a choice among actions needs is each unit's own law; the joint one, of d = K p coefficients, is made when it is
asked for.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np

from hieropo.core.estimation import Estimate, TaskCov
from hieropo.core.gaussian import Array, Gaussian, check_covariance, minus, plus
from hieropo.core.hierarchy import Hierarchy
from hieropo.core.ids import is_null
from hieropo.core.keys import Codes, Keys
from hieropo.core.likelihood import Criterion
from hieropo.core.packed import pack, packed_size, unpack
from hieropo.core.posterior import PosteriorTable, Unseen
from hieropo.core.tree_estimation import estimate_units
from hieropo.core.tree_likelihood import Tree
from hieropo.core.unit_laws import EffectLaws, Nodes, TreeLaws, UnitLaws
from hieropo.core.units import UnitMoments
from hieropo.errors import InputError, MismatchError, NumericalError, UnknownTaskError


@dataclass(frozen=True, slots=True, eq=False)
class SharedActions:
    """mu ~ hyper, mu_a ~ N(mu, Sigma_1), theta_sa ~ N(mu_a, Sigma_0); reward noise sigma^2.

    Parameters
    ----------
    hyper : Gaussian or None
        N(mu_q, Sigma_q) of mu in R^p; None is the flat one.
    action_cov : (p, p) array
        Sigma_1, how actions vary, in squared units of theta; singular and zero are allowed.
    task_cov : (p, p) array
        Sigma_0, how a task's coefficients of an action vary around that action's mean.
    noise_var : float
        sigma^2, variance of a reward of weight 1, in squared reward units.
    effect_cov : (p, p) array, optional
        Sigma_b of an effect b_s ~ N(0, Sigma_b) that all actions of a task have in common,
        theta_sa ~ N(mu_a + b_s, Sigma_0); default none.

    Raises
    ------
    InputError, MismatchError, NumericalError
        Not a covariance, dimensions differ, noise not positive.
    """

    hyper: Gaussian | None
    action_cov: Array
    task_cov: Array
    noise_var: float
    effect_cov: Array | None = None

    def __post_init__(self) -> None:
        actions = check_covariance(self.action_cov, "action_cov")
        tasks = Hierarchy(self.hyper, self.task_cov, self.noise_var)  # checks what a hierarchy has as well
        if actions.shape != tasks.task_cov.shape:
            raise MismatchError(f"action_cov has dimension {len(actions)}; task_cov has {tasks.dim}.")
        if self.effect_cov is not None:
            effects = check_covariance(self.effect_cov, "effect_cov")
            if effects.shape != tasks.task_cov.shape:
                raise MismatchError(f"effect_cov has dimension {len(effects)}; task_cov has {tasks.dim}.")
            object.__setattr__(self, "effect_cov", effects)
        object.__setattr__(self, "action_cov", actions)
        object.__setattr__(self, "task_cov", tasks.task_cov)
        object.__setattr__(self, "noise_var", tasks.noise_var)

    @property
    def unit_dim(self) -> int:
        """Features p of one action."""
        return int(self.task_cov.shape[0])


@dataclass(frozen=True, slots=True, eq=False)
class UnitTable:
    """Posteriors of all units side by side, as a policy reads them.

    Attributes
    ----------
    keys : Keys
        The m tasks.
    means : (m, K, p) array
    covs : (m, K, p (p + 1) / 2) array
        Upper triangles packed by columns.
    rows : (m,) int array
        Rows that each task has in the log.
    prior_means, prior_covs : (K, p), (K, p (p + 1) / 2) array
        The same of a task that the log does not have.
    """

    keys: Keys
    means: Array
    covs: Array
    rows: Codes
    prior_means: Array
    prior_covs: Array

    @property
    def dim(self) -> int:
        """Features d = K p of the feature map."""
        return int(self.prior_means.size)


class SharedPosterior:
    """Posterior of every unit, action and mu, given the log; made by :func:`condition_shared`.

    Attributes
    ----------
    moments : UnitMoments
    hierarchy : SharedActions
    hyper : Gaussian
        Of mu, in R^p.
    log_evidence : float
        log p(rewards | features, hierarchy); with a flat hyper-prior the REML one.
    """

    def __init__(self, moments: UnitMoments, hierarchy: SharedActions, laws: UnitLaws) -> None:
        self.moments = moments
        self.hierarchy = hierarchy
        self.hyper = laws.hyper.plus(moments.units.offset)
        noise = moments.n_rows * np.log(hierarchy.noise_var) - float(moments.units.log_precision.sum())
        self.log_evidence = laws.log_evidence - 0.5 * float(noise)
        self._laws = laws

    @property
    def dim(self) -> int:
        """Features d = K p of the feature map."""
        return self.moments.dim

    def action(self, action: int) -> Gaussian:
        """Return the law of mu_a, the population's coefficients of one action, in R^p.

        Raises
        ------
        InputError
            ``action`` is not in 0 .. K - 1.
        """
        code = self._code(action)
        mean, cov = (each[code] for each in self._laws.actions)
        return self._law(mean, cov).plus(self.moments.units.offset)

    def new_action(self) -> Gaussian:
        """Return the law of mu_a of an action that the feature map does not have."""
        return Gaussian.trusted(self.hyper.mean.copy(), self.hyper.cov + self.hierarchy.action_cov)

    def unit(self, task: object, action: int, *, unseen: Unseen = "prior") -> Gaussian:
        """Return the law of theta_sa, in R^p; a task that the log does not have gets :meth:`new_task`'s.

        Raises
        ------
        UnknownTaskError
            The task is not in the log and ``unseen`` is ``"error"``.
        InputError
            ``action`` is not in 0 .. K - 1; ``unseen`` is something else.
        """
        code, row = self._code(action), self._row(task, unseen)
        if row < 0:
            table = self.table()
            return self._law(table.prior_means[code], table.prior_covs[code])
        means, covs = self._laws.tasks(slice(row, row + 1))
        return self._law(means[0, code], covs[0, code]).plus(self.moments.units.offset)

    def _law(self, mean: Array, packed: Array) -> Gaussian:
        return Gaussian.trusted(mean.copy(), unpack(packed, mean.size))

    def task(self, task: object, *, unseen: Unseen = "prior") -> Gaussian:
        """Return the law of all d = K p coefficients of a task, those of action a at a p, ..., a p + p - 1.

        It costs O(d^2 p), and d^2 numbers; errors as :meth:`unit`.
        """
        row = self._row(task, unseen)
        return self.new_task() if row < 0 else self._laws.joint(row).plus(self.moments.offset)

    def new_task(self) -> Gaussian:
        """Return the law of all d coefficients of a task that has no rows."""
        return self._laws.new(self.hierarchy.task_cov).plus(self.moments.offset)

    def table(self) -> UnitTable:
        """Return the laws of all units, each on its own."""
        return self._table

    def along(self, vectors: Array, part: slice) -> tuple[Array, Array]:
        """Covariances (n, J, J) = own + shared shared' of v_js' theta_s, vectors (n, J, d), of some rows of the table.

        ``shared`` (n, J, d) is what tasks have in common: covariances between tasks are its products.
        """
        n, J, _ = vectors.shape
        return self._laws.along(vectors.reshape(n, J, self.moments.n_actions, -1), part)

    def dense(self) -> PosteriorTable:
        """Return the joint law of all d coefficients of every task: m d (d + 1) / 2 numbers.

        For what needs the covariances between actions of a task, such as :class:`SamplingPolicy`, where m d^2 is small.
        """
        laws = [self._laws.joint(row) for row in range(len(self.moments))]
        means = plus(np.array([law.mean for law in laws]).reshape(len(laws), self.dim), self.moments.offset)
        covs = np.array([pack(law.cov) for law in laws]).reshape(len(laws), packed_size(self.dim))
        return PosteriorTable(self.moments.keys, means, covs, self.moments.rows.sum(axis=1), self.new_task())

    @cached_property
    def _table(self) -> UnitTable:
        found, covs = self._laws.tasks(slice(0, len(self.moments)))
        means, between = self._laws.actions
        own = self.hierarchy.task_cov + (
            0.0 if self.hierarchy.effect_cov is None else self.hierarchy.effect_cov
        )
        rows, offset = self.moments.rows.sum(axis=1), self.moments.units.offset
        found, means = plus(found, offset), plus(means, offset)
        return UnitTable(self.moments.keys, found, covs, rows, means, between + pack(own))

    def _code(self, action: int) -> int:
        K = self.moments.n_actions
        if not 0 <= action < K:
            raise InputError(
                f"There is no action {action!r}: the code of an action is its place in the feature map, 0 .. {K - 1}, "
                "as action_codes(ids) gives it."
            )
        return int(action)

    def _row(self, task: object, unseen: Unseen) -> int:
        if unseen not in ("prior", "error"):
            raise InputError(f"unseen={unseen!r}; 'prior' or 'error' is needed.")
        row = self.moments.keys.find(task)
        if row < 0 and is_null(task):
            raise InputError(f"The task is {task!r}; a missing id is no new task. Name the task.")
        if row < 0 and unseen == "error":
            raise UnknownTaskError(self.moments.keys.unknown_message(task))
        return row

    def __repr__(self) -> str:
        return f"SharedPosterior({self.moments!r}, log evidence {self.log_evidence:.6g})"


def condition_shared(moments: UnitMoments, hierarchy: SharedActions) -> SharedPosterior:
    """Condition the hierarchy on the log, in O(m K p^3) time; the way down is taken when asked for.

    Parameters
    ----------
    moments : UnitMoments
        m tasks of K actions of p features; any rank, including units without rows.
    hierarchy : SharedActions
        Of the same p.

    Raises
    ------
    MismatchError
        Dimensions differ.
    NumericalError
        Sums that no rows can have; a flat hyper-prior and a direction of R^p that no rows show.
    """
    p = moments.unit_dim
    if p != hierarchy.unit_dim:
        raise MismatchError(
            f"The moments have {p} features an action, the hierarchy {hierarchy.unit_dim}. Both must come from one "
            "feature map."
        )
    refuse_negative(moments)
    units = Nodes.of(moments.units.sums, 1.0 / hierarchy.noise_var, hierarchy.task_cov)
    hyper = None if hierarchy.hyper is None else hierarchy.hyper.plus(minus(moments.units.offset))
    given = units, moments.rows.sum(axis=0), hyper, hierarchy.action_cov
    laws: UnitLaws = (
        TreeLaws(*given) if hierarchy.effect_cov is None else EffectLaws(*given, hierarchy.effect_cov)
    )
    return SharedPosterior(moments, hierarchy, laws)


def estimate_shared(
    moments: UnitMoments, task_cov: TaskCov = "auto", criterion: Criterion = "reml"
) -> tuple[Estimate, SharedActions]:
    """Estimate noise_var, task_cov and action_cov, in O(m K p^3) a pass.

    Parameters
    ----------
    moments : UnitMoments
    task_cov : {"auto", "full", "diag", "isotropic"}
        Shape of both covariances; "auto" takes "diag" or "full", as BIC says.
    criterion : {"reml", "ml"}

    Returns
    -------
    Estimate, SharedActions
        The estimate's hierarchy is that of units with actions as their level.

    Raises
    ------
    InputError, LogError, NumericalError, and warns
        As :func:`estimation.estimate`.
    """
    if str(task_cov) not in get_args(TaskCov):
        raise InputError(
            f"With hyper='shared' task_cov can be {', '.join(map(repr, get_args(TaskCov)))}; got {task_cov!r}."
        )
    found = estimate_units(moments.units, unit_tree(moments), task_cov, criterion)
    hierarchy = SharedActions(None, found.covs[1], found.covs[0], found.noise_var)
    nothing = Hierarchy(None, found.covs[0], found.noise_var)
    return Estimate(nothing, criterion, found.fit, found.compared), hierarchy


def unit_tree(moments: UnitMoments) -> Tree:
    """Return the tree of the units that have rows, for learning Sigma_0 and Sigma_1 by :mod:`tree_estimation`.

    Its levels are units and actions, so that the covariances found are ``task_cov`` and ``action_cov``, in this order.
    """
    seen = np.flatnonzero(moments.units.rows)
    parents = seen % moments.n_actions, np.zeros(moments.n_actions, dtype=np.int64)
    log_precision = float(moments.units.log_precision.sum())
    return Tree(
        moments.units.sums[seen], moments.unit_dim, parents, moments.n_rows, log_precision,
        names=("task_cov", "action_cov"), lowest="action of a task", remedy="use hyper='flat'",
    )  # fmt: skip


def refuse_negative(moments: UnitMoments) -> None:
    """Raise where the moments of a unit are no sums of rows, since more was subtracted than added."""
    p = moments.unit_dim
    diagonal = moments.units.sums[:, [packed_size(j + 1) - 1 for j in range(p + 2)]]
    bad = np.flatnonzero((moments.units.rows < 0) | (diagonal < 0).any(axis=1))
    if bad.size:
        row, action = divmod(int(bad[0]), moments.n_actions)
        raise NumericalError(
            f"The moments of action {action} of task {moments.tasks[row : row + 1].tolist()[0]!r} are no sums of rows: "
            f"{moments.units.rows[bad[0]]} rows, smallest sum of squares {diagonal[bad[0]].min():.3g}. More was "
            "subtracted than was ever added; subtract only rows that are in."
        )
