"""Render the tables of benchmarks/README.md from the JSON of the programs, between the marks of each program.

    python benchmarks/readme.py

A mark is ``<!-- NAME -->``, and ``<!-- /NAME -->`` ends its text. A part without a record is named with its command.
"""

import re
import sys
from pathlib import Path

import record
from renderers import PROGRAMS, Run

README = Path(__file__).resolve().parent / "README.md"


def command(name: str, run: Run) -> str:
    """Return the command of a run as a user types it."""
    words = [*(f"{key}={value}" for key, value in run.environment), "python", f"benchmarks/{name}.py"]
    return " ".join([*words, *re.sub(r"\{(.*?)\}", lambda match: match[1].upper(), run.arguments).split()])


def section(name: str, folder: Path) -> str:
    """Return table, origin and missing parts of one program."""
    program, document = PROGRAMS[name], {}
    if (folder / f"{name}.json").exists():
        document = record.read(name, folder=folder)
    runs = record.runs(document)
    known = [part for run in program.runs for part in run.parts if part in runs]
    parts = {part: runs[part]["results"] for part in dict.fromkeys([*known, *runs])}
    missing = [run for run in program.runs if not any(part in runs for part in run.parts)]
    texts = [program.render(parts).strip(), record.origin(document)] if parts else []
    if missing:
        texts.append(f"Not run yet: {', '.join(f'`{command(name, run)}`' for run in missing)}.")
    return "\n\n".join(texts)


def rendered(text: str, folder: Path = record.FOLDER) -> str:
    """Return the page with the tables of all programs."""
    for name in PROGRAMS:
        body = f"<!-- {name} -->\n{section(name, folder)}\n<!-- /{name} -->"
        text, count = re.subn(
            rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _, body=body: body, text, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(
                f"The page has {count} places for {name}, where it needs one: <!-- {name} --> ... <!-- /{name} -->."
            )
    return text


def main() -> None:
    """Write the page anew."""
    README.write_text(rendered(README.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{README} written.\n")


if __name__ == "__main__":
    main()
