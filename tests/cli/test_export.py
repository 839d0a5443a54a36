import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import answers, called, refuses
from served_worlds import saved

from hieropo.cli.commands import export
from hieropo.learners.loading import load_learner


@pytest.mark.slow
def test_a_policy_is_a_pyfunc_model_that_decides_as_it_does(tmp_path: Path) -> None:
    pyfunc = pytest.importorskip("mlflow.pyfunc")
    policy = saved(tmp_path)
    words = ("export", "mlflow", policy, "-o", tmp_path / "model")
    done = called(*words)
    assert done.exit_code == 0, done.output
    model = pyfunc.load_model(str(tmp_path / "model"))
    assert set(model.metadata.get_input_schema().input_names()) == {"store", "age"}
    requests = pd.DataFrame({"store": np.arange(5), "age": np.linspace(-1, 1, 5)})
    decisions = load_learner(policy).decide(requests, id=[]).to_pandas()
    pd.testing.assert_frame_equal(model.predict(requests), decisions)
    assert "not written over" in refuses(1, *words)


def test_the_command_hands_over_the_policy_its_code_and_an_example_that_it_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for MLflow, which is an extra."""
    handed: dict[str, Any] = {}
    mlflow, pyfunc, models = (ModuleType(name) for name in ("mlflow", "mlflow.pyfunc", "mlflow.models"))
    pyfunc.save_model = lambda path, **given: handed.update(given, path=path)  # type: ignore[attr-defined]
    models.infer_signature = lambda requests, decisions: (list(requests), list(decisions))  # type: ignore[attr-defined]
    mlflow.pyfunc = pyfunc  # type: ignore[attr-defined]
    for module in (mlflow, pyfunc, models):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(export, "find_spec", lambda _: mlflow.__name__)
    policy = saved(tmp_path)
    text = answers("export", "mlflow", policy, "-o", tmp_path / "model")
    assert "reads the columns store, age" in text
    assert (handed["path"], handed["artifacts"]) == (str(tmp_path / "model"), {"policy": str(policy)})
    assert Path(handed["python_model"]).read_text().startswith('"""The code of an exported model')
    requests, decides = handed["signature"]
    decisions = load_learner(policy).decide(handed["input_example"], id=[]).to_pandas()
    assert (requests, len(decisions)) == (["store", "age"], 1)
    assert set(decides) == set(decisions) - {"reason"}
    assert decisions["action"].notna().all()


def test_what_cannot_be_exported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("export", "mlflow", tmp_path / "none", "-o", tmp_path)
    monkeypatch.setattr(export, "find_spec", lambda _: None)
    assert "pip install 'hieropo[mlflow]'" in refuses(1, *words)
    monkeypatch.setattr(export, "find_spec", str)
    assert "is not written over it" in refuses(1, *words)
