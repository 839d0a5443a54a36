"""Values of the chosen actions: against the truth of simulated logs, and by the held-out half of real ones.

Value of a policy on a simulated log: 100 (V - V_incumbent) / (V_oracle - V_incumbent), with V the weighted mean of true
expected rewards over the requests; over seeds, the sum of the numerators by that of the denominators. The difference of
two methods is that of the same seeds. On halves of a real log, V is the self-normalised estimate (SNIPS) of the
held-out half, and errors are corrected for the overlap of the halves as in ``experiments/halves.py``.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import paths  # noqa: F401  experiments are found
import pyarrow.parquet as pq
from halves import Array, Mask, Study, corrected_error, deal, one_action, snips


@dataclass(frozen=True)
class Score:
    """Gain of a policy over the incumbent, that of the oracle, and the share of tasks with a loss."""

    gain: float
    best: float
    harmed: float


def simulated_score(actions: Array, truth: Array, shares: Array, weight: Array, task: Array) -> Score:
    """Return the score of actions (n,), by true means (n, K), the incumbent's shares (K,), weights and tasks (n,)."""
    incumbent = truth @ shares
    gain = truth[np.arange(len(actions)), actions] - incumbent
    of_task = np.bincount(task, weight * gain)
    seen = np.bincount(task, weight) > 0
    harmed = float((of_task[seen] < -1e-12).mean())
    return Score(float(weight @ gain), float(weight @ (truth.max(axis=1) - incumbent)), harmed)


def score_folder(folder: Path, chosen: str) -> Score:
    """Return the score of the choices in a folder of a simulated log."""
    actions = pq.read_table(folder / chosen)["action"].to_numpy().astype(np.int64)
    with np.load(folder / "truth.npz") as truth:
        if "offered" in truth:
            actions = positions(truth["offered"], actions)
        return simulated_score(actions, truth["truth"], truth["shares"], truth["weight"], truth["task"])


def positions(offered: Array, actions: Array) -> Array:
    """Return the positions of actions (n,) among those offered (n, k)."""
    match = offered == actions[:, None]
    if not match.any(axis=1).all():
        raise ValueError(f"{(~match.any(axis=1)).sum()} of {len(actions)} actions were not offered.")
    return match.argmax(axis=1)


def percent(gains: Array, bests: Array) -> tuple[float | None, float | None]:
    """Return the value in percent of the oracle's gain over seeds (S,), and its standard error (delta method)."""
    if bests.sum() <= 1e-9:
        return None, None
    value = gains.sum() / bests.sum()
    rest = gains - value * bests
    error = rest.std(ddof=1) / np.sqrt(rest.size) / bests.mean() if rest.size > 1 else np.nan
    return float(100 * value), float(100 * error)


def lead(ours: Array, theirs: Array, bests: Array) -> tuple[float, float]:
    """Return our gain less theirs in the same seeds (S,), in percent of the oracle's gain, and its error."""
    value, error = percent(ours - theirs, bests)
    return (np.nan, np.nan) if value is None or error is None else (value, error)


def half_gain(study: Study, half: int, actions: Array) -> tuple[float, float]:
    """Return the held-out gain over the incumbent, and the share of choices without a chance, which are replaced.

    ``actions`` are the names of the chosen actions, one for each held-out row; the best action for all that has one
    replaces those that have none.
    """
    train, held = deal(study, half, 1.0)
    chance = study.chance(held)
    place = {name: k for k, name in enumerate(study.actions)}
    codes = np.array([place[name] for name in actions.tolist()])
    lost = np.take_along_axis(chance, codes[:, None], axis=1)[:, 0] <= 0
    codes[lost] = one_action(study, train, chance)[lost]
    return _gain(study, held, chance, codes), float(lost.mean())


def _gain(study: Study, held: Mask, chance: Array, codes: Array) -> float:
    weight = np.zeros(held.size)
    pscore = np.take_along_axis(chance, codes[:, None], axis=1)[:, 0]
    weight[held] = (study.action[held] == codes) / pscore
    return snips(study.reward, weight).value - snips(study.reward, held.astype(np.float64)).value


def real_lead(ours: Array, theirs: Array) -> tuple[float, float]:
    """Return our held-out value less theirs over halves (J,), and the corrected error."""
    return float((ours - theirs).mean()), corrected_error(ours - theirs)
