"""The documentation site: every page is reached, blocks run, dead links are found."""

import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from hieropo.report.document import Document, Histogram, Interval, Intervals, Notice, Section, Text

ROOT = Path(__file__).resolve().parents[2]


def program(name: str) -> Any:
    """Return a program of the folder ``scripts`` as a module."""
    spec = importlib.util.spec_from_file_location(f"{name}_program", ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site() -> Any:
    return program("site")


def pages(entry: Any) -> Iterator[str]:
    """Pages of the navigation, at any depth."""
    if isinstance(entry, str):
        yield entry
    for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from pages(inner)


def test_the_navigation_has_every_page_that_is_written_for_it(site: Any, tmp_path: Path) -> None:
    configuration = tomllib.loads((ROOT / "docs" / "zensical.toml").read_text(encoding="utf-8"))
    shown = set(pages(configuration["project"]["nav"]))
    made = {str(place.relative_to(tmp_path)) for place in site.copied(tmp_path).values()}
    assert shown <= made
    elsewhere = ("adr/", "results/", "paper/")  # reached from their own lists
    assert {page for page in made if not page.startswith(elsewhere)} <= shown


def test_links_follow_pages_to_their_new_places(site: Any, tmp_path: Path) -> None:
    places = site.copied(tmp_path / "docs")
    text = places[ROOT / "GLOSSARY.md"].read_text(encoding="utf-8")
    assert "](../../" not in text
    index = places[ROOT / "docs" / "index.md"].read_text(encoding="utf-8")
    assert "[limitations](reference/limitations.md)" in index
    assert "[command line](reference/cli.md)" in index


def test_the_reference_has_every_public_name_and_every_command(site: Any) -> None:
    import hieropo
    from hieropo.cli import main

    text = site.api()
    assert all(re.search(rf"\.{name}\n", text) for name in set(hieropo.__all__) - {"__version__"})
    words = site.command_line()
    assert all(f"## hieropo {name}\n" in words for name in main.commands)
    assert "### hieropo moments merge" in words


def test_dead_links_and_anchors_of_a_built_site_are_found(site: Any, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="here">A</h1><a href="b.html#there">b</a><a href="https://x.org">x</a>'
    )
    (tmp_path / "b.html").write_text(
        '<a href="a.html#here">a</a><a href="a.html#gone">a</a><img src="no.svg">'
    )
    assert list(site.dead_links(tmp_path)) == [
        "a.html: b.html#there is no anchor",
        "b.html: a.html#gone is no anchor",
        "b.html: no.svg is no file",
    ]


@pytest.mark.slow
def test_a_page_shows_what_its_blocks_print_and_draw(site: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n```python\nx = 2\nprint('x is', x)\n```\n\n```python\nfrom matplotlib import pyplot as plt\n\n"
        "plt.figure().add_subplot().set_title('Two')\n```\n"
    )
    site.executed(page)
    text = page.read_text()
    assert "```text\nx is 2\n```" in text
    assert "![Two](page/figure-1.svg)" in text
    assert (tmp_path / "page" / "figure-1.svg").exists()


def test_the_picture_of_a_report_has_its_words_and_charts() -> None:
    notice = Notice("Ship", "The log shows a gain & no harm.", "good")
    gain = Intervals("Gain", "gain", (Interval("this policy", 1.0, 0.5, 1.5),))
    harm = Histogram("Tasks by their gain", "gain", (0.0, 1.0), (3.0,), (1.0,), "held back")
    sections = (
        Section("verdict", "Verdict", (notice, Text("Better than separate."))),
        Section("gain", "Gain", (gain,)),
        Section("harm", "Harm", (harm,)),
    )
    drawn = program("report_picture").drawn(Document("Which <offer>?", "", sections))
    words = {text.text for text in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")}
    assert {"Which <offer>?", "Ship", "The log shows a gain & no harm.", "Better than separate."} < words
    assert {"Gain", "Tasks by their gain", "this policy"} < words


def test_the_citation_names_the_version_of_the_package() -> None:
    import hieropo

    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {hieropo.__version__}\n" in text
    assert "2212.04720" in text
