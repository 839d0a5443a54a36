"""A policy with a gate: it acts in tasks where harm is unlikely, and leaves the others to the incumbent."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hieropo._utils.arrays import Array, Mask
from hieropo._utils.text import counted
from hieropo._utils.ties import at_most
from hieropo.errors import HieropoError, InputError, LogError, MismatchError
from hieropo.features.maps import FeatureMap
from hieropo.model.table import PosteriorTable
from hieropo.policies.lower_bound import Choice, Choices, LCBPolicy
from hieropo.policies.marginals import RowNumbers, row_number
from hieropo.rows.keys import Unseen

KEPT = -1  # the index of a choice that is left to the incumbent


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GatedPolicy:
    """A policy that acts only in tasks where its harm is unlikely; the incumbent (logging policy) acts in the others.

    A task passes where P(value of the policy < value of the incumbent | log) is at most ``max_harm``. A task without
    that probability, such as one that is not in the log, does not pass.

    Parameters
    ----------
    policy : LCBPolicy
        The policy for tasks that pass.
    harm : (m,) array
        That probability for each task of ``policy.table``, in its order; NaN for a task that was not evaluated.
    max_harm : float
        In [0, 1].
    incumbent : id, optional
        The action that the incumbent always takes. Without it, a choice in a task that does not pass has the index -1
        and no action, and the caller asks the incumbent.
    limits : tuple of str
        Limits of the evaluation that the harm comes from, for users of the policy.
    eligible : str, optional
        The column of eligible actions in that evaluation. The harm holds only for choices among them, so requests need
        this column too.

    Raises
    ------
    InputError
        ``max_harm`` is not a probability; the incumbent is not among the actions.
    MismatchError
        ``harm`` has another length than the number of tasks.
    """

    policy: LCBPolicy
    harm: Array
    max_harm: float
    incumbent: Any = None
    limits: tuple[str, ...] = ()
    eligible: str | None = None

    def __post_init__(self) -> None:
        harm = np.array(self.harm, dtype=np.float64)
        if harm.shape != (len(self.policy.table.keys),):
            raise MismatchError(
                f"harm has shape {harm.shape}, and the policy has {counted(len(self.policy.table.keys), 'task')}. Give "
                "one probability for each."
            )
        if not 0.0 <= float(self.max_harm) <= 1.0:
            raise InputError(f"max_harm={self.max_harm!r} is not a probability in [0, 1]. Write 5 % as 0.05.")
        harm.flags.writeable = False
        object.__setattr__(self, "harm", harm)
        object.__setattr__(self, "max_harm", float(self.max_harm))
        object.__setattr__(self, "limits", tuple(self.limits))
        if self.incumbent is not None:
            self._incumbent_code()

    def __repr__(self) -> str:
        passed = f"{np.count_nonzero(self.passed)} of {counted(self.harm.size, 'task')} pass"
        return f"GatedPolicy({self.policy!r}, <{passed}>, max_harm={self.max_harm!r})"

    @property
    def ungated(self) -> LCBPolicy:
        """Return the policy without the gate."""
        return self.policy

    @property
    def table(self) -> PosteriorTable:
        """Return the posterior table of the policy."""
        return self.policy.table

    @property
    def features(self) -> FeatureMap | None:
        """Return the feature map of the policy."""
        return self.policy.features

    @property
    def pessimism(self) -> float:
        """Return the pessimism of the policy."""
        return self.policy.pessimism

    @property
    def unseen(self) -> Unseen:
        """Return "error" where an unknown task is an error, "prior" where it does not pass."""
        return self.policy.unseen

    @property
    def passed(self) -> Mask:
        """Return a mask of the policy's m tasks that pass."""
        return at_most(self.harm, self.max_harm)  # NaN does not pass

    def passes(self, tasks: Any) -> Mask:
        """Return a mask of the tasks (n,) that pass."""
        return self.passes_rows(np.asarray(self.policy.table.keys.locate(tasks)))

    def passes_rows(self, rows: NDArray[np.int64]) -> Mask:
        """Return a mask of rows (n,) of the policy's table that pass; -1, an unknown task, does not."""
        if not self.harm.size:
            return np.zeros(rows.size, dtype=np.bool_)
        return (rows >= 0) & self.passed[rows]

    def _incumbent_code(self) -> int:
        if self.policy.features is None or self.policy.features.actions is None:
            raise InputError(
                f"incumbent={self.incumbent!r} was given, and this policy has no list of actions to look it up in. "
                "Leave incumbent out."
            )
        return int(self.policy.features.action_codes([self.incumbent])[0])

    def choose(
        self,
        task: Any,
        context: ArrayLike | None = None,
        *,
        phi: ArrayLike | None = None,
        eligible: Any = None,
    ) -> Choice:
        """Return the choice for one request; parameters and errors as in :meth:`LCBPolicy.choose`.

        In a task that does not pass it is the incumbent's action, or ``Choice(None, -1, nan, nan, nan)`` where that is
        not known.
        """
        choice = self.policy.choose(task, context, phi=phi, eligible=eligible)
        if self.passes([task])[0]:
            return choice
        if self.incumbent is None:
            return Choice(None, KEPT, np.nan, np.nan, np.nan)
        return self.policy.choose(task, context, phi=phi, eligible=[self.incumbent])

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
        located: NDArray[np.int64] | None = None,
        refused: dict[int, HieropoError] | None = None,
    ) -> Choices:
        """Return the choices for n requests; parameters and errors as in :meth:`LCBPolicy.choose_many`.

        Requests of tasks that do not pass have the incumbent's action alone, or only indices -1.
        """
        if located is None:
            located = np.asarray(
                self.table.keys.locate(tasks if isinstance(tasks, np.ndarray) else list(tasks))
            )
        choices = self.policy.choose_many(
            tasks, context, phi=phi, eligible=eligible, top=top, threads=threads, first_row=first_row,
            located=located, refused=refused,
        )  # fmt: skip
        is_kept = ~self.passes_rows(located)
        is_kept[list(refused or ())] = False
        kept = np.flatnonzero(is_kept)
        if not kept.size:
            return choices
        for array in choices:
            array[kept] = KEPT if array.dtype.kind == "i" else np.nan
        if self.incumbent is not None:
            self._choose_incumbent(choices, kept, tasks, context, phi, eligible, first_row, refused)
        return choices

    def _choose_incumbent(
        self,
        choices: Choices,
        kept: NDArray[np.int64],
        tasks: Any,
        context: ArrayLike | None,
        phi: ArrayLike | None,
        eligible: ArrayLike | None,
        first_row: RowNumbers,
        refused: dict[int, HieropoError] | None,
    ) -> None:
        """Write the incumbent's action into the choices of requests that do not pass."""
        code = self._incumbent_code()
        features = self.policy.features
        count = len(features.actions or ()) if features is not None else 0
        if eligible is not None:
            is_eligible = np.asarray(eligible)[kept, code]
            errors = {
                row: LogError(
                    f"Row {row_number(first_row, row)}: its task does not pass the gate, and the incumbent's action "
                    f"{self.incumbent!r} is not eligible. Make it eligible, or use a gate without incumbent=."
                )
                for row in kept[~is_eligible].tolist()
            }
            if errors and refused is None:
                raise errors[min(errors)]
            if refused is not None:
                refused.update(errors)
            kept = kept[is_eligible]
        only = np.zeros((kept.size, count), dtype=np.bool_)
        only[:, code] = True
        ids = np.asarray(tasks)[kept] if isinstance(tasks, np.ndarray) else [list(tasks)[k] for k in kept]
        incumbents = self.policy.choose_many(
            ids,
            None if context is None else np.asarray(context)[kept],
            phi=None if phi is None else np.asarray(phi)[kept],
            eligible=only,
            first_row=np.array([row_number(first_row, row) for row in kept.tolist()], dtype=np.int64),
        )
        for array, part in zip(choices, incumbents, strict=True):
            array[kept, 0] = part[:, 0]
