"""Tables of the benchmark programs in Markdown, from the figures that they write.

``PROGRAMS`` names each program's runs, with arguments that fit two processors (``all.py`` runs them), and the renderer
of its parts. A goal is written beside its figure, with "missed" where the figure does not reach it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hieropo.reproduce.writing import table

Results = dict[str, Any]
Parts = dict[str, Results]


@dataclass(frozen=True)
class Run:
    """One run of a program: its arguments, the parts that it writes, and the peers that it needs.

    ``{data}`` stands for the folder of real logs, ``{NAME}`` for the interpreter of a peer's environment.
    """

    arguments: str = ""
    parts: tuple[str, ...] = ("",)
    needs: tuple[str, ...] = ()  # modules of this interpreter, or "lme4"
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Program:
    """Renderer of the parts that are there, and the runs that make all parts."""

    render: Callable[[Parts], str]
    runs: tuple[Run, ...] = (Run(),)


def goal(value: float, limit: float, *, at_least: bool = False, unit: str = "") -> str:
    """Return the goal as text, with "missed" where the value does not reach it."""
    missed = value < limit if at_least else value > limit
    return f"{limit:,g}{unit}{', missed' if missed else ''}"


def small(value: float | None, digits: int = 3) -> str:
    """Return a figure with at least so many significant digits, without an exponent; empty without a figure."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:#.{digits}g}".rstrip(".")


def times(value: float, base: float) -> str:
    return f"{small(value / base, 2)} x"


def lines(results: Results, names: Sequence[str], head: Sequence[str]) -> str:
    """Return a table of the records in ``results["lines"]``: text as it is, numbers with three digits."""
    cells = [[line.get(name) for name in names] for line in results["lines"]]
    return table(head, [[cell if isinstance(cell, str) else small(cell) for cell in row] for row in cells])


def joined(*texts: str) -> str:
    return "\n\n".join(text.strip() for text in texts if text)


# -- one program after the other ---------------------------------------------------------------------------------------


def als_table(parts: Parts) -> str:
    results, rows = parts[""], []
    for threads, tools in results["threads"].items():
        for tool, spent in tools.items():
            ours = tools["hieropo"]["cpu"]
            limit = goal(spent["cpu"], 5) if tool == "hieropo" and threads == "2" else ""
            if tool != "hieropo":
                limit = goal(spent["cpu"] / ours, 1, at_least=True, unit=" x")
            rows.append([
                threads, tool, small(spent["cpu"]), small(spent["clock"]), f"{spent['residual']:.4f}",
                times(spent["cpu"], ours), limit,
            ])  # fmt: skip
    size = f"{results['ratings']:,} ratings, rank {results['rank']}, {results['iterations']} iterations"
    head = ["threads", "tool", "CPU s", "clock s", "sd of residuals", "CPU of hieropo", "goal"]
    return joined(f"{size}; the fastest of {results['repeat']}.", table(head, rows))


def backends_table(parts: Parts) -> str:
    results, rows = parts[""], []
    for line in results["lines"]:
        sizes = [f"{line[name]:,}" for name in ("m", "d", "size")]
        worth = "never" if line["worth"] is None else f"{line['worth']:,.0f}"
        milliseconds = [small(line[name]) for name in ("numpy_ms", "compiled_ms")]
        rows.append([line["area"], *sizes, *milliseconds, worth, line["taken"]])
    head = ["area", "m or n", "d", "size", "numpy, ms", "compiled, ms", "worth after calls", "taken"]
    return joined(f"Loading the compiled loops takes {results['load']:.2f} s.", table(head, rows))


def busy_table(parts: Parts) -> str:
    results, rows = parts[""], []
    for algebra, found in results["algebra"].items():
        quiet, busy = found["quiet"], found["busy"]
        ratio = busy["cpu"] / quiet["cpu"]
        limit = goal(ratio, 1.3) if algebra == "one thread" else ""
        pairs = [f"{small(point['cpu'])} ({small(point['clock'])})" for point in (quiet, busy)]
        rows.append([algebra, *pairs, f"{ratio:.2f}", limit])
    head = ["linear algebra", "none beside", f"{results['busy']} busy processes beside", "ratio, CPU", "goal"]
    return joined(
        f"{results['tasks']:,} tasks, {results['rows']:,} rows; CPU s, and in brackets s by the clock.",
        table(head, rows),
    )


def choice_table(parts: Parts) -> str:
    results = parts[""]
    best = min(spent for name, spent in results["seconds"].items() if name.startswith("numpy"))
    batches = [
        [name, small(1e3 * spent), small(1e9 * spent / results["requests"]), times(best, spent)]
        for name, spent in results["seconds"].items()
    ]
    cached = [[f"{c['d']}", f"{c['K']}", small(c["ns"]), small(c["gflops"])] for c in results["cached"]]
    single = [
        [place, *(small(spent[name]) for name in ("p50", "p99", "p99.9"))]
        for place, spent in results["decision"].items()
    ]
    size = f"{results['requests']:,} requests of 10 candidates, d = 10, {results['tasks']:,} tasks"
    return joined(
        f"{size}; the fastest of {results['rounds']} rounds.",
        table(["batch", "ms", "ns a request", "speed of the best numpy"], batches),
        "Requests whose data stay in the cache, one thread.",
        table(["d", "candidates", "ns a request", "Gflop/s"], cached),
        f"One decision, {results['policy_tasks']:,} tasks, microseconds.",
        table(["policy", "p50", "p99", "p99.9"], single),
    )


def crossed_table(parts: Parts) -> str:
    names = {
        "sizes": "relative sizes of columns and of noise", "common": "common standard deviations",
        "table": "table of all units", "sums": "three sums over all tasks",
    }  # fmt: skip
    head, rows = ["CPU s"], [[name] for name in (*names.values(), "first three together", "goal")]
    for found in parts.values():
        groups = f" in {found['groups']:,} groups" if found["groups"] else ""
        head.append(
            f"{found['tasks']:,} tasks{groups}, {found['actions']} actions of {found['width']} columns, "
            f"{found['rows']:,} rows"
        )
        spent = found["seconds"]
        three = spent["sizes"] + spent["common"] + spent["table"]
        limit = goal(three, 10) if found["width"] == 1 and found["tasks"] >= 1_000_000 else ""
        cells = [*(small(spent[name]) for name in names), small(three), limit]
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell)
    ways = [
        f"{name}: " + ", ".join(f"{stage} {small(spent)}" for stage, spent in found["way_up"].items())
        for name, found in parts.items()
    ]
    dense = [
        f"{name}: the dense model takes {small(sum(found['dense'].values()))} CPU s for both."
        for name, found in parts.items()
        if "dense" in found
    ]
    return joined(table(head, rows), f"One way up, CPU s. {'; '.join(ways)}.", " ".join(dense))


def evaluate_table(parts: Parts) -> str:
    texts = []
    if "" in parts:
        rows = [
            [f"{line['rows']:,}", small(line["cpu"]), small(1e6 * line["cpu"] / line["rows"])]
            for line in parts[""]["lines"]
        ]
        size = f"{parts['']['tasks']:,} tasks, {parts['']['actions']} actions, an Arrow table in memory."
        texts += [size, table(["rows", "CPU s", "microseconds a row"], rows)]
    if "crossed" in parts:
        results = parts["crossed"]
        rows = [
            [name, small(spent["cpu"]), small(spent["clock"]), limit]
            for name, spent, limit in (
                ("evaluate", results["evaluate"], goal(results["evaluate"]["clock"], 6)),
                ("certificates of 2,000 tasks", results["certificates"], ""),
            )
        ]
        shares = ", ".join(f"{name} {share:.0%}" for name, share in results["shares"].items())
        size = f"The crossed prior, {results['tasks']:,} tasks, {results['rows']:,} rows from Parquet."
        texts += [
            size,
            table(["step", "CPU s", "clock s", "goal, clock"], rows),
            f"Shares of one more: {shares}.",
        ]
    return joined(*texts)


def growth_table(parts: Parts) -> str:
    """A row for each size of each factor, and its slopes beside those of the arithmetic."""
    rows, stages = [], ("pass", "fit", "evaluate", "decide")
    for factor, found in parts.items():
        for size, point in zip(found["sizes"], found["points"], strict=True):
            cells = (
                [point["error"], *[""] * 4]
                if "error" in point
                else [*(f"{point[s]['cpu']:.3f}" for s in stages), f"{point['decide']['peak_mb']:.0f}"]
            )
            if factor == "threads" and "error" not in point:
                cells[:4] = [f"{point[s]['cpu']:.3f} ({point[s]['clock']:.3f})" for s in stages]
            size_of = f"{factor} {size:,}" + (
                f", rows {found['base']['rows']:,}" if factor == "threads" else ""
            )
            rows.append([size_of, *cells])
        if found["expected"]:
            rows.append(slope_row(factor, found["slopes"], found["expected"]))
    base = ", ".join(f"{name} {number:,}" for name, number in next(iter(parts.values()))["base"].items())
    head = ["one factor at a time", *(f"{stage}, CPU s" for stage in stages), "peak, MB"]
    return joined(f"Around {base}. In brackets, for threads, seconds by the clock.", table(head, rows))


def slope_row(factor: str, slopes: dict[str, float | None], expected: dict[str, float]) -> list[str]:
    """Slopes of a factor; in brackets those of the arithmetic, bold where the slope is .15 above it."""
    cells = []
    for stage, slope in slopes.items():
        text = "" if slope is None else f"{slope:.2f} ({expected[stage]})"
        cells.append(f"**{text}**" if slope is not None and slope > expected[stage] + 0.15 else text)
    return [f"slope in {factor} (of the arithmetic)", *cells, ""]


def hierarchy_table(parts: Parts) -> str:
    """A row for each case: the REML fit of hieropo, and each peer with its ratio and how far it is below the best."""
    peers, rows = ("mixedlm-rs", "lme4", "statsmodels"), []
    for case, found in parts.items():
        fits = {fit["tool"]: fit for fit in found["fits"] if fit["criterion"] in {"reml", ""}}
        ours = fits["hieropo"]
        best = max(fit["value"] for fit in fits.values() if "value" in fit)
        cells = [
            case,
            f"{found['rows']:,}",
            f"{gap_below(ours, best):.0e}",
            str(ours["passes"]),
            small(ours["cpu"], 2),
        ]
        for name in peers:
            fit = fits.get(name, {})
            gap = gap_below(fit, best) if "value" in fit else 0.0
            far = f", {gap:.0e} below" if gap > 1e-6 else ""
            ratio = (
                f"{small(fit['cpu'], 2)} ({times(fit['cpu'], ours['cpu'])}{far})" if "value" in fit else ""
            )
            cells.append("fails" if "error" in fit else ratio)
        rows.append([*cells, small(ours["mb"], 2), small(fits.get("mixedlm-rs", {}).get("mb"), 2)])
    head = [
        "case", "rows", "below the best", "passes", "hieropo, CPU s", *peers, "hieropo, MB", "mixedlm-rs, MB",
    ]  # fmt: skip
    return table(head, rows)


def gap_below(fit: Results, best: float) -> float:
    """Return the distance of a log likelihood below the best, relative to it."""
    return float(best - fit["value"]) / max(abs(best), 1.0)


RATIOS = {"text": 1.4, "number": 2.0, "wide": 2.5}
PEER_RATIOS = {"duckdb": 2.2, "polars": 4.0}


def moments_table(parts: Parts) -> str:
    """A row for each case and number of threads; and the ways from rows in memory to sums."""
    peers = sorted({peer for found in parts.values() for line in found["threads"] for peer in line["peers"]})
    rows = []
    for case, found in parts.items():
        for line in found["threads"]:
            ns = [1e9 * line[name][1] / found["rows"] for name in ("decode", "pass")]
            ratio, limit = ns[1] / ns[0], RATIOS.get(case)
            result, most = line["result"] / 2**30, line["peak"] / 2**30
            allowed = 3.0 if case == "long" else (line["threads"] + 1) * result + 0.5
            cells = []
            for peer in peers:
                clock = line["peers"].get(peer, [0, 0])[1] / line["pass"][1]
                cells.append(
                    f"{small(clock, 2)} x ({goal(clock, PEER_RATIOS[peer], at_least=True)})" if clock else ""
                )
            rows.append([
                f"{case}: {found['rows']:,} rows, d = {found['d']}", f"{line['threads']}", *map(small, ns),
                f"{ratio:.2f}", goal(ratio, limit) if limit else "", *cells, f"{most:.2f}", goal_gib(most, allowed),
            ])  # fmt: skip
    head = [
        "case", "threads", "decode, ns a row", "pass, ns a row", "ratio", "goal",
        *(f"{peer} (goal)" for peer in peers), "peak, GiB", "allowed",
    ]  # fmt: skip
    return joined(table(head, rows), ways_table(parts))


def goal_gib(most: float, allowed: float) -> str:
    return f"{allowed:.2f}{', missed' if most > allowed else ''}"


def ways_table(parts: Parts) -> str:
    ways = {case: found["variants"] for case, found in parts.items() if found.get("variants")}
    if not ways:
        return ""
    limits = {case: max(found["flop_ns"], found["byte_ns"]) for case, found in ways.items()}
    head = ["rows in memory to sums, one thread"]
    for case in ways:
        head += [f"{case}, ns a row", "share of the limit"]
    names = next(iter(ways.values()))["times"]
    rows = []
    for name in names:
        row = [name]
        for case, found in ways.items():
            row += [small(found["times"][name]), f"{limits[case] / found['times'][name]:.0%}"]
        rows.append(row)
    words = "; ".join(
        f"{case}: {found['bytes']:.0f} bytes a row take {small(found['byte_ns'])} ns at the rate of a copy, "
        f"{found['flops']} operations {small(found['flop_ns'])} ns at that of a product of matrices"
        for case, found in ways.items()
    )
    return joined(table(head, rows), f"The limit is the larger of two. {words}.")


def off_policy_text(parts: Parts) -> str:
    """Agreement with sb-obp and the CPU seconds of both, in sentences."""
    results = parts[""]
    seconds, sentences = results["seconds"], []
    if "worst" in results:
        count = len({row["log"] for row in results["agreement"]})
        sentences.append(
            f"On {count} synthetic logs of sb-obp's own, the largest relative difference of the seven estimates that "
            f"both have is {results['worst']:.1e} (goal {goal(results['worst'], 1e-10)})."
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


def policy_on_disk_table(parts: Parts) -> str:
    """A row for each step; the goals are of the median, but for p99 of a choice."""
    limits = {
        "open": 50e-3, "one task as a Gaussian, first time: checksum and page fault": 10e-6,
        "one task as a Gaussian, read before": 10e-6, "one choice among 10 candidates": 10e-6,
    }  # fmt: skip
    results, rows = parts[""], []
    for name, spent in results["seconds"].items():
        scale, unit = ("1e3", "ms") if name == "open" else ("1", "s") if "p99" not in spent else ("1e6", "us")
        cells = [
            f"{small(float(scale) * spent[key])} {unit}" if key in spent else "" for key in ("p50", "p99")
        ]
        limit = (
            goal(float(scale) * spent["p50"], float(scale) * limits[name], unit=f" {unit}")
            if name in limits
            else ""
        )
        rows.append([name, *cells, limit])
    peers = results["peers"]
    size = f"{results['tasks']:,} tasks of {results['dim']} features, {results['gigabytes']:.2f} GB."
    texts = [size, table(["step", "median", "p99", "goal, median"], rows)]
    if peers:
        cells = [
            [name, small(1e6 * spent["p50"]), times(spent["p50"], peers["hieropo"]["p50"])]
            for name, spent in peers.items()
        ]
        texts.append(f"{results['peers_tasks']:,} tasks: one task as a Gaussian.")
        texts.append(table(["from", "median, us", "time of hieropo"], cells))
    return joined(*texts)


def posterior_table(parts: Parts) -> str:
    rows = []
    for found in parts.values():
        name, best = min(found["peers"].items(), key=lambda pair: pair[1])
        ratios = [best / found["seconds"][threads] for threads in ("1", "2")]
        limits = [5.0 if threads == 0 or found["dim"] == 10 else None for threads in range(2)]
        limits[1] = 10.0 if found["dim"] == 10 else None
        cells = [
            f"{small(found['seconds'][threads])} s, {small(ratio, 2)} x"
            + (f" ({goal(ratio, limit, at_least=True)})" if limit else "")
            for threads, ratio, limit in zip(("1", "2"), ratios, limits, strict=True)
        ]
        rate = 4.7 * found["dim"] ** 3 * found["tasks"] / found["seconds"]["1"] / 1e9
        rows.append(
            [f"{found['tasks']:,}", f"{found['dim']}", f"{small(best)} s ({name})", *cells, small(rate)]
        )
    head = [
        "tasks", "d", "best numpy, one thread", "hieropo, one thread (goal)", "hieropo, two threads (goal)",
        "billion multiply-adds a second, one thread",
    ]  # fmt: skip
    return table(head, rows)


def serve_table(parts: Parts) -> str:
    texts = []
    if "" in parts:
        texts += rates_of(parts[""])
    rows = []
    if "swaps" in parts:
        done, failed = parts["swaps"]["swaps"], parts["swaps"]["load"]["failed"]
        rate = f"{parts['swaps']['load']['a second']:,.0f} decides a second"
        rows.append([
            f"changes of the version under load ({rate}), requests that failed", f"{done}, {failed}",
            f"{goal(done, 100, at_least=True)}; {goal(failed, 0)}",
        ])  # fmt: skip
    for name, spent in parts.get("replay", {}).get("steps", {}).items():
        limit = goal(spent["clock"], 2, unit=" s") if "again" in name and "decided" in name else ""
        events = f"{parts['replay']['events']:,} events {name}"
        rows.append([events, f"{spent['clock']:.2f} s by the clock, {spent['cpu']:.2f} s of CPU", limit])
    if "memory" in parts:
        found = parts["memory"]["samples"]
        half = [sample["mib"] for sample in found[len(found) // 2 :]]
        failed = sum(sample["failed"] for sample in found)
        trial = (
            f"MiB beside mapped files, second half of {found[-1]['seconds']:.0f} s and {found[-1]['decisions']:,.0f} "
            f"decisions, {parts['memory']['tasks']:,} tasks"
        )
        rows.append([
            trial, f"{min(half):.1f} to {max(half):.1f}; {failed:.0f} failed",
            f"flat within 1 %{', missed' if max(half) > 1.01 * half[0] else ''}",
        ])  # fmt: skip
    return joined(*texts, table(["trial", "result", "goal"], rows) if rows else "")


def rates_of(results: Results) -> list[str]:
    rows = []
    for kind, found in results["kinds"].items():
        one, batch, service = found["decide"], found["batch"], kind != "echo"
        cells = [
            (f"{one['a second']:,.0f}", goal(one["a second"], 3_000, at_least=True)),
            (f"{one['p99 ms']:.1f}", goal(one["p99 ms"], 10)),
            (f"{one['server CPU us']:.0f}", goal(one["server CPU us"], 40)),
            (f"{batch['decisions a second']:,.0f}", goal(batch["decisions a second"], 50_000, at_least=True)),
        ]
        shown = [f"{cell} ({limit})" if service else cell for cell, limit in cells]
        rows.append([kind, *shown, f"{batch['server CPU us a decision']:.1f}" if service else ""])
    head = [
        "service (goal)", "decides a second", "p99, ms", "CPU us a decide",
        f"decisions a second, batches of {results['batch']:,}", "CPU us a decision in batches",
    ]  # fmt: skip
    size = (
        f"{results['tasks']:,} tasks, {results['actions']} actions of {results['contexts'] + 1} coefficients, "
        f"{results['clients']} clients; a write and fdatasync of 4 kB takes {small(results['fsync_ms'])} ms."
    )
    return [size, table(head, rows)]


def serve_refresh_table(parts: Parts) -> str:
    results = parts[""]
    rows = [
        [
            name,
            small(spent["clock"]),
            small(spent["cpu"]),
            goal(spent["clock"], 10) if name == "refresh" else "",
        ]
        for name, spent in results["steps"].items()
    ]
    size = (
        f"{results['tasks']:,} tasks, {results['coefficients']} coefficients, {results['rows']:,} rows in "
        f"{results['segments']} segments, {results['journal']:,} in the journal."
    )
    return joined(size, table(["step", "clock s", "CPU s", "goal, clock"], rows))


def startup_table(parts: Parts) -> str:
    """A row for each figure; the goals differ for small logs in numpy and for compiled loops."""
    rows = []
    for part, found in parts.items():
        if not part:
            beyond = found["import"]["hieropo"] - found["import"]["numpy"]
            rows.append(["`import hieropo` beyond `import numpy`", small(beyond, 2), "", goal(beyond, 0.15)])
        for name, spent in found["fits"].items():
            limit = 1.5 if not part else 5.0 if name == "nothing compiled" else 0.5
            loops = "compiled loops" if part else "numpy"
            cells = [small(spent["fit"], 2), small(spent["choice"], 2), goal(spent["fit"], limit)]
            rows.append([f"first fit in {loops}, {name}", *cells])
    return table(["figure", "s", "first choice after it, s", "goal"], rows)


def terms_table(parts: Parts) -> str:
    texts = []
    if "" in parts:
        rows = [
            [
                f"`{name}`",
                *(small(spent[key], 2) for key in ("map", "pass", "fit")),
                f"{spent['map'] / spent['fit']:.0%}",
            ]
            for name, spent in parts[""]["formulas"].items()
        ]
        head = ["formula", "map, CPU s", "pass, CPU s", "fit, CPU s", "map of the fit"]
        texts += [f"{parts['']['rows']:,} rows of 10,000 tasks.", table(head, rows)]
    if "formulaic" in parts:
        rows = [[f"`{name}`", f"{gap:.0e}"] for name, gap in parts["formulaic"]["differences"].items()]
        texts.append(table(["formula", "largest difference from formulaic"], rows))
    return joined(*texts)


CASES = (
    "sleepstudy", "insteval", "d4m10", "d4m100", "d10m100", "d4m100 rank 3", "d6m1000 n4", "d4m100 sd 1e-5",
    "d4m100 sd 1e5", "d4m100 scales", "d4m1e4", "d10m1e4", "d10m1e5",
)  # fmt: skip
PEERS = "--mixedlm-rs {mixedlm-rs} --statsmodels {statsmodels} --data {data}"


def distributed_table(parts: Parts) -> str:
    return joined(*(shards_table(name, results) for name, results in parts.items()))


def shards_table(name: str, results: Results) -> str:
    """Return the table of fits in shards and in memory under one prior."""
    rows = []
    per_task = {name: run_seconds(run) / run["tasks"] for name, run in results["runs"].items()}
    for place, run in results["runs"].items():
        in_shards = place != "in memory"
        ratio = per_task[place] / per_task["in memory"]
        rows.append([
            place, f"{run['tasks']:,}", small(run["fit_cpu"]), small(run["save_cpu"]),
            small(1e6 * per_task[place]), f"{ratio:.2f} x", goal(ratio, 1.5, unit=" x") if in_shards else "",
            small(run["resident_gb"]), goal(run["resident_gb"], 2) if in_shards else "",
        ])  # fmt: skip
    head = [
        "moments",
        "tasks",
        "fit, s",
        "policy, s",
        "us a task",
        "of in memory",
        "goal",
        "resident, GB",
        "goal",
    ]
    width = f"{results['actions']} actions of {results['dim']}" if results["actions"] else f"{results['dim']}"
    size = f"{name}: {width} coefficients, {results['shards']} shards"
    return joined(f"{size}; CPU seconds of both cores.", table(head, rows))


def run_seconds(run: Results) -> float:
    """Return the CPU seconds of a fit and of writing its policy."""
    return float(run["fit_cpu"] + run["save_cpu"])


def _spark_sums(results: Any) -> list[str]:
    """Return the table of sums on Spark beside its scan; ratios are those of medians over rounds."""
    head, rows = ["tasks", "way", "s", "of the scan", "goal"], []
    goals = {"files": (1.3, 4.0), "frame": (4.0, 8.0)}
    for k, log in enumerate(results["logs"]):
        seconds = {run["way"]: median(run["clocks"]) for run in log["runs"]}
        for way, clock in seconds.items():
            limit = goal(clock / seconds["scan"], goals[way][k], unit=" x") if way in goals else ""
            rows.append([f"{log['tasks']:,}", way, small(clock), times(clock, seconds["scan"]), limit])
    size = (
        f"Spark on one machine, {results['rows']:,} rows, {results['dim']} features; medians of rounds in which the "
        "ways alternate."
    )
    return [size, table(head, rows)]


def _spark_answers(results: Any) -> list[str]:
    """Return sentences on decisions and a fit on Spark beside one process."""
    decided = {run["way"]: results["rows"] / median(run["clocks"]) for run in results["decisions"]}
    share = decided["spark"] / decided["one process"]
    said = (
        f"Decisions, four actions: {decided['one process']:,.0f} rows a second in one process with all threads, "
        f"{decided['spark']:,.0f} on Spark, {share:.2f} of it (goal {goal(share, 0.6, at_least=True)})."
    )
    fits = {run["way"]: median(run["clocks"]) for run in results["fits"]["runs"]}
    ratio = fits["spark"] / fits["one process"]
    fitted = (
        f"A fit of {results['fits']['tasks']:,} tasks from {results['fits']['shards']} shards, two levels with all "
        f"correlations: {small(fits['one process'])} s in one process, {small(fits['spark'])} s on Spark, "
        f"{ratio:.1f} x (goal {goal(ratio, 2.0, unit=' x')})."
    )
    return [said, fitted]


def warehouse_table(parts: Parts) -> str:
    texts = []
    if "duckdb" in parts:
        results = parts["duckdb"]
        rows = [
            [
                str(run["dim"]), small(run["pass"]["cpu"]), small(run["duckdb"]["cpu"]),
                times(run["duckdb"]["cpu"], run["pass"]["cpu"]),
                small(run["pass"]["clock"]), small(run["duckdb"]["clock"]),
            ]
            for run in results["runs"]
        ]  # fmt: skip
        head = ["features", "pass, CPU s", "DuckDB, CPU s", "of the pass", "pass, s", "DuckDB, s"]
        texts += [f"{results['rows']:,} rows of {results['tasks']:,} tasks, Parquet.", table(head, rows)]
    if "spark sums" in parts:
        texts += _spark_sums(parts["spark sums"])
    if "spark answers" in parts:
        texts += _spark_answers(parts["spark answers"])
    return joined(*texts)


PROGRAMS = {
    "startup": Program(
        startup_table,
        (Run("--repeat 3"), Run("--repeat 3", ("compiled",), environment=(("HIEROPO_BACKEND", "compiled"),))),
    ),
    "moments": Program(
        moments_table,
        (
            Run("--rows 5000000", ("text", "number", "wide"), needs=("duckdb", "polars")),
            Run("--case long --rows 20000000 --peers", ("long",)),
        ),
    ),
    "terms": Program(terms_table, (Run(), Run("--formulaic", ("formulaic",), needs=("formulaic",)))),
    "posterior": Program(
        posterior_table,
        (Run("--tasks 400000", ("d = 10",)), Run("--tasks 50000 --dim 32", ("d = 32",))),
    ),
    "backends": Program(backends_table),
    "choice": Program(choice_table),
    "policy_on_disk": Program(policy_on_disk_table),
    "hierarchy": Program(hierarchy_table, (Run(PEERS, CASES, needs=("lme4",)),)),
    "crossed": Program(
        crossed_table,
        (
            Run(parts=("contexts",)),
            Run("--tasks 1000000 --actions 4 --width 1 --rows 10", ("no contexts",)),
            Run("--tasks 2000 --actions 4 --width 4 --rows 40 --groups 400", ("groups",)),
        ),
    ),
    "busy": Program(busy_table, (Run("--tasks 3000 --rows 60000"),)),
    "off_policy": Program(off_policy_text, (Run("--peer {sb-obp} --rows 1000000 --tasks 10000"),)),
    "evaluate": Program(evaluate_table, (Run("1000000 3000000"), Run("--crossed", ("crossed",)))),
    "distributed": Program(
        distributed_table,
        (
            Run("--tasks 4000000 --in-memory 1000000", ("two levels",)),
            Run("--tasks 2000000 --in-memory 1000000 --actions 4 --dim 2", ("crossed",)),
        ),
    ),
    "warehouse": Program(
        warehouse_table,
        (
            Run("--rows 2000000 --tasks 50000", ("duckdb",), needs=("duckdb",)),
            Run("--rows 4000000 --tasks 25000 --spark sums", ("spark sums",), needs=("pyspark",)),
            Run("--rows 4000000 --tasks 25000 --spark answers", ("spark answers",), needs=("pyspark",)),
        ),
    ),
    "growth": Program(growth_table, (Run(parts=("rows", "tasks", "features", "actions", "threads")),)),
    "als": Program(als_table, (Run("{data}/ml1m_ratings_notime.parquet --repeat 3", needs=("cmfrec",)),)),
    "serve": Program(
        serve_table,
        (
            Run(),
            Run("--only swaps", ("swaps",)),
            Run("--only replay", ("replay",)),
            Run("--only memory --tasks 1000000 --actions 3 --contexts 2 --seconds 120", ("memory",)),
        ),
    ),
    "serve_refresh": Program(serve_refresh_table),
}
