"""The code of an exported model: MLflow runs this file when it saves and when it loads the model."""

from typing import Any

import mlflow.models
import mlflow.pyfunc

from hieropo.learners.loading import load_learner


class PolicyModel(mlflow.pyfunc.PythonModel):
    """Decides rows of requests with a policy that lies beside the model."""

    def load_context(self, context: Any) -> None:
        """Load the policy."""
        self._learner = load_learner(context.artifacts["policy"])

    def predict(self, context, model_input, params=None):  # noqa: ARG002 - MLflow reads the signature, and its types
        """Return a frame of decisions, one for each row of requests."""
        return self._learner.decide(model_input, id=[]).to_pandas()


mlflow.models.set_model(PolicyModel())
