"""Which sources made a result."""

import subprocess
from pathlib import Path

import hieropo


def commit() -> str:
    """Commit of the sources, with a word where they were changed since; the version where there is no repository."""
    here = Path(hieropo.__file__).resolve().parent
    top = _git(here, "rev-parse", "--show-toplevel")
    if (
        top is None or here != Path(top) / "src" / "hieropo"
    ):  # an installation that lies in some other repository
        return f"release {hieropo.__version__}"
    changed = _git(here, "status", "--porcelain", "--", str(here))
    return f"{_git(here, 'rev-parse', 'HEAD')}{' with changes' if changed else ''}"


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
