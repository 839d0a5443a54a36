"""A table that is written piece by piece is the file that is written at once, to the byte where it holds numbers."""

import datetime as dt
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from hieropo import Gaussian, LCBPolicy, load_policy, save_policy
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.table import PosteriorTable
from hieropo.rows.ids import object_array
from hieropo.rows.keys import Keys
from hieropo.storage.columns import encode_ids
from hieropo.storage.load import verify_policy
from hieropo.storage.save import IdKind, save_policy_in_pieces

LAW = Hierarchy(hyper=None, task_cov=np.eye(2), noise_var=1.0)


def table(ids: Any) -> PosteriorTable:
    rng = np.random.default_rng(0)
    m = len(ids)
    covs = np.tile([1.0, 0.2, 2.0], (m, 1)) + rng.uniform(0, 0.1, (m, 3))
    return PosteriorTable.joint(
        Keys(ids), rng.normal(size=(m, 2)), covs, np.arange(m) + 1.0, Gaussian(np.zeros(2), np.eye(2))
    )


def part(whole: PosteriorTable, rows: slice) -> PosteriorTable:
    keys = Keys(whole.keys.values[rows])
    prior = whole.prior_means, whole.prior_covs
    return PosteriorTable(keys, whole.means[rows], whole.covs[rows], whole.rows[rows], *prior)


IDS = {
    "int": np.arange(11) * 7 - 3,
    "uint": np.arange(11, dtype=np.uint64) + 2**63,
    "time": np.arange(11).astype("datetime64[ms]"),
    "text": object_array([f"store {n}" * (n % 3) + f"ü{n}" for n in range(11)]),
    "bytes": object_array([b"%d" % n for n in range(11)]),
    "uuid": object_array([UUID(int=n) for n in range(11)]),
    "date": object_array([dt.date(2020, 1, 1 + n) for n in range(11)]),
    "mixed": object_array([("a", n) if n % 2 else n for n in range(11)]),
}


@pytest.mark.parametrize("kind", IDS)
@pytest.mark.parametrize("size", [1, 4, 11])
def test_pieces_are_the_whole(tmp_path, kind, size):
    whole = table(IDS[kind])
    save_policy(LCBPolicy(whole), tmp_path / "at once", hierarchy=LAW)
    name, buffers = encode_ids(whole.keys.values)
    sizes = tuple(buffer.nbytes for buffer in buffers)
    pieces = (part(whole, slice(start, start + size)) for start in range(0, 11, size))
    population = LCBPolicy(part(whole, slice(0, 0)))
    save_policy_in_pieces(population, pieces, 11, IdKind(name, sizes), tmp_path / "pieces", hierarchy=LAW)
    verify_policy(tmp_path / "pieces")
    stored = load_policy(tmp_path / "pieces").policy
    assert stored.table.keys.values.tolist() == whole.keys.values.tolist()
    assert np.array_equal(stored.table.means, whole.means)
    assert np.array_equal(stored.table.covs, whole.covs)
    assert stored.table.keys.locate(whole.keys.values).tolist() == list(range(11))
    one, other = (pa.memory_map(str(tmp_path / name / "tasks.arrow")) for name in ("at once", "pieces"))
    with one, other:
        assert pa.ipc.open_file(one).read_all().equals(pa.ipc.open_file(other).read_all())
