"""Settings of a learner by name, with scikit-learn's interface."""

import inspect
from typing import Any, Self

from hieropo.errors import InputError


class Parameters:
    """Settings that a constructor stores under the names of its parameters."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002, FBT001, FBT002 - scikit-learn's signature
        """Return the settings by name."""
        return {name: getattr(self, name) for name in self._settings()}

    def set_params(self, **params: Any) -> Self:
        """Change settings; raise InputError where one is unknown."""
        for name, value in params.items():
            if name not in self._settings():
                raise InputError(
                    f"{type(self).__name__} has no setting {name!r}; it has {list(self._settings())}."
                )
            setattr(self, name, value)
        return self

    @classmethod
    def _settings(cls) -> tuple[str, ...]:
        return tuple(name for name in inspect.signature(cls.__init__).parameters if name != "self")

    def __repr__(self) -> str:
        defaults = {name: p.default for name, p in inspect.signature(type(self).__init__).parameters.items()}
        given = [f"{k}={v!r}" for k, v in self.get_params().items() if v is not defaults[k]]
        return f"{type(self).__name__}({', '.join(given)})"
