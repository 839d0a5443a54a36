"""Columns that users of libraries without tasks build by hand; counted as lines of their code."""

import numpy as np
import scipy.sparse as sp


def intercept(x: np.ndarray) -> np.ndarray:
    """Contexts behind a column of ones, (n, 1 + c)."""
    return np.concatenate([np.ones((len(x), 1)), x], axis=1)


class Coded:
    """Numbers of the tasks of a log; one that the log does not have is -1."""

    def __init__(self, tasks: np.ndarray) -> None:
        self.known = np.unique(tasks)

    def codes(self, tasks: np.ndarray) -> np.ndarray:
        place = np.minimum(np.searchsorted(self.known, tasks), self.known.size - 1)
        return np.where(self.known[place] == tasks, place, -1)


def wide(phi: np.ndarray, code: np.ndarray, count: int) -> sp.csr_matrix:
    """[phi, phi (x) task] of rows (n, p) with tasks (n,), as a sparse matrix (n, p (1 + tasks))."""
    n, p = phi.shape
    held = code >= 0
    columns = np.where(held, code, 0)[:, None] * p + np.arange(p)
    rows = np.repeat(np.arange(n), p)
    crossed = sp.csr_matrix(((phi * held[:, None]).ravel(), (rows, columns.ravel())), (n, p * count))
    return sp.hstack([sp.csr_matrix(phi), crossed], format="csr")
