"""Render the tables of benchmarks/README.md from the JSON of the programs, between the marks of each program.

    python benchmarks/readme.py

A mark is ``<!-- NAME -->``, and ``<!-- /NAME -->`` ends its text. A program whose JSON is not there keeps its text.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import growth
import record

from hieropo.reproduce.writing import table

Results = dict[str, Any]
README = Path(__file__).resolve().parent / "README.md"


def growth_table(results: Results) -> str:
    """A row for each size of each factor, and its slopes beside those of the arithmetic."""
    rows = []
    for factor, found in results["factors"].items():
        for size, point in zip(found["sizes"], found["points"], strict=True):
            cells = (
                [point["error"], *[""] * 4]
                if "error" in point
                else [*(f"{point[s]['cpu']:.3f}" for s in growth.STAGES), f"{point['decide']['peak_mb']:.0f}"]
            )
            rows.append([f"{factor} {size:,}", *cells])
        if factor in growth.EXPECTED:
            rows.append(slope_row(factor, found["slopes"]))
    return table(["one factor at a time", *(f"{stage}, CPU s" for stage in growth.STAGES), "peak, MB"], rows)


def slope_row(factor: str, slopes: dict[str, float | None]) -> list[str]:
    """Slopes of a factor; in brackets those of the arithmetic, bold where the slope is .15 above it."""
    cells = []
    for stage, slope in slopes.items():
        expected = growth.EXPECTED[factor][stage]
        text = "" if slope is None else f"{slope:.2f} ({expected})"
        cells.append(f"**{text}**" if slope is not None and slope > expected + 0.15 else text)
    return [f"slope in {factor} (of the arithmetic)", *cells, ""]


def off_policy_text(results: Results) -> str:
    """Agreement with sb-obp and the CPU seconds of both, in sentences."""
    seconds, sentences = results["seconds"], []
    if "worst" in results:
        count = len({row["log"] for row in results["agreement"]})
        sentences.append(
            f"On {count} synthetic logs of sb-obp's own, the largest relative difference of the seven estimates that "
            f"both have is {results['worst']:.1e}."
        )
    sentences.append(
        f"{results['rows']:,} rows of {results['tasks']:,} tasks take {seconds['sums']:.2f} CPU s through the sums, "
        f"all estimates with their intervals {seconds['estimates']:.2f}, values of tasks {seconds['tasks']:.2f}."
    )
    if "obp_tenth" in seconds:
        sentences.append(
            f"The point estimates of sb-obp on a tenth of the rows take {seconds['obp_tenth']:.2f}."
        )
    return " ".join(sentences)


def serve_memory_text(results: Results) -> str:
    """Memory of the service under load after a quarter, half and all of the time, in sentences."""
    samples = results["samples"]
    quarter, half, last = (samples[max(round(len(samples) * part) - 1, 0)] for part in (0.25, 0.5, 1.0))
    failed = sum(sample["failed"] for sample in samples)
    grown = ", ".join(f"{one['mib']:.1f} MiB after {one['seconds']:.0f} s" for one in (quarter, half, last))
    return (
        f"{results['tasks']:,} tasks, {results['actions']} actions, {results['coefficients']} coefficients each, "
        f"{results['clients']} clients: {last['decisions']:,} decisions in {last['seconds']:.0f} s, {failed} failed. "
        f"Memory of the server beside mapped files: {grown}; largest in the second half "
        f"{max(one['mib'] for one in samples[len(samples) // 2 :]):.1f}."
    )


RENDERERS: dict[str, Callable[[Results], str]] = {
    "growth": growth_table,
    "off_policy": off_policy_text,
    "serve_memory": serve_memory_text,
}


def rendered(text: str, folder: Path = record.FOLDER) -> str:
    """Return the page with the tables of all programs whose JSON is in the folder."""
    for name, render in RENDERERS.items():
        if not (folder / f"{name}.json").exists():
            continue
        document = record.read(name, folder=folder)
        body = (
            f"<!-- {name} -->\n{render(document['results'])}\n\n{record.origin(document)}\n<!-- /{name} -->"
        )
        text, count = re.subn(
            rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _, body=body: body, text, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(
                f"The page has {count} places for {name}, where it needs one: <!-- {name} --> ... <!-- /{name} -->."
            )
    return text


def main() -> None:
    """Write the page anew."""
    README.write_text(rendered(README.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{README} written.\n")


if __name__ == "__main__":
    main()
