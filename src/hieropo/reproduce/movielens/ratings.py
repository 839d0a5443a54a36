"""MovieLens 1M from disk: ``ratings.dat``, the archive of GroupLens, or a table with the same columns."""

import hashlib
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hieropo._utils.arrays import Codes
from hieropo.errors import LogError, SchemaError
from hieropo.logs.opening import open_log
from hieropo.reproduce.settings import Counts

COLUMNS = ("user_id", "movie_id", "rating")
_ROWS = re.compile(rb"(?:\d+::\d+::\d+::\d+\r?\n)*(?:\d+::\d+::\d+::\d+)?")


@dataclass(frozen=True, eq=False)
class Ratings:
    """The ratings, sorted by user and movie.

    Parameters
    ----------
    user, movie : (n,) int arrays
        Positions among the distinct ids.
    rating : (n,) array
        1 to 5 stars.
    users, movies : (m,), (p,) int arrays
        The ids.
    """

    user: Codes
    movie: Codes
    rating: NDArray[np.float64]
    users: Codes
    movies: Codes

    @property
    def checksum(self) -> str:
        """Return the checksum of all triples, which does not depend on the file format."""
        triples = np.stack([self.users[self.user], self.movies[self.movie], self.rating.astype(np.int64)])
        return hashlib.sha256(np.ascontiguousarray(triples, dtype="<i8").tobytes()).hexdigest()


def read_ratings(path: str | Path, counts: Counts) -> Ratings:
    """Read ratings and check that all of them are there.

    Parameters
    ----------
    path : str or Path
        A ``.dat`` file with ``user::movie::rating::time`` in each row, a folder or a ``.zip`` that holds one, or
        anything that `hieropo fit` takes, with the columns user_id, movie_id and rating.
    counts : Counts
        The expected numbers.

    Raises
    ------
    InputError, SchemaError
        There is no such file; a column is missing or holds no whole numbers.
    LogError
        A row cannot be read, or ratings are missing; says how many, and of what.
    """
    file = Path(path)
    if (file / "ratings.dat").is_file():
        file = file / "ratings.dat"
    kind = file.suffix.lower()
    if kind in (".dat", ".zip") and file.is_file():
        content = file.read_bytes() if kind == ".dat" else _from_archive(file)
        user, movie, rating = _from_text(content, str(path))
    else:
        user, movie, rating = _from_table(path)
    _refuse_repeated(user, movie, str(path))
    ratings = _coded(user, movie, rating)
    _check(ratings, counts, str(path))
    return ratings


def _from_archive(path: Path) -> bytes:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.rpartition("/")[2] == "ratings.dat"]
            if names:
                return archive.read(names[0])
            first_names = ", ".join(archive.namelist()[:5])
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise LogError(
            f"{path} is no whole zip archive: {error}. Was its download cut short? Get ml-1m.zip again."
        ) from error
    raise LogError(
        f"{path} holds no ratings.dat, but {first_names}. The archive of MovieLens 1M, ml-1m.zip, is needed."
    )


def _from_text(content: bytes, name: str) -> tuple[Codes, Codes, Codes]:
    match = _ROWS.match(content)
    end = match.end() if match else 0
    if end != len(content):
        line = content.count(b"\n", 0, end) + 1
        row = content.splitlines()[line - 1][:60].decode("utf-8", "replace")
        raise LogError(
            f"Row {line} of {name} is {row!r}; user::movie::rating::time is needed. Is it the ratings.dat of MovieLens "
            "1M, and whole?"
        )
    numbers = np.array(content.replace(b"::", b" ").split(), dtype=np.int64).reshape(-1, 4)
    return numbers[:, 0], numbers[:, 1], numbers[:, 2]


def _from_table(path: str | Path) -> tuple[Codes, Codes, Codes]:
    source = open_log(path)
    missing = [name for name in COLUMNS if name not in source.schema.names]
    if missing:
        raise SchemaError(
            f"{path} has no column {missing[0]!r}; it has {', '.join(source.schema.names)}. user_id, movie_id and "
            "rating are needed."
        )
    parts: dict[str, list[Codes]] = {name: [] for name in COLUMNS}
    first = 0
    for batch in source.batches(COLUMNS):
        for name in COLUMNS:
            parts[name].append(_whole_numbers(batch.column(name), name, first))
        first += batch.num_rows
    user, movie, rating = (np.concatenate(parts[name]) for name in COLUMNS)
    return user, movie, rating


def _whole_numbers(column: Any, name: str, first: int) -> Codes:
    values = np.asarray(column.to_numpy(zero_copy_only=False))
    if values.dtype.kind in "iu" and not column.null_count:
        return values.astype(np.int64)
    if values.dtype.kind == "f":
        bad = ~(np.isfinite(values) & (values == np.round(values)))
        if not bad.any():
            return values.astype(np.int64)
        row = int(bad.argmax())
        raise LogError(f"{name} of row {first + row} is {values[row]}; a whole number is needed in each row.")
    raise SchemaError(f"{name} is of type {column.type}; whole numbers are needed.")


def _coded(user: Codes, movie: Codes, rating: Codes) -> Ratings:
    order = np.lexsort((movie, user))
    users, i = np.unique(user[order], return_inverse=True)
    movies, j = np.unique(movie[order], return_inverse=True)
    return Ratings(i.astype(np.int64), j.astype(np.int64), rating[order].astype(np.float64), users, movies)


def _refuse_repeated(user: Codes, movie: Codes, name: str) -> None:
    order = np.lexsort((movie, user))
    repeated = (np.diff(user[order]) == 0) & (np.diff(movie[order]) == 0)
    if repeated.any():
        row = order[int(repeated.argmax()) + 1]
        raise LogError(
            f"{name} has user {user[row]} and movie {movie[row]} twice (row {row}, counted from 0); each is needed "
            "once. Were files put together?"
        )


def _check(ratings: Ratings, counts: Counts, name: str) -> None:
    stars = [int((ratings.rating == k).sum()) for k in range(1, len(counts.by_rating) + 1)]
    rows = [
        ("ratings", ratings.rating.size, counts.ratings),
        ("users", ratings.users.size, counts.users),
        ("rated movies", ratings.movies.size, counts.movies),
        *(
            (f"ratings of {k} stars", n, known)
            for k, (n, known) in enumerate(zip(stars, counts.by_rating, strict=True), 1)
        ),
    ]
    differences = [f"{_gap(known - n)} {what} ({n:,} of {known:,})" for what, n, known in rows if n != known]
    if not differences:
        return
    last = f" The last user is {ratings.users[-1]}." if ratings.users.size else ""
    raise LogError(
        f"{name} is not all of MovieLens 1M: {'; '.join(differences)}.{last} Was the file cut short, or filtered? Get "
        "ml-1m.zip again. (Other data need their own [movielens.counts] in the settings.)"
    )


def _gap(missing: int) -> str:
    return f"missing {missing:,}" if missing > 0 else f"{-missing:,} too many"
