"""The status of a state, read from its manifest and its log; the service may be at work."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hieropo._utils.progress import duration
from hieropo.errors import InputError
from hieropo.passes.log_moments import LogMoments
from hieropo.report.document import (
    Curve,
    Curves,
    Document,
    Grid,
    Interval,
    Intervals,
    Items,
    Notice,
    Section,
    Text,
)
from hieropo.serve.columns import RecordColumns
from hieropo.serve.segments import read_manifest, read_rows
from hieropo.serve.settings import Settings
from hieropo.serve.usable import in_words, left_out
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
    features = LogMoments.load(state / manifest.base).features
    others = left_out(state, manifest.segments, columns, features)
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
        "window": settings.window,
        "rows": sum(segment.rows for segment in manifest.segments),
        "learned_through": manifest.sums_through,
        "judgeable": settings.explores,
        "watch": watch(rows, columns, manifest.active, settings.false_alarms, others).to_dict(),
    }  # fmt: skip


def status_text(status: dict[str, Any]) -> str:
    """Return a status in sentences."""
    return "\n".join([*_record(status), *_watched(status), *_alarms(status), *_versions(status)])


def _record(status: dict[str, Any]) -> list[str]:
    left = status["watch"]["left_out"]
    return [
        f"Record: {status['rows']:,} rows in {status['segments']:,} segments.",
        f"A decision joins it when its window of {duration(status['window'])} is over and its segment is sealed.",
        *([f"Decisions that are not learned from: {in_words(left)}."] if left else []),
        f"Learned through segment {status['learned_through']}.",
    ]


def _watched(status: dict[str, Any]) -> list[str]:
    watched = status["watch"]
    rows = max(watched["rows"], 1)
    shifts = sorted(watched["context_shifts"].items(), key=lambda pair: -abs(pair[1]))[:5]
    return [
        f"Version {status['active']} decides; it made {watched['rows']:,} rows.",
        f"Effective sample size of these rows: {watched['ess']:,.0f} ({watched['ess'] / rows:.1%}).",
        *(
            f"Mode {mode}: {count:,} rows ({count / rows:.1%})."
            for mode, count in sorted(watched["modes"].items())
        ),
        *(
            f"Rows with {_UNSEEN.get(kind, 'an unknown level of ' + kind.partition(':')[2])}: {count:,} "
            f"({count / rows:.1%})."
            for kind, count in sorted(watched["unseen"].items())
        ),
        f"Total variation distance between the tasks of their older and newer half: {watched['tasks_shift']:.2f}.",
        *(f"Shift of context {name} between these halves: {shift:+.2f}." for name, shift in shifts),
    ]


def _alarms(status: dict[str, Any]) -> list[str]:
    lines = [_alarm(one) for one in status["watch"]["actions"] if one["alarm_since"] is not None]
    if not lines:
        lines.append("No reward is at odds with its prediction, as far as the sequential check shows.")
    if not status["judgeable"]:
        lines.append("The log holds propensity 1 alone, and cannot be used to evaluate another policy.")
    return lines


def _versions(status: dict[str, Any]) -> list[str]:
    return [f"Version {one['number']}: {one['state']}. {one['reason']}" for one in status["versions"]]


_CHARTS = 6  # actions whose rewards are drawn
_UNSEEN = {"task": "an unknown task", "action": "an unknown action"}


def status_document(status: dict[str, Any]) -> Document:
    """Return a status as the content of a page."""
    watched = status["watch"]
    raised = any(one["alarm_since"] is not None for one in watched["actions"])
    actions = tuple(
        (
            str(one["action"]), f"{one['tasks']:,}", f"{one['mean_z']:+.2f}", f"{one['evidence']:.3g}",
            "quiet" if one["alarm_since"] is None else "alarm",
        )
        for one in watched["actions"]
    )  # fmt: skip
    notice = Notice(
        "Not as predicted" if raised else "No alarm", " ".join(_alarms(status)), "bad" if raised else "good"
    )
    evidence = Grid(
        ("Action", "Tasks", "Mean residual", "Evidence", "Check"), actions,
        f"The first reward of each task, standardised by its prediction; an alarm at evidence {watched['limit']:,.0f}",
    )  # fmt: skip
    return Document(
        "The decision service", f"Version {status['active']}, {status['rows']:,} rows",
        (
            Section("rewards", "Do rewards come as predicted?", (notice, evidence, *_reward_charts(watched))),
            Section(
                "watch",
                "Decisions of the active version",
                (Items(tuple(_watched(status))), *_mode_chart(watched), *_shift_chart(watched)),
            ),
            Section("record", "The record", (Items(tuple(_record(status))),)),
            Section("versions", "Versions of the policy", (Items(tuple(reversed(_versions(status)))),)),
        ),
    )  # fmt: skip


def _reward_charts(watched: dict[str, Any]) -> Iterator[Curves | Text]:
    """Yield a chart of rewards and predictions over time for each of the actions with the largest evidence."""
    drawn = sorted((one for one in watched["actions"] if one["history"]), key=lambda one: -one["evidence"])
    for one in drawn[:_CHARTS]:
        parts = one["history"]
        reward, spread = _column(parts, "reward"), [1.96 * part["reward_error"] for part in parts]
        low, high = (tuple(m + sign * s for m, s in zip(reward, spread, strict=True)) for sign in (-1.0, 1.0))
        predicted = _column(parts, "predicted")
        yield Curves(
            f"Rewards and predictions of action {one['action']}",
            _hours(parts),
            "reward",
            _since_first(parts),
            (Curve("mean reward, 95 %", reward, low, high), Curve("prediction", *(predicted,) * 3)),
        )
    if len(drawn) > _CHARTS:
        yield Text(f"{len(drawn) - _CHARTS:,} further actions with less evidence are in the table alone.")


def _mode_chart(watched: dict[str, Any]) -> Iterator[Curves]:
    """Yield a chart of the shares of modes over time, where there are rows enough."""
    parts = watched["mode_history"]
    if parts:
        shares = {mode: tuple(part["shares"][mode] for part in parts) for mode in sorted(watched["modes"])}
        curves = tuple(Curve(mode, *(values,) * 3) for mode, values in shares.items())
        yield Curves("Shares of modes", _hours(parts), "share of rows", _since_first(parts), curves)


def _shift_chart(watched: dict[str, Any]) -> Iterator[Intervals]:
    """Yield a chart of the shifts between the older and the newer half of the rows."""
    shifts = {"tasks": watched["tasks_shift"], **watched["context_shifts"]}
    if watched["rows"] > 1:
        yield Intervals(
            "Shifts between the older and the newer half of the rows",
            "standard deviations of a number, else total variation distance",
            tuple(Interval(name, shift, None, None) for name, shift in shifts.items()),
        )


def _column(parts: list[dict[str, Any]], name: str) -> tuple[float, ...]:
    return tuple(part[name] for part in parts)


def _since_first(parts: list[dict[str, Any]]) -> tuple[float, ...]:
    return tuple((part["at"] - parts[0]["at"]) / 3.6e9 for part in parts)


def _hours(parts: list[dict[str, Any]]) -> str:
    start = dt.datetime.fromtimestamp(parts[0]["at"] / 1e6, dt.UTC)
    return f"hours since {start:%Y-%m-%d %H:%M} UTC"


def _alarm(one: dict[str, Any]) -> str:
    return (
        f"Alarm: rewards of action {one['action']!r} are not as predicted (mean standardised residual "
        f"{one['mean_z']:+.2f} over {one['tasks']:,} tasks). Refresh the policy, or step back to an earlier version."
    )
