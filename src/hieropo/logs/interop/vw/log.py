"""Files of Vowpal Wabbit as a source of rows: a first pass, the rows, and examples that cannot be read."""

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
from hieropo.logs.arrow.log_source import BATCH_ROWS, source_repr
from hieropo.logs.bad_rows.rejects import Listing, Reason, Rejected, check_listing
from hieropo.logs.interop.vw.example import (
    RESERVED,
    Candidate,
    ColumnNames,
    Example,
    ExampleError,
    Features,
    Location,
    NamelessError,
    Skipped,
    read_adf,
    read_cb,
    read_dsjson,
    read_or_error,
)
from hieropo.rows.ids import abbreviate

_BLOCK = 10_000  # examples listed at once


class SetAside:
    """Collects examples that cannot be read, in their order.

    Parameters
    ----------
    lenient : bool
        True to use a file without such examples. Otherwise the file is still read to its end, to count and list all of
        them.
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
        """Count one example, and list it if there is a listing."""
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

    def finish(self, usable: int) -> Rejected:
        """Write the listing and return the counts of examples set aside; ``usable`` others can be used.

        Raises
        ------
        LogError
            Examples were set aside although ``lenient`` is False, or more than half were.

        Warns
        -----
        HieropoWarning
            Examples were set aside; the warning has their number and the reasons.
        """
        self._list()
        if self._listing is not None:
            self._listing.write()
        file = None if self._file is None else str(self._file)
        rejected = Rejected(usable + self._rows, self._rows, tuple(self._reasons.values()), file=file)
        rejected.check(lenient=self._lenient, cause="Is it the right form, and is the file whole?")
        if rejected.rows:
            warn(f"{rejected.counted()} were set aside.{rejected.listed}")
        return rejected


ARROW_TYPES = {"text": pa.string(), "whole": pa.int64(), "real": pa.float64()}

_KIND_WORDS = {"text": "text", "whole": "number", "real": "number"}
_OPTIONAL = ("id", "time")


@dataclass(slots=True)
class Columns:
    """Columns of features: the kind of each (text, whole or real numbers), its texts, and its number of rows."""

    kinds: dict[str, str] = field(default_factory=dict)
    texts: dict[str, set[str]] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    _lines: dict[str, int] = field(default_factory=dict)

    def note(self, features: Features, line: int, path: object) -> None:
        """Add the features of one example."""
        for name, value in features.items():
            exact = isinstance(value, int) and -EXACT <= value <= EXACT
            kind = "text" if isinstance(value, str) else "whole" if exact else "real"
            known_kind = self.kinds.setdefault(name, kind)
            first_line = self._lines.setdefault(name, line)
            if "text" in (kind, known_kind) and kind != known_kind:
                raise SchemaError(
                    f"{path}: {name!r} is a {_KIND_WORDS[known_kind]} in line {first_line} and a {_KIND_WORDS[kind]} "
                    f"in line {line}. Rename one of them, or write both as one type."
                )
            if kind == "text":
                self.texts.setdefault(name, set()).add(value)
                self.rows[name] += 1
            elif kind == "real":
                self.kinds[name] = kind


@dataclass(slots=True)
class FirstPass:
    """The result of a first pass over a file.

    Attributes
    ----------
    rows : int
    skipped : Counter
        Number of examples that are no rows, by reason.
    shared, of_action : Columns
        Features that do not depend on the action, and those of the logged actions.
    ids : dict
        Distinct ids of actions, in order of appearance.
    lists_eligible : bool
        True where an example lists its eligible actions.
    optional : set of str
        Columns beside action, reward and pscore that some example has.
    """

    rows: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    shared: Columns = field(default_factory=Columns)
    of_action: Columns = field(default_factory=Columns)
    ids: dict[Any, None] = field(default_factory=dict)
    lists_eligible: bool = False
    optional: set[str] = field(default_factory=set)

    def action_column(self, name: str) -> str:
        """Return the column of a feature of the logged action."""
        return f"action.{name}" if name in self.shared.kinds else name

    def kinds(self) -> dict[str, str]:
        """Return the kind of every column of features."""
        return self.shared.kinds | {
            self.action_column(name): kind for name, kind in self.of_action.kinds.items()
        }

    def texts(self) -> dict[str, set[str]]:
        """Return the distinct texts of every column of text."""
        return self.shared.texts | {
            self.action_column(name): texts for name, texts in self.of_action.texts.items()
        }

    def has_rows_without(self, name: str) -> bool:
        """Return True where some row has no text in a column of text."""
        return self.rows > (
            self.shared.rows
            | {self.action_column(column): rows for column, rows in self.of_action.rows.items()}
        ).get(name, 0)

    def id_type(self, path: object) -> pa.DataType:
        """Return the Arrow type of the ids of actions.

        Raises
        ------
        SchemaError
            Some are text and some are numbers.
        """
        try:
            return pa.array(list(self.ids)).type
        except (pa.ArrowException, OverflowError):
            raise SchemaError(
                f"{path}: ids of actions are of different types, such as {abbreviate(list(self.ids), 10)}, so they "
                "cannot form one column. Write all of them as one type."
            ) from None


def first_pass(examples: Iterable[Example | Skipped], path: object) -> FirstPass:
    """Read a file once and return its columns, ids and counts."""
    result = FirstPass()
    for example in examples:
        if isinstance(example, Skipped):
            result.skipped[example.reason] += 1
            continue
        result.rows += 1
        result.shared.note(example.shared, example.line, path)
        if example.candidates:
            result.of_action.note(example.candidates[example.taken - 1].features, example.line, path)
        result.ids.setdefault(example.action)
        if example.eligible is not None:
            result.lists_eligible = True
            result.ids.update(dict.fromkeys(example.eligible))
        result.optional.update(name for name in _OPTIONAL if getattr(example, name) is not None)
        if example.sampling_weight != 1.0:
            result.optional.add("sampling_weight")
    return result


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
    """Open a contextual-bandit file of Vowpal Wabbit as a log; every pass reads the file again.

    A feature is a column ``namespace.feature`` (``feature`` where it has no namespace): a number, 0 in examples without
    it; a text, null there, where it is written ``feature=text``, or is a string in JSON. Objects in JSON nest:
    ``namespace.object.feature``. In the forms with features of actions those of the action taken are columns too, as
    ``action.feature`` where a shared feature has the same name.

    Parameters
    ----------
    path : str or Path
        Also compressed, where the name ends in .gz.
    form : "cb", "cb_adf" or "dsjson"
        Named as the options of Vowpal Wabbit that read it.
    action : str, optional
        Where actions have features: the column that names them, such as ``"Action.article"``, or ``"tag"``. Default
        their number in the example, from 1, which identifies an action only if all examples list the same actions in
        the same order.
    columns : sequence of str, optional
        Columns of features to read. Default all; of more than 1,000 some must be chosen.
    one_hot : sequence of str
        Columns of text to encode as columns ``name=text`` of 0 and 1; the first text in order is the reference, where
        all of them are 0. Where some rows lack the feature, ``name:absent`` is 1 there.
    quoted : bool
        Names were percent-encoded, as :func:`to_vw` does.
    lenient : bool
        True to set aside examples that cannot be read (no number, no JSON, no such action, ...): they are counted in
        ``rejected`` with a warning, and more than half are an error. Otherwise the first one is an error. Values that
        can be read but not used, such as a propensity of 0, are checked where the log is used.
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
        A line that is not of this form (the message has its number); no example with a label; more than half set aside.
    SchemaError
        A column that is a number in one line and a text in another, or is not there.
    InputError
        No such file or form; too many columns; ``rejects`` is of another format.
    ArtifactError
        ``rejects`` cannot be written.

    Warns
    -----
    HieropoWarning
        Examples without a label are left out, or examples were set aside; the warning has their number and the reasons.
    """
    if form not in get_args(Form):
        raise InputError(f"form={form!r} is none of {', '.join(map(repr, get_args(Form)))}.")
    read: _Read = read_dsjson
    if form != "dsjson":
        read = partial(read_cb if form == "cb" else read_adf, quoted=quoted)
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"The path {path!r} is no path. Give the path of a file as str or Path.")
    check_listing(rejects, path)
    set_aside = SetAside(lenient=lenient, file=rejects) if lenient or rejects is not None else None
    return VWLog(Path(path), read, action, columns, tuple(one_hot), set_aside)


class VWLog:
    """A file of Vowpal Wabbit as a source of rows.

    Attributes
    ----------
    left_out : dict
        Number of examples that are no rows, by reason.
    rejected : Rejected or None
        Examples that were set aside; None where the first such example is an error.
    """

    name: str
    left_out: dict[str, int]
    rejected: Rejected | None
    schema: Any

    rereadable = True

    __repr__ = source_repr

    def __init__(
        self,
        path: Path,
        read: _Read,
        action: str | None,
        columns: Sequence[str] | None,
        one_hot: tuple[str, ...],
        set_aside: SetAside | None,
    ) -> None:
        self.name = f"Vowpal Wabbit file {path}"
        self._path, self._read, self._action, self._lenient = path, read, action, set_aside is not None
        self._stamp = _stamp(path)
        self._contents = contents = first_pass(self._examples(set_aside), path)
        self.left_out = dict(contents.skipped)
        self.rejected = None if set_aside is None else set_aside.finish(contents.rows)
        if not contents.rows:
            raise LogError(
                f"The {self.name} has no example with a label{_left_out_text(self.left_out)}, so nothing can be "
                "learned from it. Is it the right form?"
            )
        self._kinds = contents.kinds()
        self._one_hot = {name: self._indicators(name) for name in one_hot}
        self.schema = self._schema(list(self._kinds) if columns is None else list(columns))
        if self.left_out:
            warn(
                f"Of the {self.name} {counted(contents.rows, 'example')} can be learned "
                f"from{_left_out_text(self.left_out)}."
            )

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self._contents.rows

    def batches(self, columns: Sequence[str], batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield all rows with these columns only."""
        if _stamp(self._path) != self._stamp:
            raise LogError(
                f"The {self.name} changed since it was opened, so its columns may differ. Open it again."
            )
        fields = [self.schema.field(name) for name in columns]
        rows: list[_Row] = []
        for example in self._examples():
            if isinstance(example, Example):
                rows.append(self._row(example))
            if len(rows) == batch_rows:
                yield self._batch(rows, fields)
                rows = []
        if rows:
            yield self._batch(rows, fields)

    def _batch(self, rows: list[_Row], fields: list[pa.Field]) -> pa.RecordBatch:
        arrays = []
        for column in fields:
            default = None if pa.types.is_string(column.type) or column.name in RESERVED else 0
            values = [row.get(column.name, default) for row in rows]
            if pa.types.is_floating(column.type):
                values = [value if value is None else float(value) for value in values]
            arrays.append(pa.array(values, column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _examples(self, set_aside: SetAside | None = None) -> Iterator[Example | Skipped]:
        """Yield the examples; one that cannot be read goes to ``set_aside`` in a lenient reading, else it is raised."""
        for example in self._read(_lines(self._path), str(self._path), ColumnNames()):
            identified = (
                read_or_error(partial(self._with_ids, example)) if isinstance(example, Example) else example
            )
            if not isinstance(identified, ExampleError):
                yield identified
            elif not self._lenient:
                raise identified
            elif set_aside is not None:
                set_aside.add(identified, str(self._path))

    def _row(self, example: Example) -> _Row:
        """Return the values of an example by column."""
        row: _Row = dict(example.shared)
        if example.candidates:
            action_features = example.candidates[example.taken - 1].features
            row |= {self._contents.action_column(name): value for name, value in action_features.items()}
        for name, indicators in self._one_hot.items():
            column = indicators.get(row.get(name))
            if column is not None:
                row[column] = 1
        columns = {"reward": example.reward, "pscore": example.pscore, "id": example.id, "time": example.time,
                 "sampling_weight": example.sampling_weight}  # fmt: skip
        eligible = list(self._contents.ids) if example.eligible is None else example.eligible
        return row | columns | {"action": example.action, "eligible": eligible}

    def _with_ids(self, example: Example) -> Example:
        """Return an example with the ids of the action taken and of the eligible actions."""
        if not example.candidates:
            return replace(example, action=example.taken, eligible=example.cb_eligible)
        location = Location(str(self._path), example.line)
        ids = [self._id(candidate, k, location) for k, candidate in enumerate(example.candidates, 1)]
        if len(set(ids)) != len(ids):
            raise ExampleError(
                location,
                f"two actions of the example have the same {self._action!r}, {abbreviate(ids, 8)}. Name a column that "
                "tells them apart.",
                str(self._action),
                "two actions of one name",
                next(action_id for action_id in ids if ids.count(action_id) > 1),
            )
        return replace(example, action=ids[example.taken - 1], eligible=ids)

    def _id(self, candidate: Candidate, number: int, location: Location) -> Any:
        if self._action is None:
            return number
        action_id = candidate.tag if self._action == "tag" else candidate.features.get(self._action)
        if action_id is None:
            available = ["tag"] * (candidate.tag is not None) + list(candidate.features)
            raise NamelessError(
                location,
                f"action {number} has no {self._action!r}, which names actions; it has "
                f"{abbreviate(available, 20) or 'nothing'}. Choose another column, action='...'.",
                self._action,
                "missing",
            )
        return action_id

    def _texts(self, name: str) -> list[str]:
        texts = self._contents.texts().get(name)
        if texts is None:
            available = abbreviate(list(self._contents.texts()), 40) or "none"
            raise SchemaError(
                f"The {self.name} has no column of text {name!r} for one_hot. Its columns of text: {available}."
            )
        return sorted(texts)

    def _indicators(self, name: str) -> dict[str | None, str]:
        """Return the indicator column of each text and of a missing one (key None); the first text is the reference."""
        indicators: dict[str | None, str] = {text: f"{name}={text}" for text in self._texts(name)[1:]}
        return indicators | {None: f"{name}:absent"} if self._contents.has_rows_without(name) else indicators

    def _schema(self, features: list[str]) -> pa.Schema:
        contents = self._contents
        missing = [name for name in features if name not in self._kinds]
        if missing:
            raise SchemaError(
                f"The {self.name} has no feature {missing[0]!r}. It has {abbreviate(list(self._kinds), 40)}."
            )
        if len(features) > _MOST_COLUMNS:
            raise InputError(
                f"The {self.name} has {len(features):,} features, such as {abbreviate(features, 5)}; a model can have "
                f"{_MOST_COLUMNS:,} columns of them at most. Choose some, columns=[...]."
            )
        kind = contents.id_type(self._path)
        types = {"action": kind, "reward": pa.float64(), "pscore": pa.float64()}
        optional_types = {
            "eligible": pa.list_(kind),
            "id": pa.string(),
            "time": pa.timestamp("us", "UTC"),
            "sampling_weight": pa.float64(),
        }
        present = {*contents.optional, *(["eligible"] if contents.lists_eligible else [])}
        types |= {name: kind for name, kind in optional_types.items() if name in present}
        types |= {name: ARROW_TYPES[self._kinds[name]] for name in features if name not in self._one_hot}
        for column in (column for indicators in self._one_hot.values() for column in indicators.values()):
            if column in types or column in self._kinds:
                raise SchemaError(
                    f"The {self.name} would have two columns {column!r}, one of them an indicator made by one_hot. "
                    "Rename the feature, or leave it out of one_hot."
                )
            types[column] = pa.int64()
        return pa.schema(list(types.items()))


def _left_out_text(skipped: dict[str, int]) -> str:
    return "".join(f", {number:,} {reason} are left out" for reason, number in skipped.items())


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{path} cannot be opened: {error.strerror}. Check the path.") from error
    if path.is_dir():
        raise InputError(f"{path} is a folder; name one file of it.")
    return status.st_size, status.st_mtime_ns


def _lines(path: Path) -> Iterable[tuple[int, str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, text in enumerate(lines, 1):
                yield number, text.rstrip("\r\n").removeprefix(_MARK)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise LogError(
            f"{path} cannot be read: {error}. Is the file cut off, or not text in UTF-8?"
        ) from error
