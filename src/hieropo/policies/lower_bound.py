"""A policy that chooses the action with the largest lower confidence bound."""

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array, Codes, Mask
from hieropo._utils.brief import brief
from hieropo._utils.text import counted
from hieropo._utils.threads import in_threads, processors
from hieropo.errors import HieropoError, InputError, MismatchError
from hieropo.features.maps import FeatureMap
from hieropo.model.table import HasTable, PosteriorTable
from hieropo.policies.candidates import ALL, Candidates, feature_array
from hieropo.policies.doubts import block_rows, ranked, scores
from hieropo.policies.marginals import (
    RowNumbers,
    TaskMarginals,
    row_number,
)
from hieropo.policies.sampling import SampledChoice, SampledChoices, SamplingPolicy
from hieropo.rows.keys import Unseen

__all__ = ["Choice", "Choices", "LCBPolicy", "SampledChoice", "SampledChoices", "SamplingPolicy"]


_PESSIMISM = 0.1  # alpha in the experiments of the paper
_BLOCK = 2**18  # doubles of phi that one piece of a batch holds
_THREADED = 2**22  # doubles of phi from which on a second thread is worth starting


class Choice(NamedTuple):
    """The action chosen in one request.

    Parameters
    ----------
    action : id
        None where the policy's feature map has no list of actions.
    index : int
        Its position among the candidates.
    lower_bound, mean, sd : float
        ``lower_bound = mean - pessimism * sd`` of its expected reward, in reward units.
    """

    action: Any
    index: int  # type: ignore[assignment]  # hides tuple.index, which a choice does not need
    lower_bound: float
    mean: float
    sd: float


class Choices(NamedTuple):
    """The best ``top`` candidates of each of n requests, best first.

    Parameters
    ----------
    index : (n, top) int
        -1 where a request has fewer eligible candidates.
    lower_bound, mean, sd : (n, top) float
        In reward units; NaN where ``index`` is -1.
    """

    index: Codes  # type: ignore[assignment]
    lower_bound: Array
    mean: Array
    sd: Array

    def __repr__(self) -> str:
        return brief(self)

    def part(self, rows: slice) -> "Choices":
        """Return views of the choices of some requests."""
        return Choices(self.index[rows], self.lower_bound[rows], self.mean[rows], self.sd[rows])


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class LCBPolicy:
    """Choose the action whose expected reward has the largest lower confidence bound.

    With ``theta_s ~ N(mean_s, cov_s)`` given the log, the bound of a candidate with features phi (d,) is::

        phi' mean_s - pessimism * sqrt(phi' cov_s phi)

    as in the paper, whose alpha is ``pessimism``. Ties go to the first eligible candidate. A request gets the same
    choice alone and in a batch, to the last bit.

    Parameters
    ----------
    source : Posterior or PosteriorTable
        With a table per action, where each action has coefficients of its own, a candidate's bound takes O(p^2), not
        O(d^2).
    features : FeatureMap, optional
        Makes the candidates of a context; without it requests bring phi along.
    pessimism : float, optional
        Default 0.1, as in the paper's experiments. Negative values give an upper bound.
    level : float, optional
        In place of ``pessimism``: the one-sided credible level in (0, 1) of a single bound,
        ``P(phi' theta_s >= bound | log) = level``; ``pessimism`` is then the normal quantile of ``level``.
        It need not hold for many bounds at once, such as that of the chosen action.
    unseen : "prior" or "error"
        Behaviour for a task that is not in the table.

    Raises
    ------
    InputError
        Both ``pessimism`` and ``level``, or one of them out of range.
    MismatchError
        The feature map is not that of the posterior, or has another dimension.
    """

    table: PosteriorTable
    features: FeatureMap | None
    pessimism: float
    unseen: Unseen
    _marginals: TaskMarginals
    _candidates: Candidates

    def __init__(
        self,
        source: PosteriorTable | HasTable,
        features: FeatureMap | None = None,
        *,
        pessimism: float | None = None,
        level: float | None = None,
        unseen: Unseen = "prior",
    ) -> None:
        put = object.__setattr__
        put(self, "pessimism", checked_pessimism(pessimism, level))
        marginals = TaskMarginals(source, unseen)
        put(self, "_marginals", marginals)
        put(
            self,
            "_candidates",
            Candidates(features, marginals.dim, marginals.fingerprint, marginals.n_separate),
        )
        put(self, "table", marginals.table)
        put(self, "features", features)
        put(self, "unseen", unseen)

    @property
    def ungated(self) -> "LCBPolicy":
        """Return this policy, as a policy with a gate returns the one without it."""
        return self

    def __repr__(self) -> str:
        return (
            f"LCBPolicy(<{counted(len(self.table.keys), 'task')}, dimension {self._marginals.dim}>, {self.features!r}, "
            f"pessimism={self.pessimism!r}, unseen={self.unseen!r})"
        )

    def lower_bound(self, task: Any, phi: ArrayLike) -> Array:
        """Return the lower bound of the expected reward for each phi (..., d) in one task, shape (...).

        Raises
        ------
        UnknownTaskError, LogError
            The task is unknown and ``unseen`` is "error"; an entry of phi is not finite.
        InputError
            The policy holds a separate marginal for each action, and a phi has features of two actions.
        """
        array = feature_array(phi)
        if array.ndim == 0 or array.shape[-1] != self._marginals.dim:
            raise MismatchError(
                f"phi has shape {array.shape}, and this policy has {self._marginals.dim} features. Give phi with a "
                f"last axis of length {self._marginals.dim}."
            )
        rows = blocks = array.reshape(-1, self._marginals.dim)
        marginal = self._marginals.find(task)
        if self._marginals.n_separate:
            actions, blocks = self._candidates.action_blocks(rows)
            marginal = marginal.of_actions(actions)
        bound, mean, sd = np.empty((3, len(rows)))
        self._marginals.loops().score(*marginal, blocks, self.pessimism, bound, mean, sd)
        if np.isnan(bound).any():
            raise self._candidates.refusal(f"Task {task!r}", rows, ALL)
        return bound.reshape(array.shape[:-1])

    def choose(
        self,
        task: Any,
        context: ArrayLike | None = None,
        *,
        phi: ArrayLike | None = None,
        eligible: Any = None,
    ) -> Choice:
        """Choose an action for one request.

        Parameters
        ----------
        task : id
        context : (c,), optional
            The feature map makes the candidates from it, one for each of its actions.
        phi : (K, d), optional
            The features of the candidates, in place of ``context``.
        eligible : (K,) bool, or sequence of action ids, optional
            Default all. Booleans are always a mask. Only eligible candidates need finite features.

        Raises
        ------
        UnknownTaskError, UnknownActionError, LogError, InputError, NumericalError
            The task is unknown and ``unseen`` is "error"; an eligible id is not an action; no action is eligible, or a
            feature of an eligible candidate is not finite; shapes do not fit; a lower bound overflows.
        """
        candidates = self._candidates
        if context is not None and phi is None and candidates.doubts(np.asarray(context)[None])[0].size:
            return self._choose_one_in_doubt(task, np.asarray(context)[None], eligible)
        means, covs, row = self._marginals.find(task)
        rows = candidates.one(context, phi)
        mask = ALL if eligible is None else candidates.mask(eligible, candidates.count(rows))
        index, bound, mean, sd = self._marginals.loops().choose_one(
            means, covs, row, rows, mask, self.pessimism
        )
        if index < 0:
            raise candidates.refusal(f"The request of task {task!r}", rows, mask)
        actions = candidates.actions
        return Choice(None if actions is None else actions[index], index, bound, mean, sd)

    def choose_many(  # noqa: PLR0913 - what a caller with many requests knows of them
        self,
        tasks: Any,
        context: ArrayLike | None = None,
        *,
        phi: ArrayLike | None = None,
        eligible: ArrayLike | None = None,
        top: int = 1,
        threads: int | None = None,
        first_row: RowNumbers = 0,
        located: Codes | None = None,
        refused: dict[int, HieropoError] | None = None,
    ) -> Choices:
        """Choose an action for each of n requests, or rank the best ``top`` candidates of each.

        Parameters
        ----------
        tasks : (n,) ids
        context : (n, c), optional
        phi : (n, K, d), optional
            In place of ``context``.
        eligible : (n, K) bool, optional
        top : int
        threads : int, optional
            Default: one for small batches, else one for each processor; the choices do not depend on it.
        first_row : int or (n,) array
            Number of the first request, where these are a part of a longer table, from which messages count rows; or
            the numbers of all.
        located : (n,) int, optional
            The tasks' rows in the table, where ``table.keys.locate(tasks)`` has found them already.
        refused : dict, optional
            Takes the error of each request for which no candidate can be chosen, by its position; its outputs are -1
            and NaN. Default: the first such error is raised.

        Raises
        ------
        UnknownTaskError, LogError, InputError, NumericalError
            As :meth:`choose`; the message names the row.
        """
        if top < 1:
            raise InputError(f"top={top} asks for no candidate. Set it to 1 or more.")
        rows = self._marginals.locate(tasks, first_row, located)
        n = rows.size
        make, K = self._candidates.supply(context, phi, n, row_number(first_row, 0) if n else 0)
        mask = self._candidates.masks(eligible, n, K)
        out = Choices(np.full((n, top), -1, dtype=np.int64), *np.full((3, n, top), np.nan))
        size = K * self._marginals.means.shape[-1]
        step = max(1, _BLOCK // max(size, 1))

        def choose_block(start: int) -> list[tuple[int, HieropoError]]:
            part = slice(start, start + step)
            block = _Block(rows[part], make(part), mask[part], out.part(part))
            numbers = first_row[part] if isinstance(first_row, np.ndarray) else first_row + start
            return [
                (start + row, error) for row, error in self._choose_block(block, numbers, refused is not None)
            ]

        if threads is None:
            threads = 1 if n * size < _THREADED else processors()
        for errors in in_threads(choose_block, range(0, n, step), threads):
            if errors and refused is None:
                raise errors[0][1]
            if refused is not None:
                refused.update(errors)
        if context is not None:
            self._choose_in_doubt(rows, context, mask, out)
        return out

    def _choose_one_in_doubt(self, task: Any, context: Array, eligible: Any) -> Choice:
        """Choose for one request with values that are not known."""
        candidates = self._candidates
        mask = None if eligible is None else candidates.mask(eligible, len(candidates.actions or ()))[None]
        choices = self.choose_many([task], context, eligible=mask)
        index = int(choices.index[0, 0])
        actions = candidates.actions
        return Choice(
            None if actions is None else actions[index], index, *(float(a[0, 0]) for a in choices[1:])
        )

    def _choose_in_doubt(self, rows: Codes, context: ArrayLike, mask: Mask, out: Choices) -> None:
        """Choose again where a context has values that are not known: by bounds with their covariance.

        Requests without an eligible candidate are left as they are.
        """
        marginals, candidates = self._marginals, self._candidates
        doubtful, roots = candidates.doubts(context)
        step = block_rows(len(candidates.actions or ()), marginals.dim // max(marginals.n_separate, 1))
        for start in range(0, doubtful.size, step):
            part = doubtful[start : start + step]
            mean, cov = marginals.of_rows(rows[part])
            phi = candidates.make(np.asarray(context, dtype=np.float64)[part])
            found = scores(mean, cov, phi, candidates.along(roots[start : start + step]), self.pessimism)
            index, listed = ranked(found, mask[part] if len(mask) else mask, out.index.shape[1])
            chosen = index[:, 0] >= 0
            for array, values in zip(out, (index, *listed), strict=True):
                array[part[chosen]] = values[chosen]

    def _choose_block(
        self,
        block: "_Block",
        numbers: RowNumbers,
        go_on: bool,  # noqa: FBT001
    ) -> list[tuple[int, HieropoError]]:
        """Choose for a block of requests; return the errors of those for which it cannot, only the first or all."""
        errors: list[tuple[int, HieropoError]] = []
        first = 0
        while (bad := self._choose_rows(block.rows_from(first))) >= 0:
            bad += first
            mask = block.mask[bad] if len(block.mask) else ALL
            place = f"Row {row_number(numbers, bad)}"
            errors.append((bad, self._candidates.refusal(place, block.features[bad], mask)))
            if not go_on:
                break
            for (
                array
            ) in block.out:  # the loop stopped at this request; those before it are chosen again without it
                array[first : bad + 1] = -1 if array.dtype.kind == "i" else np.nan
            self._choose_rows(block.rows_from(first, bad))
            first = bad + 1
        return errors

    def _choose_rows(self, block: "_Block") -> int:
        """Choose for a block; return the first request for which no candidate can be chosen, or -1."""
        marginals = self._marginals
        return int(
            marginals.loops().choose(
                marginals.means, marginals.covs, *marginals.prior[:2], block.rows, block.features, block.mask,
                self.pessimism, *block.out,
            )
        )  # fmt: skip


class _Block(NamedTuple):
    """Consecutive requests: their rows in the table, features, eligibility and outputs."""

    rows: Codes
    features: Array
    mask: Mask
    out: Choices

    def rows_from(self, first: int, stop: int | None = None) -> "_Block":
        """Return some of the requests."""
        part = slice(first, stop)
        return _Block(self.rows[part], self.features[part], self.mask[part], self.out.part(part))


def checked_pessimism(pessimism: float | None, level: float | None) -> float:
    """Return the pessimism, given as such or as a credible level.

    Raises
    ------
    InputError
        Both are given, or one is not a number or out of range.
    """
    if level is None:
        value = _PESSIMISM if pessimism is None else _number("pessimism", pessimism)
        if not np.isfinite(value):
            raise InputError(f"pessimism={pessimism!r} is not finite. Give a number of standard deviations.")
        return value
    if pessimism is not None:
        raise InputError(
            f"Both pessimism={pessimism!r} and level={level!r} were given, and each sets the lower bound. Give one."
        )
    probability = _number("level", level)
    if not 0.0 < probability < 1.0:
        raise InputError(f"level={level!r} is not a credible level in (0, 1). Write 95 % as level=0.95.")
    from scipy.special import ndtri

    return float(ndtri(probability))


def _number(name: str, value: float) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name}={value!r} is of type {type(value).__name__}, and not a number. Give a number."
        ) from error
