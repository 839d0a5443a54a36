"""Files of Vowpal Wabbit as a source of rows: a first reading, the rows, and examples that cannot be read."""

import gzip
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

from hieropo._utils.text import counted
from hieropo.errors import InputError, LogError, SchemaError, warn
from hieropo.logs.arrow.arrays import EXACT
from hieropo.logs.arrow.log_source import BATCH_ROWS
from hieropo.logs.bad_rows.rejects import Listing, Reason, Rejected, check_listing
from hieropo.logs.interop.vw.example import (
    OWN,
    Candidate,
    Example,
    ExampleError,
    Features,
    NamelessError,
    Names,
    Place,
    Skipped,
    attempted,
    read_adf,
    read_cb,
    read_dsjson,
)
from hieropo.rows.ids import abbreviate

_BLOCK = 10_000  # examples listed at once


class Aside:
    """Takes examples that cannot be read, in their order.

    Parameters
    ----------
    lenient : bool
        Whether a file with such examples may be used without them. If not, it is read to its end all the same, so that
        all of them are found.
    file : path, optional
        A .parquet or .csv file in which they are listed.

    Raises
    ------
    InputError
        ``file`` is of another format.
    ArtifactError
        It cannot be written.
    """

    def __init__(self, *, lenient: bool, file: str | os.PathLike[str] | None) -> None:
        self._lenient, self._file = lenient, file
        self._rows = 0
        self._reasons: dict[tuple[str, str], Reason] = {}
        self._listing = None if file is None else Listing(Path(file), unit="line")
        self._waiting: list[dict[str, Any]] = []

    def add(self, error: ExampleError, path: str) -> None:
        """Take one example."""
        self._rows += 1
        key = error.column, error.reason
        reason, before = Reason(*key, 1, error.line, error.value, unit="line"), self._reasons.get(key)
        self._reasons[key] = reason if before is None else before + reason
        if self._listing is not None:
            self._waiting.append(
                {"file": path, "line": error.line, "column": error.column or None, "value": error.value,
                 "reason": error.reason}
            )  # fmt: skip
            if len(self._waiting) == _BLOCK:
                self._list()

    def _list(self) -> None:
        if self._listing is not None and self._waiting:
            table = pa.Table.from_pylist(self._waiting, self._listing.schema)
            self._listing.take(table, self._waiting[0]["line"])
            self._waiting = []

    def settle(self, kept: int) -> Rejected:
        """Return what was set aside beside ``kept`` examples; the file is written.

        Raises
        ------
        LogError
            Examples had to be set aside and may not be; more than half were.

        Warns
        -----
        HieropoWarning
            Examples were set aside: how many, and why.
        """
        self._list()
        if self._listing is not None:
            self._listing.write()
        file = None if self._file is None else str(self._file)
        found = Rejected(kept + self._rows, self._rows, tuple(self._reasons.values()), file=file)
        found.check(lenient=self._lenient, cause="Is it the right form, and is the file whole?")
        if found.rows:
            warn(f"{found.counted()} were set aside.{found.listed}")
        return found


TYPES = {"text": pa.string(), "whole": pa.int64(), "real": pa.float64()}

_SAID = {"text": "text", "whole": "number", "real": "number"}
_EXTRAS = ("id", "time")


@dataclass(slots=True)
class Columns:
    """Columns of features: whether each holds text, whole numbers or others, its texts, and how many rows have one."""

    kinds: dict[str, str] = field(default_factory=dict)
    texts: dict[str, set[str]] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    _lines: dict[str, int] = field(default_factory=dict)

    def note(self, features: Features, line: int, path: object) -> None:
        """Take down the features of one example."""
        for name, value in features.items():
            exact = isinstance(value, int) and -EXACT <= value <= EXACT
            kind = "text" if isinstance(value, str) else "whole" if exact else "real"
            known = self.kinds.setdefault(name, kind)
            first = self._lines.setdefault(name, line)
            if "text" in (kind, known) and kind != known:
                raise SchemaError(
                    f"{path}: {name!r} is a {_SAID[known]} in line {first} and a {_SAID[kind]} in line {line}. Rename "
                    "one of them, or write it alike."
                )
            if kind == "text":
                self.texts.setdefault(name, set()).add(value)
                self.rows[name] += 1
            elif kind == "real":
                self.kinds[name] = kind


@dataclass(slots=True)
class FirstPass:
    """The result of one reading of a file.

    Attributes
    ----------
    rows : int
    skipped : Counter
        Examples that are no rows, by reason.
    shared, own : Columns
        Features that do not depend on the action, and those of the actions taken.
    ids : dict
        Distinct ids of actions, in order of appearance.
    listed : bool
        Whether any example says which actions could be taken.
    extras : set of str
        Columns beside action, reward and pscore that some example has.
    """

    rows: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    shared: Columns = field(default_factory=Columns)
    own: Columns = field(default_factory=Columns)
    ids: dict[Any, None] = field(default_factory=dict)
    listed: bool = False
    extras: set[str] = field(default_factory=set)

    def own_name(self, name: str) -> str:
        """Column of a feature of the action taken."""
        return f"action.{name}" if name in self.shared.kinds else name

    def kinds(self) -> dict[str, str]:
        """Kind of every column of features."""
        return self.shared.kinds | {self.own_name(name): kind for name, kind in self.own.kinds.items()}

    def texts(self) -> dict[str, set[str]]:
        """Texts of every column that holds text."""
        return self.shared.texts | {self.own_name(name): found for name, found in self.own.texts.items()}

    def lacking(self, name: str) -> bool:
        """Return whether some row has no text in a column of text."""
        return self.rows > (
            self.shared.rows | {self.own_name(column): rows for column, rows in self.own.rows.items()}
        ).get(name, 0)

    def id_type(self, path: object) -> pa.DataType:
        """Arrow type of the ids of actions.

        Raises
        ------
        SchemaError
            Some are text and some are numbers.
        """
        try:
            return pa.array(list(self.ids)).type
        except (pa.ArrowException, OverflowError):
            raise SchemaError(
                f"{path}: actions are of unlike types, such as {abbreviate(list(self.ids), 10)}. Write them alike."
            ) from None


def first_pass(examples: Iterable[Example | Skipped], path: object) -> FirstPass:
    """Read a file once."""
    found = FirstPass()
    for each in examples:
        if isinstance(each, Skipped):
            found.skipped[each.why] += 1
            continue
        found.rows += 1
        found.shared.note(each.shared, each.line, path)
        if each.candidates:
            found.own.note(each.candidates[each.taken - 1].features, each.line, path)
        found.ids.setdefault(each.action)
        if each.eligible is not None:
            found.listed = True
            found.ids.update(dict.fromkeys(each.eligible))
        found.extras.update(name for name in _EXTRAS if getattr(each, name) is not None)
        if each.sampling_weight != 1.0:
            found.extras.add("sampling_weight")
    return found


Form = Literal["cb", "cb_adf", "dsjson"]

_MOST_COLUMNS = 1000
_MARK = "\ufeff"  # of UTF-8, at the beginning of a file, and within one that was put together from several
_Row = dict[str, Any]
_Read = Callable[..., Iterator[Example | Skipped | ExampleError]]


def from_vw(
    path: str | Path,
    form: Form,
    *,
    action: str | None = None,
    columns: Sequence[str] | None = None,
    one_hot: Sequence[str] = (),
    quoted: bool = False,
    lenient: bool = False,
    rejects: str | os.PathLike[str] | None = None,
) -> "VWLog":
    """Open a contextual-bandit file of Vowpal Wabbit as a log; it is read once for its columns and again by every pass.

    A feature is a column ``namespace.feature`` (``feature`` where it has no namespace): a number, 0 in examples without
    it; a text, null there, where it is written ``feature=text``, or is a string in JSON. Objects in JSON nest:
    ``namespace.object.feature``. In the forms with features of actions those of the action taken are columns too, as
    ``action.feature`` where a shared feature has the same name.

    Parameters
    ----------
    path : str or Path
        Also compressed, where the name ends in .gz.
    form : "cb", "cb_adf" or "dsjson"
        As the options of Vowpal Wabbit that read it.
    action : str, optional
        Where actions have features: the column that names them, such as ``"Action.article"``, or ``"tag"``. Default
        their number in the example, from 1, which names an action only where the same ones come in the same order.
    columns : sequence of str, optional
        The columns of features that are wanted. Default all; more than 1,000 must be chosen from.
    one_hot : sequence of str
        Columns of text to become columns ``name=text`` of 0 and 1, but for the first text in order. Where some rows
        have no such feature, ``name:absent`` is 1 there.
    quoted : bool
        Names were percent-encoded, as :func:`to_vw` does.
    lenient : bool
        Whether examples that cannot be read (no number, no JSON, no such action, ...) are set aside, counted in
        ``rejected`` and warned about, and refused where they are more than half. If not, the first one is an error.
        Values that can be read and not used, such as a propensity of 0, are judged where the log is used.
    rejects : path, optional
        A .parquet or .csv file that lists all such examples: file, line, column, value, reason.

    Returns
    -------
    VWLog
        A source of rows with the columns ``action``, ``reward`` = -cost, ``pscore``, and where the file has them
        ``eligible``, ``id`` (the tag; EventId), ``time`` (Timestamp, UTC) and ``sampling_weight`` (1 / (1 - pdrop),
        to be named as such in a fit). A feature of such a name gets a dot before it.

    Raises
    ------
    LogError
        A line that is not of this form, by its number; no example with a label; more than half set aside.
    SchemaError
        A column that is a number in one line and a text in another, or is not there.
    InputError
        No such file or form; too many columns; ``rejects`` is of another format.
    ArtifactError
        ``rejects`` cannot be written.

    Warns
    -----
    HieropoWarning
        Examples are left out, having no label, or were set aside: how many, and why.
    """
    if form not in get_args(Form):
        raise InputError(f"form={form!r} is none of {', '.join(map(repr, get_args(Form)))}.")
    read: _Read = read_dsjson
    if form != "dsjson":
        read = partial(read_cb if form == "cb" else read_adf, quoted=quoted)
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"A path to a file is needed, not {path!r}.")
    check_listing(rejects, path)
    aside = Aside(lenient=lenient, file=rejects) if lenient or rejects is not None else None
    return VWLog(Path(path), read, action, columns, tuple(one_hot), aside)


class VWLog:
    """A file of Vowpal Wabbit as a source of rows.

    Attributes
    ----------
    left_out : dict
        How many examples are no rows, by reason.
    rejected : Rejected or None
        What was set aside; None where the first such example was to be an error.
    """

    rereadable = True

    def __init__(
        self,
        path: Path,
        read: _Read,
        action: str | None,
        columns: Sequence[str] | None,
        one_hot: tuple[str, ...],
        aside: Aside | None,
    ) -> None:
        self.name = f"Vowpal Wabbit file {path}"
        self._path, self._read, self._action, self._lenient = path, read, action, aside is not None
        self._stamp = _stamp(path)
        self._seen = seen = first_pass(self._examples(aside), path)
        self.left_out = dict(seen.skipped)
        self.rejected = None if aside is None else aside.settle(seen.rows)
        if not seen.rows:
            raise LogError(
                f"The {self.name} has no example with a label{_said(self.left_out)}. Is it the right form?"
            )
        self._kinds = seen.kinds()
        self._spread = {name: self._indicators(name) for name in one_hot}
        self.schema = self._schema(list(self._kinds) if columns is None else list(columns))
        if self.left_out:
            warn(
                f"Of the {self.name} {counted(seen.rows, 'example')} can be learned from{_said(self.left_out)}."
            )

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self._seen.rows

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only."""
        if _stamp(self._path) != self._stamp:
            raise LogError(f"The {self.name} changed since it was opened. Open it again.")
        fields = [self.schema.field(name) for name in columns]
        held: list[_Row] = []
        for each in self._examples():
            if isinstance(each, Example):
                held.append(self._row(each))
            if len(held) == batch_rows:
                yield self._batch(held, fields)
                held = []
        if held:
            yield self._batch(held, fields)

    def _batch(self, rows: list[_Row], fields: list[pa.Field]) -> pa.RecordBatch:
        arrays = []
        for each in fields:
            empty = None if pa.types.is_string(each.type) or each.name in OWN else 0
            values = [row.get(each.name, empty) for row in rows]
            if pa.types.is_floating(each.type):
                values = [value if value is None else float(value) for value in values]
            arrays.append(pa.array(values, each.type))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _examples(self, aside: Aside | None = None) -> Iterator[Example | Skipped]:
        """Read the file; what cannot be read goes ``aside``, where the reading is lenient, or is an error."""
        for each in self._read(_lines(self._path), str(self._path), Names()):
            found = attempted(partial(self._identified, each)) if isinstance(each, Example) else each
            if not isinstance(found, ExampleError):
                yield found
            elif not self._lenient:
                raise found
            elif aside is not None:
                aside.add(found, str(self._path))

    def _row(self, example: Example) -> _Row:
        """Everything of an example, by column."""
        row: _Row = dict(example.shared)
        if example.candidates:
            own = example.candidates[example.taken - 1].features
            row |= {self._seen.own_name(name): value for name, value in own.items()}
        for name, indicators in self._spread.items():
            column = indicators.get(row.get(name))
            if column is not None:
                row[column] = 1
        found = {"reward": example.reward, "pscore": example.pscore, "id": example.id, "time": example.time,
                 "sampling_weight": example.sampling_weight}  # fmt: skip
        listed = list(self._seen.ids) if example.eligible is None else example.eligible
        return row | found | {"action": example.action, "eligible": listed}

    def _identified(self, example: Example) -> Example:
        """Return an example with the ids of the action taken, and of those that could be."""
        if not example.candidates:
            return replace(example, action=example.taken, eligible=example.listed)
        where = Place(str(self._path), example.line)
        ids = [self._id(each, k, where) for k, each in enumerate(example.candidates, 1)]
        if len(set(ids)) != len(ids):
            raise ExampleError(
                where,
                f"two actions of the example have the same {self._action!r}, {abbreviate(ids, 8)}. Name a column that "
                "tells them apart.",
                str(self._action),
                "two actions of one name",
                next(each for each in ids if ids.count(each) > 1),
            )
        return replace(example, action=ids[example.taken - 1], eligible=ids)

    def _id(self, candidate: Candidate, number: int, where: Place) -> Any:
        if self._action is None:
            return number
        found = candidate.tag if self._action == "tag" else candidate.features.get(self._action)
        if found is None:
            has = ["tag"] * (candidate.tag is not None) + list(candidate.features)
            raise NamelessError(
                where,
                f"action {number} has no {self._action!r} to name it; it has {abbreviate(has, 20) or 'nothing'}.",
                self._action,
                "missing",
            )
        return found

    def _texts(self, name: str) -> list[str]:
        texts = self._seen.texts().get(name)
        if texts is None:
            listed = abbreviate(list(self._seen.texts()), 40) or "none"
            raise SchemaError(f"The {self.name} has no column of text {name!r} for one_hot; it has {listed}.")
        return sorted(texts)

    def _indicators(self, name: str) -> dict[str | None, str]:
        """Column that is 1 for each text of a column, and for none, but not for the first text, where all are 0."""
        found: dict[str | None, str] = {text: f"{name}={text}" for text in self._texts(name)[1:]}
        return found | {None: f"{name}:absent"} if self._seen.lacking(name) else found

    def _schema(self, features: list[str]) -> pa.Schema:
        seen = self._seen
        missing = [name for name in features if name not in self._kinds]
        if missing:
            raise SchemaError(
                f"The {self.name} has no feature {missing[0]!r}. It has {abbreviate(list(self._kinds), 40)}."
            )
        if len(features) > _MOST_COLUMNS:
            raise InputError(
                f"The {self.name} has {len(features):,} features, such as {abbreviate(features, 5)}; a column of each "
                "is more than can be learned from. Choose some, columns=[...]."
            )
        kind = seen.id_type(self._path)
        types = {"action": kind, "reward": pa.float64(), "pscore": pa.float64()}
        more = {
            "eligible": pa.list_(kind),
            "id": pa.string(),
            "time": pa.timestamp("us", "UTC"),
            "sampling_weight": pa.float64(),
        }
        types |= {
            name: more[name] for name in more if name in seen.extras or (name == "eligible" and seen.listed)
        }
        types |= {name: TYPES[self._kinds[name]] for name in features if name not in self._spread}
        for column in (column for indicators in self._spread.values() for column in indicators.values()):
            if column in types or column in self._kinds:
                raise SchemaError(
                    f"The {self.name} would have two columns {column!r}, one of them of 0 and 1 by one_hot. Rename the "
                    "feature, or leave it out of one_hot."
                )
            types[column] = pa.int64()
        return pa.schema(list(types.items()))


def _said(skipped: dict[str, int]) -> str:
    return "".join(f", {number:,} {why} are left out" for why, number in skipped.items())


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise InputError(f"{path} cannot be opened: {error.strerror}. Check the path.") from error
    if path.is_dir():
        raise InputError(f"{path} is a folder; name one file of it.")
    return found.st_size, found.st_mtime_ns


def _lines(path: Path) -> Iterable[tuple[int, str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, text in enumerate(lines, 1):
                yield number, text.rstrip("\r\n").removeprefix(_MARK)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise LogError(f"{path} cannot be read: {error}. Is it torn, or not a text in UTF-8?") from error
