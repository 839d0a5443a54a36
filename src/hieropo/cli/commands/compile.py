"""``hieropo compile``: compile all loops at once."""

import time

import click

from hieropo.cli.console import Line, example, print_json, shared_options


@click.command(
    "compile",
    short_help="Compile all loops now, such as for an image that is built once.",
    epilog=example("hieropo compile", "NUMBA_CACHE_DIR=cache hieropo compile"),
)
@shared_options
def compile_command(as_json: bool) -> None:  # noqa: FBT001
    """Compile all loops for this processor, so that later commands need not.

    The machine code is kept in the cache of numba: in the folder __pycache__ beside the code, or in a folder of this
    user, or where NUMBA_CACHE_DIR says. Small logs compile nothing in any case.
    """
    from hieropo.cli.compiling import PARTS, compile_part

    seconds = {}
    with Line() as line:
        for k, name in enumerate(PARTS):
            line.say(f"Compiling {name}, {k + 1} of {len(PARTS)}", now=True)
            begun = time.perf_counter()
            compile_part(name)
            seconds[name] = time.perf_counter() - begun
    if as_json:
        print_json({"seconds": seconds})
    else:
        click.echo(f"All loops are compiled: {len(PARTS)} parts in {sum(seconds.values()):.0f} s.")
