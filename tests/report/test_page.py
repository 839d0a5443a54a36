"""A document as one HTML page: complete, escaped, the same each time."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hieropo.errors import ArtifactError
from hieropo.report import (
    Bars,
    Curve,
    Curves,
    Document,
    Gate,
    Gates,
    Grid,
    Histogram,
    Interval,
    Intervals,
    Items,
    Notice,
    Section,
    TaskTable,
    Text,
    fragment,
    page,
    write_page,
)
from hieropo.report.svg import Scale, scale_of

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&<!--\u202e\x00"


class Elements(HTMLParser):
    """Collects elements, and checks that each is closed."""

    VOID = frozenset({"meta", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.seen if name == tag]


def tasks(count: int, name: str = "task") -> TaskTable:
    columns = {
        name: tuple(f"{name} {k}" for k in range(count)),
        "rows": tuple(range(count)),
        "gain": tuple(None if k == 1 else round(0.1234 * k / count, 4) for k in range(count)),
        "gate": tuple("policy" if k % 2 else "incumbent" for k in range(count)),
    }
    return TaskTable(columns, tuple(range(min(count, 60))), tuple(range(min(count, 60))), "gate", "gain")


def document(word: str = "shop", count: int = 5) -> Document:
    gates = Gates((Gate(0.01, 0.5, 1.0, 0.5, 1.5, 0.0), Gate(0.05, 0.9, 2.0, 1.0, 3.0, 0.01)), 1)
    blocks = (
        Notice(word, word, "good"), Text(word), Items((word, word)), Grid((word, "b"), ((word, "1"),), word), gates,
        Intervals(word, word, (Interval(word, 1.0, 0.5, 2.0, marked=True), Interval(word, 1.0, None, None)), word),
        Histogram(word, word, (0.0, 1.0, 2.0), (3.0, 4.0), (1.0, 0.0), word), Bars(word, word, (0.4, 0.6), 0.5),
        Curves(word, word, word, (0.0, 1.0), (Curve(word, (0.0, 1.0), (-1.0, 0.0), (1.0, 2.0)),)), tasks(count, word),
    )  # fmt: skip
    return Document(word, word, (Section("first", word, blocks),))


def test_a_page_is_well_formed_and_asks_nothing_of_any_network() -> None:
    text = page(document())
    elements = Elements(text)
    for tag, attributes in elements.seen:
        assert not {"src", "srcset", "action", "data", "poster"} & set(attributes), tag
        assert all(link.startswith("#") for name in ("href",) if (link := attributes.get(name)))
    assert "default-src 'none'" in str(elements.named("meta"))
    assert "@import" not in text
    assert "url(" not in text
    assert elements.named("html")[0]["lang"] == "en"


def test_every_picture_has_a_title_and_a_description() -> None:
    text = page(document())
    pictures = Elements(text).named("svg")
    assert len(pictures) == 4
    for picture in pictures:
        assert picture["role"] == "img"
        assert f'<title id="{picture["aria-labelledby"]}">' in text
        assert f'<desc id="{picture["aria-describedby"]}">' in text
    names = [attributes["id"] for _, attributes in Elements(text).seen if "id" in attributes]
    assert len(names) == len(set(names))


def test_words_of_a_user_never_become_markup() -> None:
    text = page(document(HOSTILE))
    elements, plain = Elements(text), Elements(page(document()))
    assert [tag for tag, _ in elements.seen] == [tag for tag, _ in plain.seen]
    assert all(not name.startswith("on") for _, attributes in elements.seen for name in attributes)
    assert "<img" not in text
    assert "\u202e" not in text.replace(json.dumps(HOSTILE), "").split("application/json")[0]
    data = next(json.loads(script) for script in elements.scripts if script.startswith('{"columns"'))
    assert data["values"][0][0] == f"{HOSTILE} 0"


def test_the_same_document_gives_the_same_bytes_and_json(tmp_path) -> None:
    first, second = (write_page(document(HOSTILE), tmp_path / f"{k}.html").read_bytes() for k in range(2))
    assert first == second
    told = json.loads(json.dumps(document().to_dict(), allow_nan=False))
    assert (told["format"], told["version"]) == ("hieropo report", 1)
    assert [block["block"] for block in told["sections"][0]["blocks"]][:2] == ["notice", "text"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.html", "1.html"]


def test_a_report_that_cannot_be_written_says_so(tmp_path) -> None:
    with pytest.raises(ArtifactError, match=r"nowhere.*cannot be written.*a path in a folder that exists"):
        write_page(document(), tmp_path / "nowhere" / "report.html")


@pytest.mark.parametrize("place", [".", "", "folder"])
def test_a_folder_in_place_of_a_file_is_named(tmp_path, place, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    with pytest.raises(ArtifactError, match=r"is a folder.*Name a file in it, such as .*report\.html"):
        write_page(document(), place)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_pages_of_many_tasks_stay_small_and_show_both_ends_without_script() -> None:
    text = page(document(count=10_000))
    assert len(text.encode()) < 1_500_000
    rows = Elements(text).named("tr")
    assert len(rows) == 1 + 1 + 1 + 2 + 1 + 2 * 51
    assert len(page(document(count=100)).encode()) < 300_000


def test_a_fragment_for_a_notebook_has_no_script() -> None:
    only = document()
    short = Document("a", "b", (Section("first", "c", only.sections[0].blocks[:4]),))
    elements = Elements(fragment(short))
    assert not elements.named("script")
    assert not elements.named("a")


def test_ticks_are_round_and_within_the_scale() -> None:
    scale = scale_of([0.0732, 0.134], 0.0, 100.0)
    assert scale.ticks() == pytest.approx([0.0, 0.05, 0.1])
    assert scale_of([float("nan")], 0.0, 1.0).ticks()
    assert Scale(0.0, 10.0, 5.0, 105.0)(5.0) == 55.0
