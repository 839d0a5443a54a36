"""Render docs/results/peers.md and its pictures from benchmarks/results/peers.json.

python benchmarks/peers/render.py
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import judge
import numpy as np
import paths
import peer_logs
import record
from methods import TOOLS
from plans import cuts
from tables import figure, table, write

OUT = paths.ROOT / "docs" / "results" / "peers.md"
Results = dict[str, Any]
INTRODUCTION = """\
Every tool learns from the same logs through its public API, and chooses an action in the same requests. Value is the
share of the way from the incumbent to the oracle in percent, by the true expected rewards; after ± stands one standard
error over seeds. The oracle takes the action of the highest expected reward, the incumbent is the policy that made the
log. A method may use a stated number of CPU seconds for all logs of values; where it spent them before the last seed,
the number of seeds that it reached stands in brackets. The logs are explained at the head of
`benchmarks/peers/peer_logs.py`, the methods in `benchmarks/peers/adapters`, the arithmetic in
`benchmarks/peers/judge.py`. Nothing was tuned on these logs. A cell in words is the error of the method; "no memory" is
more than the run allows, or a dense column for each of very many tasks.
"""
MOVIELENS = """\
The logs of `hieropo reproduce` (`hieropo.reproduce.movielens`): a task is one of 100 users of the largest cluster, each
row offers ten movies of MovieLens 1M, and one of them was logged at random. The features are the movie's ten factors,
the expected reward is their product with the user's, and policies are judged by it in 100 further sets of ten movies
for each user. Every variance is learned from the log; the paper's learners know theirs. Seeds are runs. Methods that
take no features of actions say so; "SQL, best action for all" takes the offered movie with the best mean.
"""
EQUAL = 0.00005  # a lead that no digit of the table shows
NOT_TRIED, NO_ESTIMATES = "not tried", "no estimates"


def words(error: str) -> str:
    """An error for a cell of a table."""
    for known, short in (("more than", error), ("MemoryError", "no memory"), ("not tried", NOT_TRIED),
                         ("NotImplementedError", error.partition(": ")[2])):  # fmt: skip
        if error.startswith(known):
            return short
    return error.partition(":")[0]


def cells(
    results: Results, place: Callable[[Results], Results], show: Callable[[Results], str]
) -> dict[str, str]:
    """Cells of one column by method."""
    found = {}
    for name, method in results["methods"].items():
        entry = place(method)
        found[name] = words(entry["error"]) if "error" in entry else show(entry)
    return found


def by_method(results: Results, columns: dict[str, dict[str, str]], *, figures_only: bool = False) -> str:
    """Markdown table with a row for each method; with ``figures_only``, for those that have a figure."""
    names = [
        name
        for name in results["methods"]
        if not figures_only or any(column[name][:1].isdigit() for column in columns.values())
    ]
    return table(
        ["method", *columns], [[name, *(column[name] for column in columns.values())] for name in names]
    )


def of_scores(entry: Results, field: str) -> np.ndarray:
    return np.array([score[field] for score in entry["scores"]])


def value(entry: Results) -> tuple[float, float]:
    number, error = judge.percent(of_scores(entry, "gain"), of_scores(entry, "best"))
    return (math.nan, math.nan) if number is None or error is None else (number, error)


def reached(results: Results, entry: Results) -> str:
    """A note on the seeds or halves that a method reached, where these are not all."""
    count = len(entry["gains"] if "gains" in entry else entry["scores"])
    planned = results["plan"]["halves" if "gains" in entry else "seeds"]
    return "" if count == planned else f" ({count} of {planned})"


def worlds(results: Results, known: dict[str, Any]) -> list[str]:
    """Names of the worlds that some method has results of, in order."""
    have = {name for method in results["methods"].values() for name in method["worlds"]}
    return [name for name in known if name in have]


def value_table(results: Results, known: dict[str, Any]) -> str:
    columns = {
        known[name].words: cells(
            results,
            lambda m, name=name: m["worlds"][name],
            lambda e: f"{figure(*value(e), 1)}{reached(results, e)}",
        )
        for name in worlds(results, known)
    }
    return by_method(results, columns)


def harm_table(results: Results) -> str:
    def show(entry: Results) -> str:
        return f"{100 * of_scores(entry, 'harmed').mean():.1f}"

    columns = {
        peer_logs.WORLDS[name].words: cells(results, lambda m, name=name: m["worlds"][name], show)
        for name in worlds(results, peer_logs.WORLDS)
    }
    return by_method(results, columns)


def ours_among(results: Results) -> list[str]:
    """Names of the methods of hieropo."""
    return results["tools"]["hieropo"]["methods"]


def rivals(results: Results, name: str) -> dict[str, Results]:
    """Results of the others in a world."""
    return {
        method: found["worlds"][name]
        for method, found in results["methods"].items()
        if method not in ours_among(results) and "error" not in found["worlds"][name]
    }


def verdict(lead: float, error: float) -> str:
    """Words for our lead over the best of the others, in percent or units of the reward."""
    if abs(lead) < EQUAL:
        return "equal"
    return "**below**" if lead < -error else "first" if lead > error else "within one error"


def verdict_rows(results: Results) -> list[list[str]]:
    """Our value less that of the best other method, in each world and real log.

    Differences are of the seeds that both methods reached; a method that reached less than half of ours takes no part.
    """
    rows = []
    ours = results["methods"][results["ours"]]["worlds"]
    labels = {name: world.words for name, world in {**peer_logs.BY_ROWS, **peer_logs.WORLDS}.items()}
    labels |= {name: f"MovieLens, {world.words}" for name, world in peer_logs.MOVIELENS.items()}
    for name in [*worlds(results, labels), *results["studies"]]:
        if "error" in ours[name]:
            continue
        leads = {
            method: lead_over(ours[name], entry)
            for method, entry in rivals(results, name).items()
            if 2 * seeds(entry) >= seeds(ours[name]) > 1
        }
        if not leads:
            continue
        best = min(leads, key=lambda method: leads[method][0])
        digits, unit = (4, "reward") if name in results["studies"] else (1, "%")
        lead = leads[best]
        rounded = round(lead[0], digits), lead[1]
        rows.append([labels.get(name, name), best, f"{figure(*lead, digits)} {unit}", verdict(*rounded)])
    return rows


def seeds(entry: Results) -> int:
    return len(entry["gains"] if "gains" in entry else entry["scores"])


def lead_over(ours: Results, theirs: Results) -> tuple[float, float]:
    """Our value less theirs over the seeds or halves that both have, and its error."""
    count = min(seeds(ours), seeds(theirs))
    if "gains" in ours:
        return judge.real_lead(np.array(ours["gains"][:count]), np.array(theirs["gains"][:count]))
    gains, bests = of_scores(ours, "gain")[:count], of_scores(ours, "best")[:count]
    return judge.lead(gains, of_scores(theirs, "gain")[:count], bests)


def claims_table(results: Results) -> str:
    """The gain that a method's estimates claim: over the true one, or as it is where no action has an effect."""

    def ratio(entry: Results) -> str:
        if None in entry["claims"]:
            return NO_ESTIMATES
        claims, gains = np.array(entry["claims"]), of_scores(entry, "gain")
        number, error = judge.percent(claims, gains)
        return "" if number is None or error is None else figure(number / 100, error / 100, 2)

    def as_it_is(entry: Results) -> str:
        if None in entry["claims"]:
            return NO_ESTIMATES
        claims = np.array(entry["claims"])
        return figure(float(claims.mean()), float(claims.std(ddof=1)) / math.sqrt(claims.size), 3)

    columns = {}
    for known, show in ((peer_logs.WORLDS, ratio), (peer_logs.NO_EFFECT, as_it_is)):
        for name in worlds(results, known):
            words_of_column = known[name].words if show is ratio else f"NO EFFECT: {known[name].words}"
            columns[words_of_column] = cells(results, lambda m, name=name: m["worlds"][name], show)
    return by_method(results, columns, figures_only=True)


def real_table(results: Results) -> str:
    def show(entry: Results) -> str:
        gains, replaced = np.array(entry["gains"]), entry["replaced"]
        note = f" ({100 * replaced:.0f} % replaced)" if replaced > 0.005 else ""
        return (
            f"{figure(float(gains.mean()), judge.corrected_error(gains), 4)}{note}{reached(results, entry)}"
        )

    columns = {
        name: cells(results, lambda m, name=name: m["worlds"][name], show) for name in results["studies"]
    }
    return by_method(results, columns)


def movielens_section(results: Results) -> list[str]:
    """Values in the paper's MovieLens setting, where some method has them."""
    if not worlds(results, peer_logs.MOVIELENS):
        return []
    lost = {
        peer_logs.MOVIELENS[name].words: cells(results, lambda m, name=name: m["worlds"][name], suboptimality)
        for name in worlds(results, peer_logs.MOVIELENS)
    }
    return ["## The paper's MovieLens setting", MOVIELENS, "Value, %:",
            value_table(results, peer_logs.MOVIELENS), "Suboptimality, in stars:",
            by_method(results, lost, figures_only=True)]  # fmt: skip


def suboptimality(entry: Results) -> str:
    """Expected reward of the best movie less that of the chosen one, over runs."""
    gaps = of_scores(entry, "best") - of_scores(entry, "gain")
    return figure(float(gaps.mean()), float(gaps.std(ddof=1)) / math.sqrt(gaps.size), 3)


# -- cost --------------------------------------------------------------------------------------------------------------


def sizes(results: Results) -> list[str]:
    have = {name for method in results["methods"].values() for name in method["scale"]}
    return [name for name in {**peer_logs.BY_TASKS, **peer_logs.SCALE} if name in have]


def scale_table(results: Results, show: Callable[[Results], str]) -> str:
    known = {**peer_logs.BY_TASKS, **peer_logs.SCALE}
    columns = {
        known[name].words: cells(results, lambda m, name=name: m["scale"][name], show)
        for name in sizes(results)
    }
    return by_method(results, columns)


def learning_seconds(results: Results) -> dict[str, tuple[list[int], list[float]]]:
    """Tasks and CPU seconds to learn of each method, where it learned."""
    found = {}
    for name, method in results["methods"].items():
        done = {
            size: entry
            for size, entry in method["scale"].items()
            if "error" not in entry and size in peer_logs.BY_TASKS
        }
        tasks = [peer_logs.BY_TASKS[size].world.tasks for size in done]
        found[name] = (tasks, [entry["fit_seconds"] for entry in done.values()])
    return found


def speed_rows(results: Results) -> list[list[str]]:
    """Our CPU seconds and memory beside those of the fastest method within two points of our value, by size."""
    rows, ours = [], results["methods"][results["ours"]]["scale"]
    for name in sizes(results):
        mine = ours[name]
        if "error" in mine or peer_logs.ALL[name].world.tasks < 1_000:
            continue
        near = {
            method: found["scale"][name]
            for method, found in results["methods"].items()
            if method not in ours_among(results) and "error" not in found["scale"][name]
            and value(found["scale"][name])[0] >= value(mine)[0] - 2
        }  # fmt: skip
        if not near:
            rows.append(
                [peer_logs.ALL[name].words, f"{mine['fit_seconds']:.2f}", "none within two points", "", ""]
            )
            continue
        best = min(near, key=lambda method: near[method]["fit_seconds"])
        ratio, memory = (
            near[best]["fit_seconds"] / mine["fit_seconds"],
            near[best]["peak_mb"] / mine["peak_mb"],
        )
        rows.append(
            [
                peer_logs.ALL[name].words,
                f"{mine['fit_seconds']:.2f}",
                best,
                f"{ratio:.1f} x",
                f"{memory:.1f} x",
            ]
        )
    return rows


def tool_rows(results: Results) -> list[list[str]]:
    rows = []
    for name, tool in results["tools"].items():
        if tool["error"]:
            rows.append([name, f"not installed: {tool['error']}", "", "", ""])
            continue
        shown = [(tool.get("version"), "{}"), (tool.get("packages"), "{}"), (tool.get("closure_mb"), "{:.0f}"),
                 (tool.get("import_seconds"), "{:.2f}")]  # fmt: skip
        rows.append([name, *("" if number is None else text.format(number) for number, text in shown)])
    return rows


def capability_table(results: Results) -> str:
    trials = next(m["capabilities"] for m in results["methods"].values() if m["capabilities"])
    rows = []
    for name, method in results["methods"].items():
        answers = method["capabilities"] or dict.fromkeys(trials, "not reached")
        rows.append([name, str(method["lines"]), *(answers[trial].replace("|", "/") for trial in trials)])
    return table(["method", "lines of user code", *trials], rows)


def estimators(results: Results) -> str:
    """Agreement with sb-obp as a sentence."""
    found = results["estimators"]
    if "error" in found:
        return f"Not compared: {found['error']}"
    rows = []
    for log_name in dict.fromkeys(row["log"] for row in found["agreement"]):
        gaps = {row["estimate"]: row["gap"] for row in found["agreement"] if row["log"] == log_name}
        rows.append([log_name, *(_digits(gap) for gap in gaps.values())])
    names = list(dict.fromkeys(row["estimate"] for row in found["agreement"]))
    seconds = found["seconds"]
    ours = seconds["sums"] + seconds["estimates"]
    ratio = 10 * seconds["obp_tenth"] / ours
    return (
        f"{table(['digits agreed', *names], rows)}\n"
        f"{found['rows']:,} rows take hieropo {ours:.2f} CPU s, with intervals and sums of {found['tasks']:,} tasks; "
        f"the point estimates of sb-obp take {10 * seconds['obp_tenth']:.2f} (ten times those of a tenth of the rows), "
        f"{ratio:.2g} times as long."
    )


def _digits(gap: float) -> str:
    return f"{-math.log10(max(gap, 1e-16)):.0f}"


# -- pictures ----------------------------------------------------------------------------------------------------------


def pictures(results: Results, folder: Path) -> None:
    """Draw value against rows a task, and CPU seconds against tasks."""
    import growth
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "hieropo"
    import matplotlib.pyplot as plt

    by_rows = {}
    for name, method in results["methods"].items():
        done = {
            world: entry
            for world, entry in method["worlds"].items()
            if world in peer_logs.BY_ROWS and "error" not in entry
        }
        by_rows[name] = (
            [peer_logs.BY_ROWS[w].world.rows for w in done],
            [value(entry)[0] for entry in done.values()],
        )
    drawings = (
        ("peers_value", by_rows, "rows a task", "value, % of oracle less incumbent", "linear"),
        ("peers_time", learning_seconds(results), "tasks, 100 rows each", "CPU s to learn", "log"),
    )
    for stem, lines, x, y, scale in drawings:
        drawing, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
        for number, (name, (across, up)) in enumerate(lines.items()):
            ours = name == results["ours"]
            style = (
                {"lw": 3, "color": "#d55e00", "zorder": 3}
                if ours
                else {"lw": 1, "ls": ("-", "--", ":")[number % 3]}
            )
            steep = growth.slope(across, up) if scale == "log" else None
            label = name if steep is None else f"{name} (slope {steep:.2f})"
            if across:
                axes.plot(across, up, marker="os^v"[number % 4], label=label, **style)
        axes.set(xlabel=x, ylabel=y, xscale="log", yscale=scale)
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
        drawing.savefig(folder / f"{stem}.svg", metadata={"Date": None})
        plt.close(drawing)


# -- the page ----------------------------------------------------------------------------------------------------------


def unreached(results: Results) -> list[str]:
    """Methods that a run did not reach, or that have logs left."""
    return [
        name
        for name, method in results["methods"].items()
        if any(entry.get("error") in ("not run", "not reached") for entry in method["worlds"].values())
        or any(entry.get("error") in ("not run", "no result") for entry in method["scale"].values())
    ]


def about(document: Results) -> str:
    """Head of the page: which run this is, of which versions, on which processor, under which load."""
    plan = document["results"]["plan"]
    slow = "; ".join(name for tool in TOOLS.values() for name in tool.slow)
    limits = (
        f"{plan['seconds']} CPU s for a log of values and {plan['budget']} for all of a method "
        f"({plan['slow_seconds']} and {plan['slow_budget']} for those that are slow: {slow}), "
        f"{plan['scale_seconds']} for a log of the scale, {plan['memory']} GB"
    )
    kind = (
        f"**This is the quick run (`QUICK=1 make peers`)**: {plan['seeds']} seeds, {plan['halves']} halves, at most "
        f"{limits}; the full run is still to be made."
        if plan["quick"]
        else f"The full run: {plan['seeds']} seeds, {plan['halves']} halves, at most {limits}."
    )
    if cuts(plan):
        kind += f" Cut against the whole plan: {'; '.join(cuts(plan))}."
    waiting = unreached(document["results"])
    if waiting:
        kind += f" It was stopped before all of these methods had all logs: {'; '.join(waiting)}."
    taken = document["results"].get("earlier")
    if taken and taken["cells"]:
        kind += (
            f" {taken['cells']} cells that it did not reach are of the run of {taken['made']} on the same logs, with "
            f"{taken['seeds']} seeds."
        )
    return (
        f"{kind} {record.origin(document)} Run by `benchmarks/peers/run.py`, rendered by `benchmarks/peers/render.py`, "
        "not edited by hand.\n"
    )


def page(document: Results) -> list[str]:
    """Paragraphs and tables of the page."""
    results = document["results"]
    below = [row for row in verdict_rows(results) if row[-1] == "**below**"]
    return [
        "# Side by side: hieropo and its peers",
        about(document),
        INTRODUCTION,
        "## hieropo less the best of the others",
        (
            "The best of the others is taken after the fact, so the comparison favours the others. Differences are "
            "paired over the seeds or halves that both methods reached. *First*: above the best other by more than "
            "one standard error; *below*: under it by more than one. "
            f"hieropo is below in {len(below)} rows; LIMITATIONS.md names them."
        ),
        table(["log", "best of the others", "hieropo less it", "verdict"], verdict_rows(results)),
        "## Value on simulated logs, %",
        value_table(results, peer_logs.WORLDS),
        "With action, level and interaction in 8 coefficients (50 tasks, 5 actions), by rows a task:",
        value_table(results, peer_logs.BY_ROWS),
        "![Value against rows a task, one line a tool.](peers_value.svg)",
        "## Tasks harmed, %",
        "Share of the tasks in which the policy is truly worse than the incumbent.",
        harm_table(results),
        "## Claimed gains",
        (
            "The gain over the incumbent that a method's own estimates of rewards claim for its choices, over the true "
            "gain; 1 is right, 2 is twice as much as there is. In the columns with NO EFFECT every action has the same "
            "expected reward, and the cell is the claimed gain, in standard deviations of the noise; 0 is right. "
            "A method that gives no estimates of rewards has no row."
        ),
        claims_table(results),
        "## Real logs: held-out gain over the incumbent",
        (
            "Halves of randomised experiments; after ± the error corrected for their overlap. Where the experiment "
            "could not have drawn the chosen action in a row (its propensity there is 0), the best action for all that "
            "it could have drawn replaces it; the share of such rows is in brackets."
        ),
        real_table(results) if results["studies"] else "No folder of real logs was given (HIEROPO_DATA).",
        *movielens_section(results),
        "## CPU seconds to learn",
        (
            "100 rows a task, 5 actions, 8 coefficients; after a small log that is not counted. The last column is of "
            "another shape, where there is one."
            if any(name in peer_logs.SCALE for name in sizes(results))
            else "100 rows a task, 5 actions, 8 coefficients; after a small log that is not counted."
        ),
        scale_table(results, lambda entry: f"{entry['fit_seconds']:.2f}"),
        "The fastest other method with a value within two points of hieropo's, or above it, in multiples of hieropo:",
        table(["log", "hieropo, CPU s", "method", "CPU", "memory"], speed_rows(results)),
        "![CPU seconds to learn against tasks, with slopes.](peers_time.svg)",
        "## Peak memory, MB",
        "Of the whole process, with its imports.",
        scale_table(results, lambda entry: f"{entry['peak_mb']:.0f}"),
        "## Decisions a CPU second",
        scale_table(results, lambda entry: f"{entry['requests'] / max(entry['decide_seconds'], 1e-4):,.0f}"),
        "## Value at these sizes, %",
        scale_table(results, lambda entry: f"{value(entry)[0]:.1f}"),
        "## Abilities, each tried",
        (
            "Answers of programs, not of documents (`TRIALS` in `benchmarks/peers/adapters/contract.py`). NaN in a "
            "context: the share of decisions that are those of the log without holes."
        ),
        capability_table(results),
        "## Installations",
        "The packages that a tool needs, with itself, and CPU seconds to import it after numpy.",
        table(["tool", "version", "packages", "MB", "import, CPU s"], tool_rows(results)),
        "## Estimates beside those of sb-obp",
        estimators(results),
    ]


def main() -> None:
    """Write the page and its pictures."""
    document = record.read("peers")
    write(OUT, page(document))
    pictures(document["results"], OUT.parent)
    sys.stdout.write(f"{OUT} written.\n")


if __name__ == "__main__":
    main()
