"""The status of a state, read from its manifest and its log; the service may be at work."""

from pathlib import Path
from typing import Any

from hieropo.errors import InputError
from hieropo.serve.columns import RecordColumns
from hieropo.serve.segments import read_manifest, read_rows
from hieropo.serve.settings import Settings
from hieropo.serve.watching import watch


def status_of(state: Path, settings: Settings) -> dict[str, Any]:
    """Return the status of a state as JSON can hold it.

    Raises
    ------
    InputError
        The directory is no state of a service.
    ArtifactError
        The manifest is damaged.
    """
    manifest = read_manifest(state)
    if manifest is None:
        raise InputError(
            f"{state} is no state of a service: it has no manifest. Start one with `hieropo serve`."
        )
    columns = RecordColumns.from_dict(manifest.columns)
    rows = read_rows(state, manifest.segments, "log", columns)
    return {
        "active": manifest.active,
        "versions": [
            {
                "number": one.number, "state": one.state, "reason": one.reason, "created": one.created,
                "through": one.through,
            }
            for one in manifest.versions
        ],
        "segments": len(manifest.segments),
        "rows": sum(segment.rows for segment in manifest.segments),
        "learned_through": manifest.sums_through,
        "judgeable": settings.explores,
        "watch": watch(rows, columns, manifest.active, settings.false_alarms).to_dict(),
    }  # fmt: skip


def status_text(status: dict[str, Any]) -> str:
    """Return a status in sentences."""
    watched = status["watch"]
    lines = [
        f"Record: {status['rows']:,} rows in {status['segments']:,} segments.",
        f"Learned through segment {status['learned_through']}.",
        f"Version {status['active']} decides; it made {watched['rows']:,} rows.",
        f"Effective sample size of these rows: {watched['ess']:,.0f}.",
        f"Total variation distance between the tasks of their older and newer half: {watched['tasks_shift']:.2f}.",
        *(f"Mode {mode}: {count:,} rows." for mode, count in sorted(watched["modes"].items())),
        *(_alarm(one) for one in watched["actions"] if one["alarm_since"] is not None),
        *(f"Version {one['number']}: {one['state']}. {one['reason']}" for one in status["versions"]),
    ]
    if not any(one["alarm_since"] for one in watched["actions"]):
        lines.append("No reward is at odds with its prediction, as far as the sequential check shows.")
    if not status["judgeable"]:
        lines.append("The log holds propensity 1 alone, and cannot be used to evaluate another policy.")
    return "\n".join(lines)


def _alarm(one: dict[str, Any]) -> str:
    return (
        f"Alarm: rewards of action {one['action']!r} are not as predicted (mean standardised residual "
        f"{one['mean_z']:+.2f} over {one['tasks']:,} tasks). Refresh the policy, or step back to an earlier version."
    )
