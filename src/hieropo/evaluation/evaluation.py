"""An evaluation as a value: what a policy is worth, whom it would hurt, and what limits trust in that."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hieropo.core.arrays import Array, Codes, Mask
from hieropo.core.gating import GatedPolicy
from hieropo.core.ids import plain
from hieropo.core.keys import Keys
from hieropo.core.predictive import PredictiveChecks
from hieropo.core.ties import at_most, ordered
from hieropo.core.value_estimates import ValueEstimate
from hieropo.errors import InputError
from hieropo.evaluation.by_model import ByModel, Worth
from hieropo.evaluation.claims import Claim, Verdict
from hieropo.evaluation.comparing import Comparison
from hieropo.evaluation.propensity import Kind
from hieropo.evaluation.randomised import RandomisationTests
from hieropo.evaluation.subject import AnyPolicy
from hieropo.evaluation.survey import Seen
from hieropo.sources.rejected import Rejected
from hieropo.text import counted, whole

MAX_HARM = 0.05
_TEN = 10


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """What a log says of a policy and of the incumbent that made the log; made by ``learner.evaluate(log)``.

    Print it, or read its fields.

    Attributes
    ----------
    policy : LCBPolicy or GatedPolicy
        What was evaluated.
    rows : float
        Rows of the log, by their weights.
    new_tasks : int
        How many of its tasks the policy does not know.
    counts : (m,) array
        Rows of each task, by their weights.
    model : ByModel
        By the posterior: in all, and task by task in the order of ``model.keys``.
    claim : Claim
        What the log shows of the gain, by the doubly robust estimate, and how the model's figure compares with it.
    randomisation : RandomisationTests
        P-values that actions have no effect, and the same in all tasks, by drawing actions anew.
    comparisons : tuple of Comparison
        Other policies on the same rows, by doubly robust estimates; empty where there are no weighted rewards.
    estimates : tuple of ValueEstimate
        By weighted rewards, without belief in the model; empty where there are none.
    refused : str or None
        Why there are none.
    any_n : two pairs of float, or None
        Intervals of IPS, of value and gain, by empirical Bernstein bounds: they hold for any number of independent rows
        whose propensities are no lower than the lowest of the log. Where propensities were logged.
    task_estimates : (m, 4) array or None
        The gain of each task by weighted rewards, shrunken to that of all tasks, with the ends of its interval, and the
        effective number of rows.
    propensities : {"logged", "estimated", "none"}
    learned_from : {"no", "yes", "partly"}
        Whether the policy was learned from rows of this log; weighted rewards are then those of policies and
        predictions that were learned without the rows that they are applied to.
    checks : PredictiveChecks or None
        Whether rewards are as the model predicts.
    limits : tuple of str
        What limits trust, in words.
    max_harm : float
        Probability of harm up to which a task counts as safe.
    rejected : Rejected or None
        What was set aside of the log, where that was asked for.
    eligible : str or None
        The column that listed the actions that could be taken.
    """

    policy: AnyPolicy
    rows: float
    new_tasks: int
    counts: Array
    model: ByModel
    claim: Claim
    randomisation: RandomisationTests
    comparisons: tuple[Comparison, ...]
    estimates: tuple[ValueEstimate, ...]
    refused: str | None
    any_n: tuple[tuple[float, float], tuple[float, float]] | None
    task_estimates: Array | None
    propensities: Kind
    learned_from: Seen
    checks: PredictiveChecks | None
    limits: tuple[str, ...]
    max_harm: float
    rejected: Rejected | None = None
    eligible: str | None = None

    @property
    def keys(self) -> Keys:
        """The m tasks of the log."""
        return self.model.keys

    @property
    def verdict(self) -> Verdict | None:
        """What the log shows of the gain: "shown", "not shown" or "worse"; None where it shows nothing.

        It rests on the cross-fitted doubly robust difference to the incumbent: its interval is above 0, holds 0, or is
        below 0. ``claim.reason`` says why there is none.
        """
        return self.claim.verdict

    @property
    def changed(self) -> Mask:
        """Tasks (m,) in which the policy does anything else than the incumbent."""
        found: Mask = (self.model.delta != 0).any(axis=1)
        return found

    @property
    def passed(self) -> Mask:
        """Tasks (m,) in which the policy does harm with a probability of at most ``max_harm``."""
        return at_most(self.model.harm, self.max_harm)

    @property
    def improved(self) -> Mask:
        """Tasks (m,) that pass and in which the policy does something else than the incumbent."""
        return self.passed & self.changed

    @property
    def expected_harm(self) -> float:
        """Share of tasks in which the policy is expected to be worse than the incumbent."""
        return float(self.model.harm.mean())

    def gated_gain(self, passed: Mask | None = None) -> Worth:
        """Gain over the incumbent, per row of the log, when the policy acts in the tasks that pass alone."""
        return self.model.gated(self.passed if passed is None else passed)

    def estimate(self, name: str) -> ValueEstimate:
        """Return one estimate by its name, such as "DR".

        Raises
        ------
        InputError
            There is none of that name.
        """
        for each in self.estimates:
            if each.name == name:
                return each
        raise InputError(
            f"There is no estimate {name!r}; there are {[each.name for each in self.estimates]}."
            + (f" {self.refused}" if self.refused else "")
        )

    def rows_needed(self, epsilon: float, tasks: Any = None, *, seed: int = 0) -> dict[Any, float]:
        """Return how many more rows tasks need until the best policy is better than theirs by less than ``epsilon``.

        More precisely, until their certificates are expected to be below it, with further rows of these tasks alone
        that are like those of the log. Found by draws, to 10 or 20 %; infinite where no number of rows is enough.

        Parameters
        ----------
        epsilon : float
            In reward units.
        tasks : sequence of ids, optional
            Default: the ten with the largest certificates. A task takes a fraction of a second.
        seed : int

        Raises
        ------
        InputError
            ``epsilon`` is not positive.
        UnknownTaskError
            A task is not in the log.
        """
        if not epsilon > 0:
            raise InputError(f"epsilon={epsilon!r}; a positive number of reward units is needed.")
        if tasks is None:
            order = ordered(-np.nan_to_num(self.model.certificate, nan=-1.0))
            tasks = self.keys.values[order[:_TEN]]
        found = self.model.rows_needed(tasks, epsilon, np.random.default_rng(seed))
        return dict(zip([plain(task) for task in tasks], found.tolist(), strict=True))

    def gate(self, max_harm: float | None = None, *, incumbent: Any = None) -> GatedPolicy:
        """Return the policy with a gate: it acts where the probability of harm is at most ``max_harm``.

        Parameters
        ----------
        max_harm : float, optional
            Default: as evaluated.
        incumbent : id, optional
            The action that the incumbent always takes; without it, it is whatever acted before.

        Raises
        ------
        InputError
            The policy has a gate already; ``max_harm`` is no probability; the incumbent is no action.
        """
        if isinstance(self.policy, GatedPolicy):
            raise InputError("This policy has a gate already. Evaluate the policy before its gate.")
        keys = self.policy.table.keys
        harm = np.full(len(keys), np.nan)
        at = np.asarray(keys.locate(self.keys.values))
        harm[at[at >= 0]] = self.model.harm[at >= 0]
        limit = self.max_harm if max_harm is None else max_harm
        return GatedPolicy(self.policy, harm, limit, incumbent, self.limits, self.eligible)

    def per_task(self) -> dict[str, Any]:
        """Return a column of values for each task, by name."""
        model = self.model
        columns: dict[str, Any] = {
            "task": self.keys.values,
            "rows": self.counts,
            "value": model.value,
            "value_sd": model.value_sd,
            "incumbent_value": model.incumbent_value,
            "incumbent_sd": model.incumbent_sd,
            "gain": model.gain,
            "gain_sd": model.gain_sd,
            "harm": model.harm,
            "certificate": model.certificate,
            "changed": self.changed,
            "passed": self.passed,
        }
        if self.task_estimates is not None:
            for j, name in enumerate(("weighted_gain", "weighted_low", "weighted_high", "effective_rows")):
                columns[name] = self.task_estimates[:, j]
        return columns

    def to_dict(self, *, extremes: int = 5) -> dict[str, Any]:
        """Return JSON's types; of the tasks the ``extremes`` at both ends."""
        model, gated = self.model, self.gated_gain()
        return {
            "rows": whole(self.rows),
            "tasks": len(self.keys),
            "new_tasks": self.new_tasks,
            "learned_from": self.learned_from,
            "level": model.level,
            "verdict": self.verdict,
            "claim": self.claim.to_dict(),
            "randomisation": self.randomisation.to_dict(),
            "compared": [each.to_dict() for each in self.comparisons],
            "by_model": {
                "value": model.new.to_dict(),
                "incumbent": model.incumbent.to_dict(),
                "gain": model.difference.to_dict(),
                "gain_after_gate": gated.to_dict(),
            },
            "by_weights": [each.to_dict() for each in self.estimates],
            "refused": self.refused,
            "ips_for_any_n": None if self.any_n is None else {"value": self.any_n[0], "gain": self.any_n[1]},
            "propensities": self.propensities,
            "share_of_tasks": self.shares(),
            "max_harm": self.max_harm,
            "expected_share_harmed": self.expected_harm,
            "worst_tasks": self._extremes(ordered(-model.harm), extremes),
            "best_tasks": self._extremes(ordered(~self.changed, model.harm, -model.gain), extremes),
            "checks": None if self.checks is None else self.checks.to_dict(),
            "limits": list(self.limits),
            "rejected": None if self.rejected is None else self.rejected.to_dict(),
        }

    def shares(self) -> dict[str, float]:
        """Shares of tasks that the policy improves, leaves as they are, and that a gate would hold back."""
        return {
            "improved": float(self.improved.mean()),
            "unchanged": float((~self.changed).mean()),
            "held_back": float((~self.passed).mean()),
        }

    def _extremes(self, order: Codes, count: int) -> list[dict[str, Any]]:
        model = self.model
        return [
            {
                "task": plain(self.keys.values[k]), "rows": whole(float(self.counts[k])), "gain": float(model.gain[k]),
                "gain_sd": float(model.gain_sd[k]), "harm": float(model.harm[k]),
            }
            for k in order[:count].tolist()
        ]  # fmt: skip

    def __str__(self) -> str:
        from hieropo.evaluation.wording import worded

        return worded(self)

    def __repr__(self) -> str:
        gain = self.model.difference
        return (
            f"Evaluation({counted(self.rows, 'row')}, {counted(len(self.keys), 'task')}, "
            f"gain {gain.mean:.4g} +- {gain.sd:.2g})"
        )
