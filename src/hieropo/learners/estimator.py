"""scikit-learn's manners of a learner: ``fit(X, y)`` with roles as a setting, ``score``, and tags."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hieropo._utils.parameters import Parameters
from hieropo.errors import InputError
from hieropo.logs.engines.rewards import with_rewards
from hieropo.logs.opening import open_log
from hieropo.rows.batches import Roles

REWARD = "reward"  # name of the rewards y where nothing else names them


class Estimator(Parameters):
    """A learner with the setting ``roles`` that takes rows as a frame X and rewards y."""

    roles: Mapping[str, Any] | None
    roles_: Roles

    def _rows(self, log: Any, rewards: Any, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the log, with the rewards y as a column, and its columns by role, ``given`` or of the setting.

        Raises
        ------
        InputError
            The log is an array without names of columns; the setting has an unknown role; y has another length.
        """
        _refuse_array(log, type(self).__name__)
        named = {role: value for role, value in given.items() if _is_given(value)}
        columns = {**_checked_roles(self.roles), **named}
        if rewards is None:
            return log, columns
        columns.setdefault("reward", getattr(rewards, "name", None) or REWARD)
        return with_rewards(open_log(log), rewards, str(columns["reward"])), columns

    def score(self, X: Any, y: Any = None) -> float:  # noqa: N803 - scikit-learn's names
        """Return the doubly robust estimate of the gain of a row over the logging policy; larger is better.

        On rows of the fit it is cross-fitted; on other rows, such as those that a cross-validation holds out, the
        policy is evaluated as it is. It is the ``gain`` of ``evaluate(X).estimate("DR")``, in units of the reward.

        Parameters
        ----------
        X : as ``log`` in :meth:`fit`
            Rows with the columns of the log of the fit.
        y : (n,) array, optional
            Rewards, where X does not hold them.

        Raises
        ------
        InputError
            The rows give no reliable estimate; the message says why.
        """
        self._fitted()  # type: ignore[attr-defined]  # of learners
        _refuse_array(X, type(self).__name__)
        log = X if y is None else with_rewards(open_log(X), y, self.roles_.reward)
        estimate = self.evaluate(log, compare=False).estimate("DR")  # type: ignore[attr-defined]
        if estimate.withheld is not None:
            raise InputError(
                f"These rows give no reliable doubly robust estimate of the gain, which is the score: "
                f"{estimate.withheld}. Score more rows, or read evaluate(X) for the other estimates."
            )
        return float(estimate.gain)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "policy_")

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            input_tags=InputTags(two_d_array=False, string=True, categorical=True),
        )


def _checked_roles(roles: Mapping[str, Any] | None) -> dict[str, Any]:
    if roles is None:
        return {}
    if not isinstance(roles, Mapping):
        raise InputError(
            f"roles={roles!r} is no mapping. Name the columns by their roles, such as roles={{'task': 'store', "
            "'action': 'offer'}."
        )
    unknown = [role for role in roles if role not in Roles.names()]
    if unknown:
        raise InputError(
            f"roles= names {unknown[0]!r}, which is no role. The roles are {list(Roles.names())}."
        )
    return {role: columns for role, columns in roles.items() if _is_given(columns)}


def _is_given(value: Any) -> bool:
    """Return False for None and for an empty list of columns."""
    return value is not None and (isinstance(value, str) or not hasattr(value, "__len__") or len(value) > 0)


def _refuse_array(log: Any, name: str) -> None:
    if isinstance(log, np.ndarray) or hasattr(log, "tocsr"):
        raise InputError(
            f"X is an array of shape {log.shape}, and its columns have no names, so that none can be the task, the "
            f"action or a context. Give a frame (pandas, polars, Arrow) and name its columns, {name}(roles={{'task': "
            "'store', 'action': 'offer', 'context': ['age']}). A step of a pipeline gives a frame after "
            "set_output(transform='pandas')."
        )
