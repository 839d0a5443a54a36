"""Decisions as a table that joins back to the requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from hieropo._utils.text import counted
from hieropo.logs.arrow.result_table import frame_package, html_table
from hieropo.logs.bad_rows.rejects import Reason

_SHOWN = 10  # rows in a notebook


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of requests.

    Parameters
    ----------
    requests : int
    unseen : int
        Of tasks that are not in the log.
    kept : int
        Left to the incumbent by the gate of the policy.
    undecided : int
        Cannot be used.
    reasons : tuple of Reason
        Why, with the number of requests and the first of them. A request can have more than one.
    other_levels : dict
        Number of rows with a level that has no coefficient of its own, by column.
    """

    requests: int = 0
    unseen: int = 0
    kept: int = 0
    undecided: int = 0
    reasons: tuple[Reason, ...] = ()
    other_levels: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: "Counts") -> "Counts":
        """Count both."""
        by_key: dict[tuple[str, str], Reason] = {}
        for reason in (*self.reasons, *other.reasons):
            key = reason.column, reason.reason
            by_key[key] = by_key[key] + reason if key in by_key else reason
        return Counts(
            self.requests + other.requests, self.unseen + other.unseen, self.kept + other.kept,
            self.undecided + other.undecided,
            tuple(sorted(by_key.values(), key=lambda reason: (reason.first_row, reason.column))),
            {name: self.other_levels.get(name, 0) + other.other_levels.get(name, 0)
             for name in (*self.other_levels, *other.other_levels)},
        )  # fmt: skip

    def parts(self) -> list[str]:
        """Return the numbers that are not 0 in words, without that of all requests."""
        numbers = (
            (self.unseen, "of tasks that are not in the log"),
            (self.kept, "left to the incumbent"),
            (self.undecided, "without an action"),
        )
        return [f"{number:,} {words}" for number, words in numbers if number]

    def undecided_in_words(self) -> str:
        """Return a sentence with the number of requests that cannot be used and the reasons; empty where all can be."""
        if not self.undecided:
            return ""
        reasons = ", ".join(str(reason) for reason in self.reasons)
        share = self.undecided / self.requests
        return f"{self.undecided:,} of {counted(self.requests, 'request')} ({share:.2%}) have no action: {reasons}."


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Decisions:
    """Decisions for consecutive requests.

    Anything that reads the Arrow C stream takes it as a table: ``polars.DataFrame(decisions)``, ``duckdb``,
    ``pyarrow.table(decisions)``.

    Parameters
    ----------
    table : pa.Table
        A row for each of the best actions of a request, best first, with the columns

        - ``row``: number of the request's row, or of the chosen candidate's, from 0;
        - the columns of the request, or those of ``id``; one that has the name of another column here gets the prefix
          ``request_``;
        - ``action``: null where the request cannot be used, or is left to an incumbent that is not known; absent where
          candidates are rows;
        - ``rank``: from 1;
        - ``propensity``: probability with which the policy takes the action, given the request: 1 for the best and 0
          for the others, since a lower bound decides alone; :class:`SamplingPolicy` draws actions, and tells theirs;
        - ``lower_bound``, ``mean``, ``sd`` of the expected reward, in reward units;
        - ``runner_up``: the action with the next largest lower bound, or the row of that candidate; null without one;
        - ``task_known``: the task is in the log; for each level, such as ``region``, ``region_known``: the group is;
          for each context column with levels, such as ``device``, ``device_known``: its level has a coefficient of its
          own (False for one of the other levels; True for a missing value); null where the request cannot be used;
        - ``kept_incumbent``: the gate of the policy leaves the task to the incumbent;
        - ``reason``: null, or why the request cannot be used.
    counts : Counts
        Of the requests.
    """

    table: pa.Table
    counts: Counts

    @classmethod
    def concatenated(cls, parts: "Sequence[Decisions]") -> "Decisions":
        """Return the decisions of all parts, at least one, one after the other."""
        tables = [part.table for part in parts]
        return cls(
            pa.concat_tables(tables, promote_options="permissive"),
            sum((part.counts for part in parts), Counts()),
        )

    @property
    def requests(self) -> int:
        """Return the number of requests."""
        return self.counts.requests

    @property
    def unseen(self) -> int:
        """Return the number of requests of tasks that are not in the log."""
        return self.counts.unseen

    @property
    def kept(self) -> int:
        """Return the number of requests that the gate of the policy leaves to the incumbent."""
        return self.counts.kept

    @property
    def undecided(self) -> int:
        """Return the number of requests that cannot be used."""
        return self.counts.undecided

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Return the reasons of requests that cannot be used, with their numbers and the first of them."""
        return self.counts.reasons

    def __len__(self) -> int:
        """Return the number of rows of the table."""
        return int(self.table.num_rows)

    def __getitem__(self, column: str) -> Any:
        """Return a column as an Arrow array."""
        return self.table.column(column)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Export the table by the Arrow C stream."""
        return self.table.__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame; whole numbers stay whole where other rows are null.

        Raises
        ------
        InputError
            pandas is not installed.
        """
        frame_package("pandas")
        return self.table.to_pandas(integer_object_nulls=True)

    def to_polars(self) -> Any:
        """Return a polars DataFrame.

        Raises
        ------
        InputError
            polars is not installed.
        """
        return frame_package("polars").from_arrow(self.table)

    def __repr__(self) -> str:
        parts = [f"{counted(len(self), 'row')} for {counted(self.requests, 'request')}", *self.counts.parts()]
        return f"Decisions(<{', '.join(parts)}>, columns={self.table.column_names})"

    def _repr_html_(self) -> str:
        rows = [[_shown(value) for value in row.values()] for row in self.table.slice(0, _SHOWN).to_pylist()]
        caption = repr(self).partition(", columns=")[0].removeprefix("Decisions(<").removesuffix(">")
        return html_table(self.table.column_names, rows, caption)


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
