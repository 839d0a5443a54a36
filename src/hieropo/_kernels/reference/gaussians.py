"""Batches of Gaussians by their precisions and shifts, Gamma mean = shift."""

import numpy as np

from hieropo._utils.arrays import Array


def inverted(precision: Array, shift: Array) -> tuple[Array, Array, Array]:
    """Covariances, means and Phi of Gaussians with some precisions (..., D, D) and Gamma mean = shift (..., D)."""
    diagonal = np.einsum("...ii->...i", precision)
    if not (diagonal > 0).all():
        raise np.linalg.LinAlgError("not positive definite")
    scale = np.sqrt(diagonal)
    root = np.linalg.cholesky(precision / (scale[..., :, None] * scale[..., None, :]))
    half = np.linalg.solve(root, np.broadcast_to(np.eye(scale.shape[-1]), root.shape)) / scale[..., None, :]
    cov = half.swapaxes(-1, -2) @ half
    along = np.einsum("...ij,...j->...i", half, shift)
    mean = np.einsum("...ij,...i->...j", half, along)
    log_det = np.log(np.einsum("...ii->...i", root)).sum(axis=-1) + np.log(scale).sum(axis=-1)
    return cov, mean, 0.5 * np.square(along).sum(axis=-1) - log_det


def phi(precision: Array, shift: Array) -> Array:
    """Phi of Gaussians with some precisions (..., D, D) and Gamma mean = shift (..., D), from a root alone."""
    root = np.linalg.cholesky(precision)
    along, square = np.empty_like(shift), np.zeros(shift.shape[:-1])
    for j in range(shift.shape[-1]):
        seen = np.einsum("...i,...i->...", root[..., j, :j], along[..., :j])
        along[..., j] = (shift[..., j] - seen) / root[..., j, j]
        square += np.square(along[..., j])
    return np.asarray(0.5 * square - np.log(np.einsum("...ii->...i", root)).sum(axis=-1))
