"""Examples of a Vowpal Wabbit file that cannot be read: set aside, counted by reason, and listed in a file."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from hieropo.adapters.vw_example import ExampleError
from hieropo.errors import warn
from hieropo.sources.listing import Listing
from hieropo.sources.rejected import Reason, Rejected

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
        before = self._reasons.get(key, Reason(*key, 0, error.line, error.value, unit="line"))
        self._reasons[key] = replace(before, rows=before.rows + 1)
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
