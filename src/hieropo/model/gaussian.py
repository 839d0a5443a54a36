"""A multivariate Gaussian as a value."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hieropo._utils.arrays import Array
from hieropo._utils.brief import brief
from hieropo.errors import InputError, NumericalError


def frozen(values: ArrayLike) -> Array:
    """Return a read-only float64 copy, C-contiguous."""
    array = np.array(values, dtype=np.float64, order="C")
    array.flags.writeable = False
    return array


def check_covariance(cov: ArrayLike, name: str) -> Array:
    """Return ``cov`` symmetrised and read-only; raise where it is not a finite symmetric PSD matrix.

    Raises
    ------
    InputError
        Not square, not finite, not symmetric to 1e-8 of its largest entry.
    NumericalError
        An eigenvalue below ``-1e-8`` of the largest one.
    """
    matrix = np.asarray(cov, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{name} has the shape {matrix.shape}; a square (d, d) matrix is needed.")
    if not np.isfinite(matrix).all():
        i, j = np.argwhere(~np.isfinite(matrix))[0]
        raise InputError(f"{name}[{i}, {j}] is {matrix[i, j]}; every entry must be finite.")
    size = np.abs(matrix).max(initial=0.0)
    gap = np.abs(matrix - matrix.T).max(initial=0.0)
    if gap > 1e-8 * size:
        raise InputError(
            f"{name} is not symmetric: an entry differs from its mirror by {gap:.3g}. "
            "A covariance is symmetric; was a factor handed in by mistake?"
        )
    symmetric = (matrix + matrix.T) / 2
    values = np.linalg.eigvalsh(symmetric)
    if values.size and values[0] < -1e-8 * size:
        raise NumericalError(
            f"{name} (dimension {matrix.shape[0]}) has the negative eigenvalue {values[0]:.3g}; a covariance has "
            "none. Was a difference of covariances, or a precision, handed in by mistake?"
        )
    return frozen(symmetric)


def plus(vectors: Array, shift: Array | None) -> Array:
    """Return vectors (..., d) with ``shift`` (k,), k <= d, added to their first k entries; None adds nothing."""
    if shift is None:
        return vectors
    shifted = vectors.copy()
    shifted[..., : shift.size] += shift
    return shifted


def minus(shift: Array | None) -> Array | None:
    """Return the shift that undoes another one."""
    return None if shift is None else -shift


@dataclass(frozen=True, slots=True, eq=False)
class Gaussian:
    """The distribution N(mean, cov).

    Parameters
    ----------
    mean : (d,) array
        Finite.
    cov : (d, d) array
        Symmetric positive semi-definite; singular and zero are allowed.

    Raises
    ------
    InputError, NumericalError
        Shapes do not match, an entry is not finite, ``cov`` is not a covariance.
    """

    mean: Array
    cov: Array

    __repr__ = brief

    def __post_init__(self) -> None:
        mean = frozen(self.mean)
        if mean.ndim != 1 or not np.isfinite(mean).all():
            raise InputError(f"The mean of a Gaussian must be finite and of shape (d,); got {self.mean!r}.")
        cov = check_covariance(self.cov, "The covariance of a Gaussian")
        if cov.shape[0] != mean.size:
            raise InputError(f"Mean of dimension {mean.size} does not fit covariance of shape {cov.shape}.")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "cov", cov)

    @classmethod
    def trusted(cls, mean: Array, cov: Array) -> "Gaussian":
        """Return a Gaussian of arrays that are known to be valid, without checks; the arrays become read-only."""
        self = object.__new__(cls)
        mean.flags.writeable = False
        cov.flags.writeable = False
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "cov", cov)
        return self

    def plus(self, shift: Array | None) -> "Gaussian":
        """Return the distribution of x + (shift, 0), shift (k,) for the first k <= d coordinates; None is no shift."""
        return self if shift is None else Gaussian.trusted(plus(self.mean, shift), self.cov)

    @property
    def dim(self) -> int:
        """The dimension d."""
        return self.mean.size

    @property
    def sd(self) -> Array:
        """The standard deviation of each coordinate, shape (d,)."""
        return np.sqrt(np.maximum(np.diagonal(self.cov), 0.0))

    def project(self, phi: ArrayLike) -> tuple[Array, Array]:
        """Return mean and variance of ``phi' theta``; phi (..., d) gives two arrays of shape (...)."""
        direction = np.asarray(phi, dtype=np.float64)
        if direction.ndim == 0 or direction.shape[-1] != self.dim:
            raise InputError(
                f"phi has the shape {direction.shape}; its last axis must have the length {self.dim}."
            )
        var = np.einsum("...i,...i->...", direction @ self.cov, direction)
        return direction @ self.mean, np.maximum(var, 0.0)

    def sample(self, rng: np.random.Generator, n: int) -> Array:
        """Return n random draws, shape (n, d); the covariance may be singular."""
        values, vectors = np.linalg.eigh(self.cov)
        factor = vectors * np.sqrt(np.maximum(values, 0.0))
        draws: Array = self.mean + rng.standard_normal((n, self.dim)) @ factor.T
        return draws
