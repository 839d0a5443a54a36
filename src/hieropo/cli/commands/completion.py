"""``hieropo completion``: the lines that let a shell complete commands, options, paths and columns."""

import click

from hieropo.cli.completion import script_of
from hieropo.cli.console import example


@click.command(
    "completion",
    short_help="Print the lines that let a shell complete hieropo.",
    epilog=example(
        'eval "$(hieropo completion bash)"    # in ~/.bashrc',
        'eval "$(hieropo completion zsh)"     # in ~/.zshrc',
        "hieropo completion fish > ~/.config/fish/completions/hieropo.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print the lines that let SHELL complete commands, options and paths; and, after a log, names of columns."""
    click.echo(script_of(shell, click.get_current_context().find_root().command))
