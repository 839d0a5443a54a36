"""Read a policy from its directory."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from struct import Struct
from typing import Any

from hieropo._utils.blas_threads import one_blas_thread
from hieropo._utils.packed import packed_size
from hieropo.errors import InputError, NumericalError
from hieropo.estimation.crossed.walking import RateError
from hieropo.estimation.hyper.uncertainty import HyperUncertainty, hyper_uncertainty_from_dict
from hieropo.features.maps import FeatureMap
from hieropo.model.crossed.task_noise import TaskNoise
from hieropo.model.gaussian import Gaussian
from hieropo.model.metadata import Metadata
from hieropo.model.table import PosteriorTable
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.ids import decode_id
from hieropo.rows.keys import Keys
from hieropo.storage import layout
from hieropo.storage.directories import other_number, read_features, unreadable
from hieropo.storage.mapped import MappedFile, open_directory
from hieropo.storage.moments import read_moments, read_parents, stored_ids
from hieropo.storage.row_checksums import RowBytes
from hieropo.storage.self_check import check_moments, difference, other_posterior
from hieropo.storage.table import StoredKeys

SMALL = 64 << 20  # bytes of a directory up to which a load verifies all of it


@dataclass(frozen=True, eq=False)
class StoredPolicy:
    """A policy on disk, with the hierarchy, moments and provenance that were saved with it.

    Parameters
    ----------
    path : Path
        The directory.
    policy : LCBPolicy or GatedPolicy
        Makes the same choices as the saved policy. Its table is a memory map, which stays valid when the files are
        replaced.
    hyper : Gaussian or None
        Posterior of the population mean (the root of the hierarchy).
    log_evidence : float or None
        Log marginal likelihood.
    provenance : dict
        As it was given to ``save_policy``.
    """

    path: Path
    policy: LCBPolicy | GatedPolicy
    hyper: Gaussian | None
    log_evidence: float | None
    provenance: dict[str, Any]
    _document: Mapping[str, Any] = field(repr=False)
    _files: Mapping[str, MappedFile] = field(repr=False)

    @property
    def features(self) -> FeatureMap | None:
        """Return the feature map of the policy."""
        return self.policy.features

    @cached_property
    def hyper_uncertainty(self) -> HyperUncertainty:
        """Return the uncertainty of the hyper-parameters; None where the table takes them as known.

        Raises
        ------
        ArtifactError
            The entry does not describe it.
        """
        try:
            return hyper_uncertainty_from_dict(self._document.get("doubt"))
        except (InputError, NumericalError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise unreadable(self.path, "doubt", error) from error

    @cached_property
    def sketch(self) -> RowSketch:
        """Return the fingerprint of the rows that the policy was learned from; unknown where none was saved."""
        entry = self._document.get("row_sketch")
        return RowSketch.unknown(0) if entry is None else RowSketch.from_dict(entry)

    @cached_property
    def hierarchy(self) -> layout.AnyHierarchy | None:
        """Return the hierarchy of the policy; the parents of its levels are read on first use.

        Raises
        ------
        ArtifactError
            The file of a level has changed since it was written, or the entry does not describe a hierarchy.
        """
        entry = self._document["hierarchy"]
        if entry is None:
            return None
        try:
            return layout.to_hierarchy(entry, self._parents, self._metadata, self._noise, self._rates)
        except (InputError, NumericalError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise unreadable(self.path, "hierarchy", error) from error

    def _parents(self, number: int) -> dict[Any, Any]:
        file = self._files[layout.level_file(number)]
        file.verify()
        return read_parents(file)

    def _metadata(self, entry: dict[str, Any]) -> Metadata:
        file = self._files[layout.METADATA]
        file.verify()
        width = file.entry["columns"]["values"]["buffers"][0][1] // (8 * file.rows)
        tasks = Keys(stored_ids(file, "id").values())
        return layout.to_metadata(entry, tasks, file.array("values", "<f8", width))

    def _noise(self, entry: dict[str, Any]) -> TaskNoise:
        file = self._files[layout.NOISE]
        file.verify()
        tasks = Keys(stored_ids(file, "id").values())
        return TaskNoise(tasks, file.array("precision", "<f8"), entry["degrees"], entry["mean_variance"])

    def _rates(self, shape: list[int]) -> RateError:
        file = self._files[layout.DRIFT]
        file.verify()
        tasks = Keys(stored_ids(file, "id").values())
        root = file.array("root", "<f8", shape[0] * shape[1])
        return RateError(tasks, root.reshape(file.rows, *shape))

    def moments(self) -> Moments | None:
        """Return the moments that the policy was learned from, as views of the mapped file; None without any.

        Raises
        ------
        ArtifactError
            The file has changed since it was written, or the policy does not follow from its moments.
        """
        file = self._files.get(layout.MOMENTS)
        if file is None:
            return None
        file.verify()
        actions, features = self._document.get("actions_apart", 0), self._document["moments_features"]
        offset = self._document["moments_offset"]
        moments = read_moments(file, self.policy.table.dim, actions, features, offset)
        if self.hierarchy is not None and self.hyper is not None and self.hyper_uncertainty is None:
            problem = check_moments(self.policy.table, moments, self.hierarchy, self.hyper)
            if problem:
                raise other_number(self.path, problem)
        return moments


def load_policy(path: str | os.PathLike[str]) -> StoredPolicy:
    """Load a policy that :func:`hieropo.storage.save_policy` wrote.

    A directory of up to 64 MiB is verified byte by byte. In a larger one the document is verified at once, and each
    row when it is first looked up; :func:`verify_policy` verifies everything. Nothing is unpickled and no code is run.

    Parameters
    ----------
    path : path
        The directory.

    Returns
    -------
    StoredPolicy
        The policy, its features, provenance, hierarchy and moments.

    Raises
    ------
    ArtifactError
        There is no policy; or it is torn, edited, of another format version, or gives other lower bounds than when it
        was saved. The message names the file.
    """
    return _open(Path(path), verify_all=False)


@one_blas_thread
def verify_policy(path: str | os.PathLike[str]) -> None:
    """Check every byte of a policy directory, and check its posterior against one computed from its moments.

    Raises
    ------
    ArtifactError
        As :func:`load_policy`; the message names the first file that has changed.
    """
    stored = _open(Path(path), verify_all=True)
    moments, hierarchy = stored.moments(), stored.hierarchy
    if moments is not None and hierarchy is not None:
        problem = other_posterior(stored.policy.table, moments, hierarchy, stored.hyper_uncertainty, stored)
        if problem:
            raise other_number(stored.path, problem)


def _open(path: Path, *, verify_all: bool) -> StoredPolicy:
    folder, document, files = open_directory(path, layout.POLICY)
    verified = verify_all or sum(file.entry["bytes"] for file in files.values()) <= SMALL
    if verified:
        for file in files.values():
            file.verify()
    features = read_features(folder, document, layout.POLICY)
    table = _table(files[layout.TASKS], files[layout.LOOKUP], document, verified=verified)
    policy = LCBPolicy(table, features, pessimism=document["pessimism"], unseen=document["unseen"])
    problem = difference(table, policy.pessimism, document["check"])
    if problem:
        raise other_number(folder, problem)
    return StoredPolicy(
        path=folder,
        policy=_gated(policy, document, files),
        hyper=layout.to_gaussian(document["hyper"]),
        log_evidence=document["log_evidence"],
        provenance=document["provenance"],
        _document=document,
        _files=files,
    )


def _gated(
    policy: LCBPolicy, document: dict[str, Any], files: Mapping[str, MappedFile]
) -> LCBPolicy | GatedPolicy:
    entry = document.get("gate")
    if entry is None:
        return policy
    file = files[layout.GATE]
    file.verify()
    incumbent = None if entry["incumbent"] is None else decode_id(entry["incumbent"])
    return GatedPolicy(
        policy,
        file.array("harm", "<f8"),
        entry["max_harm"],
        incumbent,
        tuple(entry["limits"]),
        entry.get("eligible"),
    )


def _table(
    tasks: MappedFile, lookup: MappedFile, document: dict[str, Any], *, verified: bool
) -> PosteriorTable:
    dim, actions = document["dim"], document.get("actions_apart", 0)  # actions with separate marginals
    packed = actions * packed_size(dim // actions) if actions else packed_size(dim)
    ids = stored_ids(tasks, "id")
    codes = lookup.bytes_of("code").cast("Q" if _unsigned(ids.kind) else "q")
    rows = RowBytes(
        header=Struct("<qQd" if _unsigned(ids.kind) else "<qqd"),
        counts=tasks.bytes_of("rows").cast("d"),
        checks=tasks.bytes_of("checksum").cast("I"),
        means=tasks.bytes_of("mean"),
        covs=tasks.bytes_of("cov"),
        mean_size=8 * dim,
        cov_size=8 * packed,
    )
    keys = StoredKeys(ids, codes, lookup.bytes_of("row").cast("Q"), rows, tasks, verified)
    means, covs = tasks.array("mean", "<f8", dim), tasks.array("cov", "<f8", packed)
    counts = tasks.array("rows", "<f8")
    if actions:
        means, covs = (
            array.reshape(len(array), actions, array.shape[1] // actions) for array in (means, covs)
        )
    return PosteriorTable(keys, means, covs, counts, *layout.to_prior(document["prior"]))


def _unsigned(kind: str) -> bool:
    return not (kind == "int64" or kind.startswith("datetime64"))
