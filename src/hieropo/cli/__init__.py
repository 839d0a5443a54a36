"""The command line: one module a command, and what they share.

May import everything.
"""

import click

from hieropo import __version__
from hieropo.cli.commands.compile import compile_command
from hieropo.cli.commands.completion import completion_command
from hieropo.cli.commands.convert import convert_command
from hieropo.cli.commands.decide import decide_command
from hieropo.cli.commands.demo import demo_command
from hieropo.cli.commands.doctor import doctor_command
from hieropo.cli.commands.evaluate import evaluate_command
from hieropo.cli.commands.explain import explain_command
from hieropo.cli.commands.export import export_group
from hieropo.cli.commands.fit import fit_command
from hieropo.cli.commands.inspect import inspect_command
from hieropo.cli.commands.join import join_command
from hieropo.cli.commands.moments import moments_command
from hieropo.cli.commands.report import report_command
from hieropo.cli.commands.reproduce import reproduce_group
from hieropo.cli.commands.serve import serve_command, status_command
from hieropo.cli.completion import add_completion
from hieropo.cli.console import Program, example

__all__ = ["main"]


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=example(
        "hieropo demo",
        "hieropo doctor log.parquet",
        "hieropo fit log.parquet -o policy --task store --action offer --reward profit",
        "hieropo evaluate policy log.parquet",
        "hieropo report policy log.parquet -o report.html",
        "hieropo inspect policy",
        "hieropo explain policy --task 17",
        "hieropo decide policy requests.parquet -o decisions.parquet",
    ),
)
@click.version_option(__version__, prog_name="hieropo")
def main() -> None:
    """Learn one policy for every task from one log, by off-policy learning with a hierarchical model.

    Results go to standard output; errors, warnings and progress to standard error. Exit codes: 0 done,
    1 the data or a file cannot be used, 2 the command line cannot be understood, 130 interrupted, 141 the program
    that reads the output, such as head, has ended.
    """


main.add_command(doctor_command)
main.add_command(fit_command)
main.add_command(moments_command)
main.add_command(evaluate_command)
main.add_command(report_command)
main.add_command(decide_command)
main.add_command(inspect_command)
main.add_command(explain_command)
main.add_command(serve_command)
main.add_command(status_command)
main.add_command(join_command)
main.add_command(convert_command)
main.add_command(export_group)
main.add_command(demo_command)
main.add_command(compile_command)
main.add_command(reproduce_group)
main.add_command(completion_command)
add_completion(main)
