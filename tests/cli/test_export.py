from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from served_worlds import saved

from hieropo.cli import main


@pytest.mark.slow
def test_a_policy_is_a_pyfunc_model_that_decides_as_it_does(tmp_path: Path) -> None:
    pyfunc = pytest.importorskip("mlflow.pyfunc")
    from hieropo import load_learner

    policy = saved(tmp_path)
    done = CliRunner().invoke(main, ["export", "mlflow", str(policy), "-o", str(tmp_path / "model")])
    assert done.exit_code == 0, done.output
    model = pyfunc.load_model(str(tmp_path / "model"))
    assert set(model.metadata.get_input_schema().input_names()) == {"store", "age"}
    requests = pd.DataFrame({"store": np.arange(5), "age": np.linspace(-1, 1, 5)})
    decisions = load_learner(policy).decide(requests, id=[]).to_pandas()
    pd.testing.assert_frame_equal(model.predict(requests), decisions)
    again = CliRunner().invoke(main, ["export", "mlflow", str(policy), "-o", str(tmp_path / "model")])
    assert again.exit_code == 1
    assert "not written over" in again.output
