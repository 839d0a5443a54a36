"""The one small tree of exceptions.

Every message says the value found, where it stands, the likely cause and what to do next.
"""

import inspect
import warnings
from typing import Any, Self


class HieropoError(Exception):
    """Root of everything that hieropo raises on purpose."""


class InputError(HieropoError, ValueError):
    """Something handed in cannot be used as it is.

    Attributes
    ----------
    row : int or None
        Number of the row, from 0 in the whole log, that the message names as "row N"; None where it names none.
    lenient : bool
        True where lenient reading sets such a row aside.
    """

    args: tuple[Any, ...]
    row: int | None = None
    lenient: bool = False

    @classmethod
    def in_row(cls, row: int, text: str, *, lenient: bool = True) -> Self:
        """Return an error whose text names "row N", which :meth:`at` replaces where the file is known."""
        error = cls(text)
        error.row, error.lenient = int(row), lenient
        return error

    def text_at(self, place: str) -> str:
        """Return the message with the place of the row in its file, such as "line 3 of 'log.csv'"."""
        return str(self).replace(f"row {self.row}", place, 1)

    def at(self, place: str, advice: str = "") -> None:
        """Write the place of the row in its file into the message, and add sentences."""
        self.args, self.row = (f"{self.text_at(place)}{advice}",), None


class NotFittedError(InputError, AttributeError):
    """A learner was used before its fit; as that of scikit-learn it is a ValueError and an AttributeError."""


class SchemaError(InputError):
    """A column is missing, named twice, renamed, or of a type that cannot play its role."""


class LogError(InputError):
    """The rows of a log or of a requests file cannot be used: empty, null, NaN, out of range."""


class UnknownTaskError(InputError):
    """A task that the policy has never seen, where the caller asked for an error."""


class UnknownActionError(InputError):
    """An action that the feature map does not know."""


class MismatchError(InputError):
    """Two values that do not belong together: other feature maps, other dimensions."""


class NumericalError(HieropoError, ArithmeticError):
    """A factorization failed or a quantity is not determined by the log."""


class ArtifactError(HieropoError):
    """A file or directory on disk is torn, edited, of a newer format, or cannot be written."""


class HieropoWarning(UserWarning):
    """The log can be used, but it limits what may be concluded."""


def warn(text: str) -> None:
    """Warn, at the line that called into this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "hieropo":
        frame, level = frame.f_back, level + 1
    warnings.warn(text, HieropoWarning, stacklevel=level)
