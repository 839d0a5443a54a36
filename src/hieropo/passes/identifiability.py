"""Identifiability: coefficients that a log does not determine, and the columns or actions that cause it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.packed import unpack
from hieropo._utils.text import thousands
from hieropo.errors import InputError, NumericalError
from hieropo.features.maps import FeatureMap
from hieropo.moments.statistics import Moments

_SHOWN = 6
_LARGE, _SMALL = 1e12, 1e-60  # sizes of values beyond which a failed estimation is due to them


class Undetermined(NamedTuple):
    """Coefficients that a log does not determine, and the remedy."""

    problem: str
    remedy: str


def refuse_undetermined(moments: Moments, features: FeatureMap, tolerance: float | None = None) -> None:
    """Raise NumericalError for a log that does not determine a coefficient; a flat hyper-prior does not either.

    Raises
    ------
    NumericalError
        The message names the features, the likely cause and the remedy.
    """
    found = undetermined(gram_blocks(moments, features), moments.n_rows, features, tolerance)
    if found is not None:
        raise NumericalError(f"{found.problem} {found.remedy}")


def gram_blocks(moments: Moments, features: FeatureMap) -> NDArray[np.float64]:
    """Return sum w phi phi' over all rows: one block (p, p), or one for each action with its own coefficients."""
    d = moments.dim
    gram = unpack(moments.sums.sum(axis=0), d + 2)[:d, :d]
    blocks = len(features.actions or ()) if _is_per_action(features) else 1
    p = d // blocks
    block = np.arange(blocks)
    return np.asarray(gram.reshape(blocks, p, blocks, p)[block, :, block, :])


def open_actions(moments: Moments, features: FeatureMap, size: NDArray[np.float64]) -> list[int]:
    """Return the codes of actions with their own coefficients that some rows do not determine.

    Parameters
    ----------
    moments : Moments
        Moments of some rows of a log, such as all rows but a fold.
    features : FeatureMap
    size : (K, p) array
        :func:`sizes` of all rows, the scale of rounding errors.
    """
    if not _is_per_action(features):
        return []
    safe = np.where(size > 0, size, 1.0)
    values = np.linalg.eigvalsh(gram_blocks(moments, features) / (safe[:, :, None] * safe[:, None, :]))
    open_codes: list[int] = np.flatnonzero(values[:, 0] < _zero_eigenvalue(features)).tolist()
    return open_codes


def sizes(blocks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the roots of the sums of squares of features (K, p), from :func:`gram_blocks`."""
    return np.asarray(np.sqrt(np.diagonal(blocks, axis1=1, axis2=2)))


def _zero_eigenvalue(features: FeatureMap) -> float:
    """Return the eigenvalue of a scaled Gram matrix below which it counts as 0."""
    return 1e3 * features.dim * float(np.finfo(np.float64).eps)


def _is_per_action(features: FeatureMap) -> bool:
    return features.actions is not None and getattr(features, "table", 0) is None


def undetermined(
    blocks: NDArray[np.float64], rows: float, features: FeatureMap, tolerance: float | None = None
) -> Undetermined | None:
    """Return the coefficients that ``rows`` rows with these :func:`gram_blocks` do not determine; None for none.

    The scaled Gram matrix of all rows then has an eigenvalue of zero, up to ``tolerance``.
    """
    size = sizes(blocks)
    safe = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(blocks / (safe[:, :, None] * safe[:, None, :]))
    threshold = _zero_eigenvalue(features) if tolerance is None else tolerance
    free = values < threshold
    if not free.any():
        return None
    weight = np.sqrt((vectors**2 * free[:, None, :]).sum(axis=2))
    concerned = np.flatnonzero(weight.reshape(-1) > 1e-3)
    identified = concerned.size - int(np.count_nonzero(free))
    vary = (
        f"only {identified} combination{'s' * (identified > 1)} of these {concerned.size}"
        if identified
        else "none of them"
    )
    return Undetermined(
        f"This log does not determine the coefficients of {_listed([features.names[j] for j in concerned])}: its "
        f"rows identify {vary}.",
        f"{_cause(rows, size.reshape(-1), concerned, features)} In Python, a hyper-prior can fill the gap: "
        "known=Hierarchy(hyper=Gaussian(mean, cov), ...).",
    )


@contextmanager
def explained(moments: Moments, features: FeatureMap) -> Iterator[None]:
    """Replace errors of factorizations by the coefficients that the log hardly determines, where it has such.

    Raises
    ------
    NumericalError
        In place of numpy's own error, and of errors that come of values of an extreme size.
    """
    try:
        yield
    except np.linalg.LinAlgError as error:
        _refuse_extreme(moments, features, error)
        refuse_undetermined(moments, features, tolerance=1e-5)
        raise NumericalError(
            f"A factorization failed ({error}), though {thousands(moments.n_rows)} rows determine all {features.dim} "
            "coefficients. Try task_cov='diag', or leave out columns that hardly vary."
        ) from error
    except (NumericalError, InputError) as error:
        _refuse_extreme(moments, features, error)
        if isinstance(error, NumericalError):
            refuse_undetermined(moments, features, tolerance=1e-9)  # says the same by name
        raise


def _refuse_extreme(moments: Moments, features: FeatureMap, error: Exception) -> None:
    """Raise NumericalError for an error that comes of values of an extreme size, which it names."""
    p = moments.unit_dim
    total = np.diagonal(unpack(moments.unit_sums.sum(axis=0), p + 2))
    width, first = len(features.columns) + _intercept(features), _intercept(features)
    squares = {
        f"Column {column!r} has": total[:p].reshape(-1, width)[:, first + k].sum()
        for k, column in enumerate(features.columns)
    }
    for subject, square in {**squares, "The rewards have": total[p]}.items():
        size = float(np.sqrt(square / total[p + 1]))
        if size > _LARGE or 0.0 < size < _SMALL:
            raise NumericalError(
                f"{subject} values of about {size:.1g}, so that products of their powers leave the range of a float64: "
                f"{error} Write the values in another unit, so that they are near 1. If such a value stands for a "
                "missing one, drop these rows."
            ) from error


def _intercept(features: FeatureMap) -> int:
    return int(getattr(features, "intercept", False))


def _cause(rows: float, size: NDArray[np.float64], concerned: NDArray[np.int64], features: FeatureMap) -> str:
    if rows < features.dim:
        return f"It has fewer rows ({thousands(rows)}) than there are features ({features.dim:,}): name fewer columns."
    if not size[concerned].any():
        return "They are 0 in every row: leave that column out."
    actions, intercept = features.actions, bool(getattr(features, "intercept", False))
    if actions is None:
        return _tied([features.names[j] for j in concerned], intercept=False)
    if not _is_per_action(features):
        return (
            "Columns, of the log or of the table of actions, are copies or sums of each other: leave one out."
        )
    width = features.dim // len(actions)
    rare = sorted({actions[k] for k in concerned // width}, key=actions.index)
    if len(rare) < len(actions):
        return (
            f"Too few rows, or too few different contexts, come with the action {_listed(rare)}: leave it out of the "
            "log, put rare actions together, use the features 'indicator', or let actions borrow from each "
            "other, task_cov='crossed'."
        )
    positions = sorted(set((concerned % width).tolist()))
    return _tied(
        [features.columns[k - intercept] for k in positions if k >= intercept],
        intercept=intercept and 0 in positions,
    )


def _tied(columns: list[str], *, intercept: bool) -> str:
    if not intercept:
        return f"The columns {_listed(columns)} are copies or sums of each other: leave one out."
    if len(columns) == 1:
        return (
            f"Column {columns[0]!r} is constant, or so far from 0 that its spread is lost in rounding: leave it out, "
            "or subtract its mean."
        )
    return (
        f"A sum of the columns {_listed(columns)} is constant, as where each class of a category has its 0/1 column: "
        "leave one out."
    )


def _listed(names: Sequence[Any]) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > _SHOWN else ""
    return ", ".join(repr(name) for name in names[:_SHOWN]) + more
