"""Write a policy to a directory."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hieropo._utils.arrays import Array
from hieropo.errors import MismatchError
from hieropo.estimation.hyper.uncertainty import HyperUncertainty, hyper_uncertainty_to_dict
from hieropo.model.gaussian import Gaussian
from hieropo.model.hierarchy import Grouped
from hieropo.model.table import PosteriorTable
from hieropo.moments.row_sketch import RowSketch
from hieropo.moments.statistics import Moments
from hieropo.policies.gating import GatedPolicy
from hieropo.policies.lower_bound import LCBPolicy
from hieropo.rows.ids import encode_id
from hieropo.storage import layout
from hieropo.storage.columns import encode_ids, id_codes
from hieropo.storage.directories import plain_json, writing
from hieropo.storage.moments import flat, parent_columns, stored_offset, write_moments
from hieropo.storage.row_checksums import row_checksums
from hieropo.storage.self_check import SomeTasks, check_moments, fixed_bounds


def save_policy(  # noqa: PLR0913 - the parts of a fit
    policy: LCBPolicy | GatedPolicy,
    path: str | os.PathLike[str],
    *,
    moments: Moments | None = None,
    hierarchy: layout.AnyHierarchy | None = None,
    hyper: Gaussian | None = None,
    log_evidence: float | None = None,
    hyper_uncertainty: HyperUncertainty = None,
    sketch: RowSketch | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write a policy to a directory; it replaces a policy at ``path`` in one step.

    A reader finds the old or the new policy at any time, also when this process is killed or the disk is full.

    Parameters
    ----------
    policy : LCBPolicy or GatedPolicy
        Written with all that its choices depend on: table, feature map, pessimism, rule for unseen tasks, gate.
    path : path
        The directory. Its parent must exist. It must not exist, or be empty or a policy.
    moments : Moments, optional
        The moments that the policy was learned from, so that more rows can be added.
    hierarchy : Hierarchy, CrossedHierarchies or CrossedHierarchy, optional
        The hierarchy of the policy.
    hyper : Gaussian, optional
        Posterior of the population mean (the root of the hierarchy).
    log_evidence : float, optional
        Log marginal likelihood of the log.
    hyper_uncertainty : HyperDraws or HyperError, optional
        Uncertainty of the hyper-parameters, where the table accounts for it.
    sketch : RowSketch, optional
        A fingerprint of the rows that the policy was learned from.
    provenance : mapping, optional
        Further facts to store; anything that JSON can hold.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    ArtifactError
        ``path`` holds something else, or cannot be written; its content is unchanged.
    InputError
        A task id or an entry of ``provenance`` would not be read back equal.
    MismatchError
        Policy, moments and hierarchy are not of the same fit.
    """
    gate, policy = policy if isinstance(policy, GatedPolicy) else None, policy.ungated
    _check_parts(policy, moments, hierarchy, None if hyper_uncertainty is not None else hyper)
    document = _describe(policy, moments, hierarchy, hyper)
    if hyper_uncertainty is not None:
        document["doubt"] = hyper_uncertainty_to_dict(hyper_uncertainty)
    if gate is not None:
        document["gate"] = _gate(gate)
    if sketch is not None:
        document["row_sketch"] = sketch.to_dict()
    document |= {"log_evidence": log_evidence, "provenance": plain_json(provenance or {})}
    with writing(path, layout.POLICY) as folder:
        document["files"] = _write_tables(folder, policy, moments, hierarchy)
        if gate is not None:
            document["files"][layout.GATE] = _write_gate(folder, gate.harm)
        (folder / layout.POLICY.document).write_bytes(layout.encode(document))
    return Path(os.path.realpath(path))


class IdKind(NamedTuple):
    """The kind of the ids of a table that is written piece by piece, and the bytes of their buffers.

    Parameters
    ----------
    kind : str
        As :func:`hieropo.storage.columns.encode_ids` names it.
    sizes : tuple of int
        Of ids of variable length: bytes of the offsets, and of the text.
    """

    kind: str
    sizes: tuple[int, ...]


def save_policy_in_pieces(  # noqa: PLR0913 - the parts of a fit
    population: LCBPolicy,
    tables: Iterable[PosteriorTable],
    tasks: int,
    ids: IdKind,
    path: str | os.PathLike[str],
    *,
    hierarchy: layout.AnyHierarchy,
    hyper: Gaussian | None = None,
    log_evidence: float | None = None,
    hyper_uncertainty: HyperUncertainty = None,
    sketch: RowSketch | None = None,
    gate: GatedPolicy | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write a policy whose table comes in pieces, of which one is in memory at a time; it holds no moments.

    The directory is that of :func:`save_policy`, and so are the other parameters and the errors.

    Parameters
    ----------
    population : LCBPolicy
        With a table of no task: feature map, pessimism, rule for unseen tasks, their prior.
    tables : iterable of PosteriorTable
        Of different tasks.
    tasks : int
        Of all tables together.
    ids : IdKind
        Of all tables together.
    gate : GatedPolicy, optional
        The gate of some of the tasks; no other task passes it.
    """
    _check_parts(population, None, hierarchy, None if hyper_uncertainty is not None else hyper)
    document = _describe(population, None, hierarchy, hyper)
    if hyper_uncertainty is not None:
        document["doubt"] = hyper_uncertainty_to_dict(hyper_uncertainty)
    if sketch is not None:
        document["row_sketch"] = sketch.to_dict()
    if gate is not None:
        document["gate"] = _gate(gate)
    document |= {"tasks": tasks, "log_evidence": log_evidence, "provenance": plain_json(provenance or {})}
    with writing(path, layout.POLICY) as folder:
        document["files"], document["check"] = _write_pieces(folder, population, tables, tasks, ids, gate)
        (folder / layout.POLICY.document).write_bytes(layout.encode(document))
    return Path(os.path.realpath(path))


def _write_pieces(
    folder: Path,
    population: LCBPolicy,
    tables: Iterable[PosteriorTable],
    tasks: int,
    ids: IdKind,
    gate: GatedPolicy | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the tables of a policy piece by piece; return the entries of the files, and of the self-check."""
    from hieropo.storage import arrow
    from hieropo.storage.streamed import StreamedTable, ids_layout, numbers_layout

    width, packed = population.table.prior_means.size, population.table.prior_covs.size
    layouts = {
        "id": ids_layout(ids.kind, ids.sizes),
        "rows": numbers_layout(tasks, "<f8"),
        "mean": numbers_layout(tasks, "<f8", width),
        "cov": numbers_layout(tasks, "<f8", packed),
        "checksum": numbers_layout(tasks, "<u4"),
    }
    table = StreamedTable.create(folder / layout.TASKS, tasks, layouts)
    codes, checked = np.empty(0, dtype="<i8"), SomeTasks.of(tasks)
    harm = np.full(0 if gate is None else tasks, np.nan)
    first, texts = 0, 0
    with (folder / layout.TASKS).open("r+b") as file:
        for part in tables:
            values, means, covs = part.keys.values, flat(part.means), flat(part.covs)
            part_codes = id_codes(values)
            if not first:
                codes = np.empty(tasks, dtype=part_codes.dtype)
            codes[first : first + len(values)] = part_codes
            texts = _put_ids(table, file, values, ids, first, texts)
            table.put(file, "rows", 8 * first, np.asarray(part.rows))
            table.put(file, "mean", 8 * width * first, means)
            table.put(file, "cov", 8 * packed * first, covs)
            checks = row_checksums(part_codes, part.rows, means, covs, first)
            table.put(file, "checksum", 4 * first, checks)
            checked.add(part, first)
            if gate is not None:
                rows = np.asarray(gate.table.keys.locate(values))
                harm[first : first + len(values)][rows >= 0] = gate.harm[rows[rows >= 0]]
            first += len(values)
    order = np.argsort(codes, kind="stable")
    lookup = {"code": arrow.numbers(codes[order]), "row": arrow.numbers(order)}
    files = {
        layout.TASKS: table.entry(),
        layout.LOOKUP: arrow.write_table(folder / layout.LOOKUP, lookup),
    }
    if gate is not None:
        files[layout.GATE] = _write_gate(folder, harm)
    return files, checked.bounds(population)


def _put_ids(table: Any, file: Any, values: Any, ids: IdKind, first: int, texts: int) -> int:
    """Write ids from row ``first`` on, whose texts begin at byte ``texts``; return the end of the texts."""
    _, buffers = encode_ids(values, ids.kind)
    if len(buffers) == 1:
        table.put(
            file,
            "id",
            buffers[0].dtype.itemsize * (buffers[0].size // max(len(values), 1)) * first,
            buffers[0],
        )
        return texts
    ends, text = buffers
    table.put(file, "id", 8 * first, ends + texts)
    table.put(file, "id", texts, text, 1)
    return texts + int(text.size)


def _gate(gate: GatedPolicy) -> dict[str, Any]:
    incumbent = None if gate.incumbent is None else encode_id(gate.incumbent)
    return {
        "max_harm": gate.max_harm, "incumbent": incumbent, "limits": list(gate.limits), "eligible": gate.eligible,
    }  # fmt: skip


def _write_gate(folder: Path, harm: Array) -> dict[str, Any]:
    from hieropo.storage import arrow

    return arrow.write_table(folder / layout.GATE, {"harm": arrow.numbers(harm)})


def _check_parts(
    policy: LCBPolicy,
    moments: Moments | None,
    hierarchy: layout.AnyHierarchy | None,
    hyper: Gaussian | None,
) -> None:
    table = policy.table
    per_action = table.per_action
    for name, part in (("moments", moments), ("hierarchy", hierarchy)):
        if part is not None and part.per_action != per_action:
            of_policy, of_part = (
                ("each action of a task", "all actions") if per_action else ("a task", "each action")
            )
            raise MismatchError(
                f"The policy has one posterior for {of_policy}, and its {name}, {type(part).__name__}, one for "
                f"{of_part}. Give the parts of one fit."
            )
    dim = table.means.shape[-1]
    dims = (
        ("moments", None if moments is None else moments.dim, table.dim),
        ("hierarchy", None if hierarchy is None else hierarchy.feature_dim, dim),
        ("hyper", None if hyper is None else hyper.dim, dim if hierarchy is None else hierarchy.root_dim),
    )
    for name, part_dim, needed in dims:
        if part_dim not in (None, needed):
            raise MismatchError(
                f"The policy has {needed} features, and its {name} {part_dim}. Give the parts of one fit."
            )
    fingerprint = None if moments is None else moments.features
    if policy.features is not None and fingerprint not in (None, policy.features.fingerprint):
        raise MismatchError(
            "The moments were made with another feature map than that of the policy. Give the parts of one fit."
        )
    if moments is not None and hierarchy is not None and hyper is not None:
        problem = check_moments(table, moments, hierarchy, hyper)
        if problem:
            raise MismatchError(f"{problem} Give the moments and the hierarchy of the policy.")


def _describe(
    policy: LCBPolicy,
    moments: Moments | None,
    hierarchy: layout.AnyHierarchy | None,
    hyper: Gaussian | None,
) -> dict[str, Any]:
    features = policy.features
    per_action = policy.table.per_action
    return {
        **layout.head(layout.POLICY),
        "dim": policy.table.dim,
        "tasks": len(policy.table.keys),
        **({"actions_apart": policy.table.means.shape[1]} if per_action else {}),
        "features": None if features is None else features.to_dict(),
        "features_fingerprint": None if features is None else features.fingerprint,
        "pessimism": float(policy.pessimism),
        "unseen": policy.unseen,
        "prior": layout.from_prior(policy.table),
        "hyper": layout.from_gaussian(hyper),
        "hierarchy": layout.from_hierarchy(hierarchy),
        "moments_features": None if moments is None else moments.features,
        "moments_offset": None if moments is None else stored_offset(moments),
        "check": fixed_bounds(policy),
    }


def _write_tables(
    folder: Path,
    policy: LCBPolicy,
    moments: Moments | None,
    hierarchy: layout.AnyHierarchy | None,
) -> dict[str, Any]:
    from hieropo.storage import arrow

    table: Any = policy.table  # tables that can be saved also have ids and counts of rows
    ids = table.keys.values
    means, covs = flat(table.means), flat(table.covs)
    codes = id_codes(ids)
    order = np.argsort(codes, kind="stable")
    files = {
        layout.TASKS: arrow.write_table(
            folder / layout.TASKS,
            {
                "id": arrow.ids(ids),
                "rows": arrow.numbers(table.rows),
                "mean": arrow.numbers(means),
                "cov": arrow.numbers(covs),
                "checksum": arrow.numbers(row_checksums(codes, table.rows, means, covs)),
            },
        ),
        layout.LOOKUP: arrow.write_table(
            folder / layout.LOOKUP, {"code": arrow.numbers(codes[order]), "row": arrow.numbers(order)}
        ),
    }
    if moments is not None:
        files[layout.MOMENTS] = write_moments(folder / layout.MOMENTS, moments)
    if hierarchy is not None:
        levels: tuple[Grouped, ...] = hierarchy.levels
        for number, level in enumerate(levels):
            name = layout.level_file(number)
            files[name] = arrow.write_table(folder / name, parent_columns(level.parent))
        if hierarchy.metadata is not None:
            tasks, values = hierarchy.metadata.tasks.values, flat(hierarchy.metadata.values)
            columns = {"id": arrow.ids(tasks), "values": arrow.numbers(values)}
            files[layout.METADATA] = arrow.write_table(folder / layout.METADATA, columns)
        noise = layout.task_noise(hierarchy)
        if noise is not None:
            columns = {"id": arrow.ids(noise.tasks.values), "precision": arrow.numbers(noise.precision)}
            files[layout.NOISE] = arrow.write_table(folder / layout.NOISE, columns)
        error = layout.rate_error(hierarchy)
        if error is not None:
            columns = {"id": arrow.ids(error.tasks.values), "root": arrow.numbers(flat(error.root))}
            files[layout.DRIFT] = arrow.write_table(folder / layout.DRIFT, columns)
    return files
