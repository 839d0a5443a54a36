"""Write a policy."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hieropo.artifacts import layout
from hieropo.artifacts.columns import id_codes
from hieropo.artifacts.probes import check_moments, fixed_bounds
from hieropo.artifacts.rows import row_checksums
from hieropo.artifacts.swap import replacing
from hieropo.core.gaussian import Gaussian
from hieropo.core.hierarchy import Hierarchy, Level
from hieropo.core.policy import LCBPolicy
from hieropo.core.statistics import Moments
from hieropo.errors import ArtifactError, InputError, MismatchError


def save_policy(
    policy: LCBPolicy,
    path: str | os.PathLike[str],
    *,
    moments: Moments | None = None,
    hierarchy: Hierarchy | None = None,
    hyper: Gaussian | None = None,
    log_evidence: float | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write a policy to a directory, in place of the policy that stands there, if one does.

    A reader finds the old policy or the new one at any moment, also when this process is killed or the
    disk is full.

    Parameters
    ----------
    policy : LCBPolicy
        What is written; with it comes what its choices depend on: table, features, pessimism, unseen rule.
    path : path
        The directory. Its parent must exist; what stands there must be a policy, empty or nothing.
    moments : Moments, optional
        The statistics of which the policy was made, so that it can be refreshed with more rows.
    hierarchy : Hierarchy, optional
        The hierarchy under which the policy was made.
    hyper : Gaussian, optional
        Posterior of the root of the hierarchy.
    log_evidence : float, optional
        Log marginal likelihood of the log.
    provenance : mapping, optional
        Anything that JSON can hold, for the reader.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    ArtifactError
        Something else stands at ``path``, or it cannot be written; what stood there is untouched.
    InputError
        A task id or an entry of ``provenance`` would not come back equal.
    MismatchError
        The parts do not belong together.
    """
    target = Path(os.path.realpath(path))
    _check_parts(policy, moments, hierarchy, hyper)
    document = _describe(policy, moments, hierarchy, hyper)
    document |= {"log_evidence": log_evidence, "provenance": _plain_json(provenance or {})}
    try:
        with replacing(target, layout.check_replaceable) as folder:
            document["files"] = _write_tables(folder, policy, moments, hierarchy)
            (folder / layout.DOCUMENT).write_bytes(layout.encode(document))
    except OSError as error:
        raise ArtifactError(
            f"{target} was not written: {_reason(error)}. What stood there before is as it was. "
            "Is the disk full, a quota used up, or the directory closed to this user?"
        ) from error
    return target


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def _check_parts(
    policy: LCBPolicy, moments: Moments | None, hierarchy: Hierarchy | None, hyper: Gaussian | None
) -> None:
    dim = policy.table.dim
    parts = {"moments": moments, "hierarchy": hierarchy, "hyper": hyper}
    for name, part in parts.items():
        if part is not None and part.dim != dim:
            raise MismatchError(f"The policy has {dim} features, its {name} {part.dim}. Are they of one fit?")
    made_with = None if moments is None else moments.features
    if policy.features is not None and made_with not in (None, policy.features.fingerprint):
        raise MismatchError("The moments were made with another feature map. Are they of the same fit?")
    if moments is not None and hierarchy is not None and hyper is not None:
        problem = check_moments(policy.table, moments, hierarchy, hyper)
        if problem:
            raise MismatchError(f"{problem} Hand in what the policy was made of.")


def _describe(
    policy: LCBPolicy, moments: Moments | None, hierarchy: Hierarchy | None, hyper: Gaussian | None
) -> dict[str, Any]:
    from hieropo import __version__

    features = policy.features
    return {
        "format": layout.FORMAT,
        "version": layout.VERSION,
        "written_by": f"hieropo {__version__}",
        "dim": policy.table.dim,
        "tasks": len(policy.table.keys),
        "features": None if features is None else features.to_dict(),
        "features_fingerprint": None if features is None else features.fingerprint,
        "pessimism": float(policy.pessimism),
        "unseen": policy.unseen,
        "prior": layout.from_gaussian(policy.table.prior),
        "hyper": layout.from_gaussian(hyper),
        "hierarchy": layout.from_hierarchy(hierarchy),
        "moments_features": None if moments is None else moments.features,
        "check": fixed_bounds(policy),
    }


def _plain_json(provenance: Mapping[str, Any]) -> dict[str, Any]:
    try:
        twin = json.loads(json.dumps(dict(provenance), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"The provenance is not JSON: {error}. Use texts, numbers and lists.") from error
    for key, value in provenance.items():
        if twin.get(key) != value:
            raise InputError(
                f"The provenance entry {key!r} = {value!r} would come back as {twin.get(key)!r}. "
                "JSON has text keys, and lists but no tuples."
            )
    return dict(twin)


def _write_tables(
    folder: Path, policy: LCBPolicy, moments: Moments | None, hierarchy: Hierarchy | None
) -> dict[str, Any]:
    from hieropo.artifacts import arrow

    table: Any = policy.table  # what can be saved also has ids and counts of rows
    ids = table.keys.values
    codes = id_codes(ids)
    order = np.argsort(codes, kind="stable")
    files = {
        layout.TASKS: arrow.write_table(
            folder / layout.TASKS,
            {
                "id": arrow.ids(ids),
                "rows": arrow.numbers(table.rows),
                "mean": arrow.numbers(table.means),
                "cov": arrow.numbers(table.covs),
                "checksum": arrow.numbers(row_checksums(codes, table.rows, table.means, table.covs)),
            },
        ),
        layout.LOOKUP: arrow.write_table(
            folder / layout.LOOKUP, {"code": arrow.numbers(codes[order]), "row": arrow.numbers(order)}
        ),
    }
    if moments is not None:
        files[layout.MOMENTS] = arrow.write_table(
            folder / layout.MOMENTS,
            {
                "id": arrow.ids(moments.keys.values),
                "rows": arrow.numbers(moments.rows),
                "log_weight": arrow.numbers(moments.log_weight),
                "sums": arrow.numbers(moments.sums),
            },
        )
    for number, level in enumerate(() if hierarchy is None else hierarchy.levels):
        name = layout.level_file(number)
        files[name] = arrow.write_table(folder / name, _parents(level))
    return files


def _parents(level: Level) -> dict[str, Any]:
    from hieropo.artifacts import arrow
    from hieropo.core.ids import id_array

    return {
        "child": arrow.ids(id_array(list(level.parent), "child")),
        "parent": arrow.ids(id_array(list(level.parent.values()), "parent")),
    }
