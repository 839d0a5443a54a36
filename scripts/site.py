"""Build the documentation site from ``docs/``, the documents of the root and the docstrings: ``make docs``.

    python scripts/site.py [-o site] [--work build/site]

1. Pages are copied to a work folder, and links to files that are no pages become plain text.
2. The ``python`` blocks of ``docs/tutorials`` and ``docs/explanation`` are run; what they print and draw follows them.
3. The reference of the command line is made from its own help, that of the API from ``hieropo.__all__``.
4. zensical builds the site; every link and anchor of the built pages is checked.

It exits with 1 where a block fails, a public name is in no group, or a link or anchor is dead.
"""

import argparse
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

ROOT = Path(__file__).resolve().parents[1]
MOVED = {  # documents of the root, and their places in the site
    "GLOSSARY.md": "reference/glossary.md",
    "LIMITATIONS.md": "reference/limitations.md",
    "CHANGELOG.md": "project/changelog.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
}
ASSETS = {".svg", ".png", ".css"}
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\[\]]{0,300}(?:\[[^\[\]]{0,300}\][^\[\]]{0,300})?)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):(?=<code>|`)")
API = {
    "Learners": ("HierOPO", "FlatOPO", "OracleOPO", "PooledOPO", "load_learner"),
    "Policies": (
        "LCBPolicy", "SamplingPolicy", "GatedPolicy", "Choice", "Choices", "Decisions", "load_policy", "save_policy",
    ),
    "Evaluation": ("Evaluation", "assumptions", "bounds"),
    "Logs": ("open_log", "sql", "examine", "Examination", "Finding", "LogMoments", "ShardedMoments"),
    "Features": ("indicator", "per_action", "embedding", "Columns"),
    "Terms of context columns": (
        "Terms", "parse", "ByType", "Cat", "Cross", "Cyclic", "DatePart", "Effect", "Log", "Number", "Ordered",
        "Spline", "YesNo",
    ),
    "Moments and posteriors": (
        "Moments", "Accumulator", "Gaussian", "Hierarchy", "Level", "Metadata", "CrossedHierarchy", "CrossedLevel",
        "Posterior", "condition", "estimate", "estimate_levels", "Estimate",
    ),
    "Errors": (
        "HieropoError", "HieropoWarning", "InputError", "LogError", "SchemaError", "MismatchError",
        "NotFittedError", "NumericalError",
        "ArtifactError", "UnknownActionError", "UnknownTaskError",
    ),
}  # fmt: skip
MODULES = ("hieropo.explanation.explanation", "hieropo.plots", "hieropo.logs.interop")


def main() -> int:
    """Build the site; return the exit code."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("-o", "--output", type=Path, default=ROOT / "site")
    options.add_argument("--work", type=Path, default=ROOT / "build" / "site")
    given = options.parse_args()
    work, output = given.work.resolve(), given.output.resolve()
    shutil.rmtree(work, ignore_errors=True)
    pages = copied(work / "docs")
    for folder in ("tutorials", "explanation"):
        for page in sorted((work / "docs" / folder).glob("*.md")):
            executed(page)
    (work / "docs" / "reference" / "cli.md").write_text(command_line(), encoding="utf-8")
    (work / "docs" / "reference" / "api.md").write_text(api(), encoding="utf-8")
    configuration = (ROOT / "docs" / "zensical.toml").read_text(encoding="utf-8")
    (work / "zensical.toml").write_text(configuration.replace("SOURCE", str(ROOT / "src")), encoding="utf-8")
    built = subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--clean"],
        cwd=work, check=False, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    if built.returncode:
        print(built.stdout, built.stderr)
        return 1
    shutil.rmtree(output, ignore_errors=True)
    shutil.move(work / "site", output)
    for html in output.rglob("*.html"):
        html.write_text(ROLE.sub("", html.read_text(encoding="utf-8")), encoding="utf-8")
    dead = list(dead_links(output))
    print(f"{len(pages)} pages, {len(dead)} dead links or anchors. Open {output / 'index.html'}")
    print("\n".join(dead), end="\n" if dead else "")
    return int(bool(dead))


def copied(target: Path) -> dict[Path, Path]:
    """Copy pages and pictures; return the place of each page by its source."""
    places = {ROOT / name: target / place for name, place in MOVED.items()}
    places |= {path: target / path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    pictures = [path for path in (ROOT / "docs").rglob("*") if path.suffix in ASSETS]
    for path in pictures:
        place = target / path.relative_to(ROOT / "docs")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    kept = places | {path: target / path.relative_to(ROOT / "docs") for path in pictures}
    for source, place in places.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(relinked(source.read_text(encoding="utf-8"), source, place, kept), encoding="utf-8")
    return places


def relinked(text: str, source: Path, place: Path, places: dict[Path, Path]) -> str:
    """Return a page with links to other pages from its new place; links to other files become their text."""

    def link(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        path, anchor = urldefrag(target)
        if not path or ":" in path:
            return match.group()
        there = places.get(Path(os.path.normpath(source.parent / path)))
        if there is None:
            return words
        return f"{mark}[{words}]({os.path.relpath(there, place.parent)}{'#' + anchor if anchor else ''})"

    parts, end = [], 0
    for fence in FENCE.finditer(text):  # code stays as it is
        parts += [LINK.sub(link, text[end : fence.start()]), fence.group()]
        end = fence.end()
    return "".join([*parts, LINK.sub(link, text[end:])])


def executed(page: Path) -> None:
    """Run the blocks of a page in one namespace and an empty folder; write their output and figures behind them."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    mpl.use("Agg")
    plt.close("all")  # figures of other pages
    mpl.rcParams.update({"svg.hashsalt": "hieropo", "figure.figsize": (7, 4), "svg.fonttype": "none"})
    text, namespace, folder = page.read_text(encoding="utf-8"), {"__name__": "tutorial"}, page.with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)
    run_in = folder / "run"
    run_in.mkdir(parents=True)
    number = 0

    def run(match: re.Match[str]) -> str:
        nonlocal number
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(run_in):
            exec(compile(match.group(1), str(page), "exec"), namespace)  # the page's own code
        parts = [match.group()]
        if printed.getvalue().strip():
            parts.append(f"```text\n{printed.getvalue().rstrip()}\n```")
        for figure in figures():
            number += 1
            name = f"figure-{number}.svg"
            figure.savefig(folder / name, metadata={"Date": None}, bbox_inches="tight")
            title = figure.axes[0].get_title() or "Figure"
            parts.append(f"![{title}]({folder.name}/{name})")
        return "\n\n".join(parts)

    page.write_text(BLOCK.sub(run, text), encoding="utf-8")
    shutil.rmtree(run_in)


def figures() -> Iterator[object]:
    """Yield the open figures of pyplot, and close them."""
    from matplotlib import pyplot as plt

    for number in plt.get_fignums():
        yield plt.figure(number)
        plt.close(number)


def command_line() -> str:
    """Return the help of every command as one page."""
    import click

    from hieropo.cli import main as program

    parts = ["# Command line", "Made from the help of each command, `hieropo COMMAND --help`."]

    def add(command: click.Command, name: str, parent: click.Context | None, depth: int) -> None:
        context = click.Context(
            command, info_name=name.rsplit(maxsplit=1)[-1], parent=parent, max_content_width=100
        )
        parts.extend([f"{'#' * depth} {name}", f"```text\n{command.get_help(context)}\n```"])
        for child, one in getattr(command, "commands", {}).items():
            add(one, f"{name} {child}", context, min(depth + 1, 3))

    add(program, "hieropo", None, 2)
    return "\n\n".join(parts) + "\n"


def api() -> str:
    """Return the page of all public names, by groups, whose text comes from docstrings.

    Raises
    ------
    SystemExit
        A public name is in no group, or in two.
    """
    import hieropo

    grouped = [name for names in API.values() for name in names]
    missing = sorted(set(hieropo.__all__) - {"__version__"} ^ set(grouped))
    if missing or len(grouped) != len(set(grouped)):
        raise SystemExit(f"The groups of the API in scripts/site.py and hieropo.__all__ differ: {missing}")
    parts = [
        "# Python",
        "Made from the docstrings. All names of the first sections are imported from `hieropo`.",
    ]
    for title, names in API.items():
        parts.append(f"## {title}")
        for name in names:
            home = getattr(hieropo, name).__module__
            inherited = str(name == "HierOPO").lower()  # those of the baselines are the same
            parts.append(
                f"::: {home}.{name}\n    options:\n      heading_level: 3\n      inherited_members: {inherited}"
            )
    for module in MODULES:
        parts += [
            f"## {module}",
            f"::: {module}\n    options:\n      show_root_heading: false\n      heading_level: 3",
        ]
    return "\n\n".join(parts) + "\n"


class Page(HTMLParser):
    """The anchors and the links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect ids, and targets of links and pictures."""
        values = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        self.links += [value for name in ("href", "src") if (value := values.get(name)) and tag != "base"]


def dead_links(site: Path) -> Iterator[str]:
    """Yield the links and anchors of a built site that lead nowhere; addresses elsewhere are not followed."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    for path, page in sorted(pages.items()):
        if path.name == "404.html":  # its links are from the root of the address
            continue
        for link in sorted(set(page.links)):
            target, anchor = urldefrag(link)
            if ":" in target or target.startswith(("//", "/")):
                continue
            there = path if not target else Path(os.path.normpath(path.parent / unquote(target)))
            there = there / "index.html" if there.is_dir() else there
            if not there.exists():
                yield f"{path.relative_to(site)}: {link} is no file"
            elif anchor and there in pages and unquote(anchor) not in pages[there].anchors | {"__top"}:
                yield f"{path.relative_to(site)}: {link} is no anchor"


if __name__ == "__main__":
    sys.exit(main())
