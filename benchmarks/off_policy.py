"""Off-policy estimates: hieropo's sums against obp on the logs of obp's own simulator, and the speed of both.

    python benchmarks/off_policy.py [--peer PYTHON] [--rows 10000000] [--tasks 100000]

PYTHON is an interpreter with the package sb-obp, or obp (an environment of its own). It makes logs with its synthetic
data set, of rewards 0 and 1 and of continuous ones, with cross-fitted predictions by its regression model. Printed:
each estimate that both have, and their relative difference, which has to be below 1e-10. Then CPU seconds of one
thread: hieropo's pass over the rows in batches of 100,000, all its estimates with intervals, and the values of all
tasks; and obp's seven point estimates on a tenth of the rows. The figures go to results/off_policy.json as well.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import record

from hieropo.ope.off_policy import OffPolicyMoments, OffPolicySums, column
from hieropo.ope.shrinkage import shrink
from hieropo.ope.value_estimates import ratios, task_gains, values

TAU, LAM, BATCH, ACTIONS = 5.0, 20.0, 100_000, 10
CUT = {"Switch-DR": column("switch", TAU), "DRos": column("shrink", LAM)}
CASES = [
    (kind, rows, beta) for kind in ("binary", "continuous") for rows, beta in ((300, 1.0), (20_000, 3.0))
]

PEER = """
import sys, time, warnings
import numpy as np
warnings.simplefilter("ignore")
from obp.ope import (DirectMethod, DoublyRobust, DoublyRobustWithShrinkage, InverseProbabilityWeighting,
    SelfNormalizedDoublyRobust, SelfNormalizedInverseProbabilityWeighting, SwitchDoublyRobust)

tau, lam = float(sys.argv[2]), float(sys.argv[3])
estimators = {"IPS": InverseProbabilityWeighting(), "SNIPS": SelfNormalizedInverseProbabilityWeighting(),
    "DM": DirectMethod(), "DR": DoublyRobust(), "SNDR": SelfNormalizedDoublyRobust(),
    "Switch-DR": SwitchDoublyRobust(lambda_=tau), "DRos": DoublyRobustWithShrinkage(lambda_=lam)}

def estimates(reward, action, pscore, policy, predicted):
    rows = {"reward": reward, "action": action, "pscore": pscore, "action_dist": policy[:, :, None],
        "position": np.zeros(len(reward), dtype=int), "estimated_rewards_by_reg_model": predicted[:, :, None]}
    return {name: each.estimate_policy_value(**rows) for name, each in estimators.items()}
"""
AGREE = """
from obp.dataset import SyntheticBanditDataset, logistic_reward_function, linear_reward_function
from obp.ope import RegressionModel
from obp.utils import softmax
from sklearn.linear_model import LinearRegression, LogisticRegression

kind, n, beta = sys.argv[4], int(sys.argv[5]), float(sys.argv[6])
data = SyntheticBanditDataset(n_actions=6, dim_context=4, reward_type=kind, beta=beta, random_state=1,
    reward_function=logistic_reward_function if kind == "binary" else linear_reward_function)
log = data.obtain_batch_bandit_feedback(n_rounds=n)
policy = softmax(-2.0 * log["expected_reward"] + np.random.default_rng(0).normal(size=(n, 6)))
model = RegressionModel(n_actions=6, base_model=LogisticRegression() if kind == "binary" else LinearRegression())
predicted = model.fit_predict(context=log["context"], action=log["action"], reward=log["reward"],
    pscore=log["pscore"], n_folds=2, random_state=0)[:, :, 0]
found = estimates(log["reward"], log["action"], log["pscore"], policy, predicted)
np.savez(sys.argv[1], reward=log["reward"], action=log["action"], pscore=log["pscore"], policy=policy,
    predicted=predicted, names=list(found), values=list(found.values()))
"""
SPEED = """
n, actions = int(sys.argv[4]), int(sys.argv[5])
rng = np.random.default_rng(0)
rows = ((rng.random(n) < 0.3) * 1.0, rng.integers(actions, size=n), np.full(n, 1 / actions),
    np.full((n, actions), 1 / actions), rng.random((n, actions)))
start = time.process_time()
estimates(*rows)
print(time.process_time() - start)
"""


def peer(python: str, program: str, *arguments: object) -> str:
    command = [python, "-c", PEER + program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"The peer failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return done.stdout


def summed(log: np.lib.npyio.NpzFile) -> OffPolicyMoments:
    """Sums of a log of obp, dealt out to 50 tasks and handed over in three batches."""
    n, at = log["reward"].size, np.arange(log["reward"].size)
    reward = log["reward"].astype(float)
    made = OffPolicySums(reward.min(), reward.max(), n, switch=(TAU,), shrink=(LAM,))
    rows = (
        np.random.default_rng(1).integers(50, size=n), reward, log["pscore"], log["policy"][at, log["action"]],
        log["predicted"][at, log["action"]], (log["policy"] * log["predicted"]).sum(axis=1),
    )  # fmt: skip
    for part in np.array_split(at, 3):
        made.add(*(each[part] for each in rows))
    return made.moments()


def agreement(python: str) -> list[dict[str, object]]:
    """Estimates of both on each log, and the digits that they share."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, rows_of_log, beta in CASES:
            path = Path(folder) / "log.npz"
            peer(python, AGREE, path, TAU, LAM, kind, rows_of_log, beta)
            with np.load(path) as log:
                moments = summed(log)
                theirs = dict(zip(log["names"].tolist(), log["values"].tolist(), strict=True))
            print(f"{kind} rewards, {rows_of_log:,} rows, largest weight {moments.top[0]:.0f}")
            for name, value in theirs.items():
                mine = float(ratios(moments, name, CUT.get(name)).value(moments.total))
                gap = abs(mine - value) / max(abs(value), 1e-300)
                log_name = f"{kind}, {rows_of_log:,} rows"
                rows.append(
                    {"log": log_name, "estimate": name, "ours": mine, "theirs": float(value), "gap": gap}
                )
                print(f"    {name:10s} {mine:18.14f}  obp {value:18.14f}  relative difference {gap:7.1e}")
    return rows


def speed(rows: int, tasks: int, python: str | None) -> dict[str, float]:
    """CPU seconds of the sums, of the estimates and of the values of all tasks; and of obp on a tenth of the rows."""
    rng = np.random.default_rng(0)
    batches = [
        (
            rng.integers(tasks, size=BATCH), (rng.random(BATCH) < 0.3) * 1.0, np.full(BATCH, 1 / ACTIONS),
            (rng.random(BATCH) < 1 / ACTIONS) * 1.0, rng.random(BATCH), rng.random(BATCH),
        )
        for _ in range(5)
    ]  # fmt: skip
    OffPolicySums(0.0, 1.0, BATCH).add(*batches[0])  # compiled, or loaded from the cache
    seconds, made, start = {}, OffPolicySums(0.0, 1.0, rows), time.process_time()
    for k in range(rows // BATCH):
        made.add(*batches[k % 5])
    moments = made.moments()
    seconds["sums"], start = time.process_time() - start, time.process_time()
    estimates = values(moments, rng=rng)
    seconds["estimates"], start = time.process_time() - start, time.process_time()
    shrink(*task_gains(moments)[:2])
    seconds["tasks"] = time.process_time() - start
    print(
        f"hieropo: {rows:,} rows of {tasks:,} tasks in {seconds['sums']:.2f} s, {len(estimates)} estimates with "
        f"intervals in {seconds['estimates']:.2f} s, values of all tasks in {seconds['tasks']:.2f} s"
    )
    if python:
        seconds["obp_tenth"] = float(peer(python, SPEED, "-", TAU, LAM, rows // 10, ACTIONS))
        print(f"obp: {rows // 10:,} rows, point estimates alone, in {seconds['obp_tenth']:.2f} s")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="a Python interpreter that has sb-obp or obp")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--tasks", type=int, default=100_000)
    options = parser.parse_args()
    results: dict[str, object] = {"rows": options.rows, "tasks": options.tasks}
    if options.peer:
        agreed = agreement(options.peer)
        worst = max(float(row["gap"]) for row in agreed)  # type: ignore[arg-type]
        print(f"largest relative difference {worst:.1e}")
        if worst > 1e-10:
            sys.exit("hieropo and obp differ.")
        results |= {"agreement": agreed, "worst": worst}
    results["seconds"] = speed(options.rows, options.tasks, options.peer)
    record.finish("off_policy", results)


if __name__ == "__main__":
    main()
