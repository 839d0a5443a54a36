"""``hieropo demo``: the whole way of the data on a log that ships with the package."""

import shlex
from pathlib import Path
from typing import Any

import click

from hieropo._utils.text import counted, paragraph, table
from hieropo.cli.console import Line, example, print_json, shared_options

DATA = ("thornton", "obd")


@click.command(
    "demo",
    short_help="See all of it on a real log that ships with hieropo.",
    epilog=example("hieropo demo --data thornton -o demo --seed 0"),
)
@click.option(
    "--data", type=click.Choice(DATA), default="thornton", show_default=True, help="Which shipped log."
)
@click.option(
    "-o", "--output", default="demo", show_default=True, metavar="DIR", help="Folder for what is left."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random halves."
)
@click.option(
    "--splits", type=click.IntRange(min=1), default=10, show_default=True, help="Number of random halves."
)
@shared_options
def demo_command(data: str, output: str, seed: int, splits: int, as_json: bool) -> None:  # noqa: FBT001
    """Fit, judge and decide on a real log, and leave the results in a folder.

    Policies are fitted to random halves of the log and judged on the other halves. thornton takes seconds,
    obd minutes.
    """
    from hieropo.demo.log import SCENARIOS
    from hieropo.demo.run import compare, leave_behind

    scenario = SCENARIOS[data]
    with Line() as line:
        findings = compare(
            scenario, splits=splits, seed=seed, watch=lambda numbers: line.counted(numbers, "Split", splits)
        )
        line.say("Fitting the whole log ...", now=True)
        left = leave_behind(scenario, Path(output))
    if as_json:
        files = {name: str(value) for name, value in vars(left).items() if isinstance(value, Path)}
        print_json({**findings.to_dict(), "files": files, "decisions": left.n_decisions})
        return
    for text in (_opening(findings), _table(findings), *_closing(findings), _next(findings, left)):
        click.echo(text)


def _opening(findings: Any) -> str:
    scenario = findings.scenario
    return paragraph(
        f"{scenario.name}: {scenario.about}. {findings.rows:,} rows; {findings.tasks} tasks, which are "
        f"{scenario.task_noun}. Value: {scenario.unit}."
    )


def _table(findings: Any) -> str:
    from hieropo.demo.value import decimals

    digits = decimals(findings.incumbent_se)
    over_tasks = findings.policies[0].se_over_tasks is not None
    head = ["", "value", "se", "gain", "se"] + (
        [f"se by {findings.scenario.task_noun}"] if over_tasks else []
    )
    rows = [
        [
            findings.scenario.incumbent,
            f"{findings.incumbent:.{digits}f}",
            f"{findings.incumbent_se:.{digits}f}",
        ]
    ]
    for each in findings.policies:
        numbers = [each.value_se, each.se, *([each.se_over_tasks] if over_tasks else [])]
        value_se, *gain_se = (f"{number:.{digits}f}" for number in numbers)
        rows.append(
            [each.name, f"{each.value:.{digits}f}", value_se, f"{each.difference:+.{digits}f}", *gain_se]
        )
    return "\n" + table([head, *rows]) + "\n"


def _closing(findings: Any) -> list[str]:
    noun = findings.scenario.task_noun
    how = (
        f"How: {counted(findings.splits, 'random split')} of all rows into halves (seed {findings.seed}, not "
        "stratified); policies are fitted to one half and valued on the other, self-normalised by 1 / "
        "propensity. The se is over rows"
    )
    if findings.policies[0].se_over_tasks is not None:
        how += f", or over {noun} as a sample of more; the text quotes the larger"
    how += ". More splits do not shrink it. It takes the fitted policies as given."
    notes = " ".join(findings.scenario.notes)
    return [*(paragraph(line) for line in findings.sentences()), "", paragraph(f"{how} {notes}"), ""]


def _next(findings: Any, left: Any) -> str:
    eligible = " --eligible eligible" if findings.scenario.eligible else ""
    rows = [
        ["left behind", str(left.policy), "HierOPO, fitted to the whole log"],
        ["", str(left.decisions), f"its {left.n_decisions:,} decisions for {left.requests}"],
        ["", str(left.log), "the log itself"],
    ]
    if left.report is not None:
        rows.insert(0, ["report", str(left.report), "open it in a browser"])
    policy, requests, decisions, log = (
        shlex.quote(str(path)) for path in (left.policy, left.requests, left.decisions, left.log)
    )
    judge = "" if findings.scenario.eligible else f"\n      hieropo evaluate {policy} {log}"
    return (
        table(rows)
        + f"\n\nnext  hieropo inspect {policy}"
        + judge
        + f"\n      hieropo inspect {policy} --task {shlex.quote(str(left.task))}"
        + f"\n      hieropo decide {policy} {requests} -o {decisions}{eligible} --top 3"
    )
