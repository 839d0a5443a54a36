"""``hieropo serve`` and ``hieropo status``: the decision service and its state."""

from pathlib import Path
from typing import Any

import click

from hieropo.cli.console import example, print_json, refuse_inside, shared_options, usage_error

_LOOPBACK = "127.0.0.1"


@click.command(
    "serve",
    short_help="Answer requests over HTTP, record decisions and rewards, refresh and forget.",
    epilog=example(
        "hieropo serve state --policy policy",
        "hieropo serve state --policy policy --config serve.toml --port 8000",
        "hieropo serve state --add-key shop --role writer",
        "hieropo serve state --policy policy --check",
    ),
)
@click.argument("state", type=click.Path(file_okay=False))
@click.option(
    "--policy",
    metavar="DIR",
    help="The first policy of a new STATE; a STATE that has one keeps its own. Send another by POST /v1/policies.",
)
@click.option(
    "--config", metavar="FILE.toml", type=click.Path(dir_okay=False),
    help="Settings, such as window, exploration and half_life. Default: serve.toml in STATE, if it is there.",
)  # fmt: skip
@click.option("--host", default=_LOOPBACK, show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, metavar="N", help="Port."
)
@click.option("--add-key", metavar="NAME", help="Make a key, show it once, and exit.")
@click.option(
    "--role", type=click.Choice(["reader", "writer", "admin"]), default="writer", show_default=True,
    help="With --add-key: role of the key, reader (versions, jobs, metrics), writer (decisions, rewards), admin (all).",
)  # fmt: skip
@click.option(
    "--check",
    is_flag=True,
    help="Start, decide, reward and refresh with the policy on a temporary state, and exit.",
)
@shared_options
def serve_command(state: str, as_json: bool, **given: Any) -> None:  # noqa: FBT001
    """Serve decisions from STATE, a directory with the record, the versions of the policy and the settings.

    A decision or a reward is on disk before it is answered. Without keys the service listens on this machine alone.
    It needs the extra serve: pip install 'hieropo[serve]'.
    """
    _require_extra()
    from hieropo.serve.keys import Keyring, add_key
    from hieropo.serve.running import refuse_open_host, serve
    from hieropo.serve.service import Service

    folder = Path(state)
    if given["add_key"]:
        folder.mkdir(parents=True, exist_ok=True)
        key = add_key(folder, given["add_key"], given["role"])
        _show({"name": given["add_key"], "role": given["role"], "key": key}, f"{key}", as_json=as_json)
        return
    settings = _settings(folder, given["config"])
    if given["check"]:
        _check(given["policy"], folder, settings, as_json=as_json)
        return
    keys = Keyring.load(folder)
    refuse_open_host(given["host"], keys)
    service = Service(folder, settings, policy=given["policy"])
    if not as_json:
        click.echo(
            f"Serving version {service.engine.number} at http://{given['host']}:{given['port']}.", err=True
        )
        for note in service.ready().notes:
            click.echo(f"Note: {note}", err=True)
    serve(service, host=given["host"], port=given["port"], keys=keys)


def _check(policy: str | None, folder: Path, settings: Any, *, as_json: bool) -> None:
    from hieropo.serve.running import check
    from hieropo.serve.segments import read_manifest

    if policy is None:
        manifest = read_manifest(folder)
        version = None if manifest is None else manifest.version(manifest.active)
        if version is None:
            usage_error(f"{folder} has no policy to try. Give --policy DIR.")
        policy = str(folder / version.folder)
    steps = check(policy, settings)
    _show({"steps": steps}, "\n".join(steps), as_json=as_json)


@click.command(
    "status",
    short_help="Show versions, record and watch of a service's state.",
    epilog=example(
        "hieropo status state", "hieropo status state --html status.html", "hieropo status state --json"
    ),
)
@click.argument("state", type=click.Path(exists=True, file_okay=False))
@click.option("--html", metavar="FILE.html", help="Write a page; replaced if it exists.")
@shared_options
def status_command(state: str, html: str | None, as_json: bool) -> None:  # noqa: FBT001
    """Show the state of a service: segments, versions, and rewards against predictions. It may be at work meanwhile."""
    _require_extra()
    from hieropo.report import write_page
    from hieropo.serve.status import status_document, status_of, status_text

    status = status_of(Path(state), _settings(Path(state), None))
    if html is not None:
        refuse_inside(str(Path(state) / "log"), html)
        write_page(status_document(status), html)
    if as_json:
        print_json(status)
        return
    click.echo(status_text(status))


def _settings(folder: Path, config: str | None) -> Any:
    from hieropo.serve.settings import Settings

    path = folder / "serve.toml" if config is None else Path(config)
    return Settings.load(path) if config is not None or path.exists() else Settings()


def _show(values: dict[str, Any], text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(values)
        return
    click.echo(text)


def _require_extra() -> None:
    from importlib.util import find_spec

    from hieropo.errors import InputError

    missing = [
        name for name in ("msgspec", "prometheus_client", "starlette", "uvicorn") if find_spec(name) is None
    ]
    if missing:
        raise InputError(
            f"The service needs {', '.join(missing)}, which is not installed. Install the extra: pip install "
            "'hieropo[serve]'."
        )
