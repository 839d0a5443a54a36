"""``hieropo join``: join decisions with later rewards into a log."""

from typing import Any

import click

from hieropo._utils.text import counted, paragraph
from hieropo.cli.console import FOREIGN, Line, example, print_json, shared_options, usage_error


@click.command(
    "join",
    short_help="Join decisions with later rewards into a log.",
    epilog=example(
        "hieropo join decisions.parquet clicks.parquet -o log.parquet --id request --time at --window 24h --default 0",
        "hieropo join shown.parquet sales.parquet -o log.parquet --id id --time at --reward amount --window 7d "
        "--several sum --default 0",
    ),
)
@click.argument("decisions", type=str)
@click.argument("rewards", type=str)
@click.option(
    "-o", "--output", required=True, metavar="LOG.parquet", help="The log to write; replaced if it exists."
)
@click.option("--id", "key", required=True, metavar="COL", help="Column of decision ids in DECISIONS.")
@click.option(
    "--reward-id", metavar="COL", help="Column of decision ids in REWARDS. Default: the name of --id."
)
@click.option("--time", required=True, metavar="COL", help="Column of the time of the decision in DECISIONS.")
@click.option(
    "--reward-time",
    metavar="COL",
    help="Column of the time of the reward in REWARDS. Default: the name of --time.",
)
@click.option(
    "--reward", default="reward", show_default=True, metavar="COL", help="Column of rewards in REWARDS."
)
@click.option(
    "--window", required=True, metavar="SPAN",
    help="Time after a decision within which a reward counts: 30min, 24h, 7d; a number where times are numbers.",
)  # fmt: skip
@click.option("--default", type=float, metavar="R", help="Reward of decisions without one in their window.")
@click.option(
    "--leave-out",
    is_flag=True,
    help="In place of --default: leave out decisions without a reward in their window.",
)
@click.option(
    "--until", metavar="TIME",
    help="Time up to which REWARDS is complete, such as 2026-01-31T12:00:00Z. Decisions whose window ends later are "
    "left out. Default: the time of the latest reward.",
)  # fmt: skip
@click.option(
    "--several", type=click.Choice(["error", "first", "last", "sum", "max"]), default="error", show_default=True,
    help="Reward of a decision that has several in its window.",
)  # fmt: skip
@click.option(
    "--repeated", type=click.Choice(["error", "first"]), default="error", show_default=True,
    help="Several rows with one decision id in DECISIONS: an error, or keep the earliest.",
)  # fmt: skip
@click.option(
    "--zone", metavar="ZONE", help="Time zone of times without one, such as UTC or Europe/Amsterdam."
)
@click.option(
    "--into", metavar="COL", help="Name of the column of rewards in the log. Default: as in REWARDS."
)
@click.option(
    "--memory", metavar="SIZE", help="Memory limit of the join, such as 2GB; beyond it the disk is used."
)
@shared_options
def join_command(decisions: str, rewards: str, output: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001
    """Join DECISIONS with the REWARDS that came later, by the id of the decision, into LOG.parquet.

    Both are files or folders of rows. Rewards outside the window of their decision (late, early), repeated ones, and
    rewards of unknown decisions are counted and reported. A decision is left out while its window is still open, with
    or without a reward.
    """
    from hieropo.logs.arrow.progress_source import ProgressSource
    from hieropo.logs.arrow.writing import write_tables
    from hieropo.logs.interop.joining import join_rewards
    from hieropo.logs.opening import open_log

    if (given["default"] is None) != given["leave_out"]:
        usage_error(
            "A decision without a reward in its window needs a rule. Give either --default, such as --default 0, or "
            "--leave-out."
        )
    if output.lower().endswith(FOREIGN):
        usage_error(
            f"{output} is not the name of a Parquet file, and a log is written as Parquet. Give another -o."
        )
    options = {name: given[name] for name in ("window", "default", "reward", "until", "several", "repeated", "zone",
                                              "into", "memory")}  # fmt: skip
    for name in ("window", "until"):
        options[name] = _number(options[name])
    with Line() as line:
        log = join_rewards(
            ProgressSource(open_log(decisions), line), ProgressSource(open_log(rewards), line),
            id=(given["key"], given["reward_id"] or given["key"]),
            time=(given["time"], given["reward_time"] or given["time"]), **options,
        )  # fmt: skip
        rows = write_tables(output, log.batches(log.schema.names))
    if as_json:
        print_json({"log": output, "rows": rows, "report": log.report.to_dict()})
        return
    click.echo(f"{output} holds {counted(rows, 'decision')} with their rewards.\n")
    click.echo(
        "\n\n".join(part if "\n" in part else paragraph(part) for part in str(log.report).split("\n\n"))
    )


def _number(text: str | None) -> Any:
    """Return the number that a text holds, else the text: times may be numbers."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
