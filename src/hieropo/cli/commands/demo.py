"""``hieropo demo``: fit, evaluate and decide on a log that ships with the package."""

import shlex
from pathlib import Path
from typing import Any

import click

from hieropo._utils.text import counted, paragraph, table
from hieropo.cli.console import Line, example, print_json, shared_options

DATA = ("thornton", "obd")


@click.command(
    "demo",
    short_help="Fit, evaluate and decide on a real log that ships with hieropo.",
    epilog=example("hieropo demo --data thornton -o demo --seed 0"),
)
@click.option(
    "--data", type=click.Choice(DATA), default="thornton", show_default=True, help="The log to use."
)
@click.option(
    "-o",
    "--output",
    default="demo",
    show_default=True,
    metavar="DIR",
    help="Folder for the policy, log and decisions.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the random splits."
)
@click.option(
    "--splits",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Number of random splits into halves.",
)
@shared_options
def demo_command(data: str, output: str, seed: int, splits: int, as_json: bool) -> None:  # noqa: FBT001
    """Fit, evaluate and decide on a real log, and leave the results in a folder.

    Policies are fitted to random halves of the log and evaluated on the other halves. thornton takes seconds,
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
        results = leave_behind(scenario, Path(output))
    if as_json:
        files = {name: str(value) for name, value in vars(results).items() if isinstance(value, Path)}
        print_json({**findings.to_dict(), "files": files, "decisions": results.n_decisions})
        return
    for text in (_opening(findings), _table(findings), *_closing(findings), _next(findings, results)):
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
    for policy in findings.policies:
        ses = [policy.value_se, policy.se, *([policy.se_over_tasks] if over_tasks else [])]
        value_se, *gain_se = (f"{se:.{digits}f}" for se in ses)
        rows.append(
            [
                policy.name,
                f"{policy.value:.{digits}f}",
                value_se,
                f"{policy.difference:+.{digits}f}",
                *gain_se,
            ]
        )
    return "\n" + table([head, *rows]) + "\n"


def _closing(findings: Any) -> list[str]:
    noun = findings.scenario.task_noun
    method = (
        f"Method: {counted(findings.splits, 'random split')} of all rows into halves (seed {findings.seed}, not "
        "stratified). Policies are fitted to one half, and their value is estimated on the other by self-normalised "
        "importance weighting (SNIPS). Standard errors are over rows"
    )
    if findings.policies[0].se_over_tasks is not None:
        method += f", or over {noun} as a sample of more {noun}; the sentences above use the larger"
    method += ". They take the fitted policies as fixed. More splits average over halves, and do not make them smaller."
    notes = " ".join(findings.scenario.notes)
    return [*(paragraph(line) for line in findings.sentences()), "", paragraph(f"{method} {notes}"), ""]


def _next(findings: Any, results: Any) -> str:
    eligible = " --eligible eligible" if findings.scenario.eligible else ""
    rows = [
        ["", str(results.policy), "HierOPO, fitted to the whole log"],
        ["", str(results.decisions), f"its {results.n_decisions:,} decisions for {results.requests}"],
        ["", str(results.log), "the log itself"],
    ]
    if results.report is not None:
        rows.insert(0, ["", str(results.report), "the report of an evaluation, for a browser"])
    rows[0][0] = "Files:"
    policy, requests, decisions, log = (
        shlex.quote(str(path)) for path in (results.policy, results.requests, results.decisions, results.log)
    )
    evaluate = "" if findings.scenario.eligible else f"\n      hieropo evaluate {policy} {log}"
    return (
        table(rows)
        + f"\n\nNext: hieropo inspect {policy}"
        + evaluate
        + f"\n      hieropo inspect {policy} --task {shlex.quote(str(results.task))}"
        + f"\n      hieropo decide {policy} {requests} -o {decisions}{eligible} --top 3"
    )
