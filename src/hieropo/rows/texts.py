"""Distinct texts as bytes, numbered in order of appearance."""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hieropo._kernels import backend
from hieropo._utils.arrays import Codes, normalised

Bytes = NDArray[np.uint8]

_BEYOND_ASCII = 128


class Text(NamedTuple):
    """Texts in UTF-8 in one array: text i is ``data[ends[i] : ends[i + 1]]``."""

    data: Bytes
    ends: Codes

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Encode texts.

        Raises
        ------
        UnicodeEncodeError
            A text cannot be written in UTF-8: it has half of a surrogate pair.
        """
        parts = [text.encode() for text in texts]
        ends = np.zeros(len(parts) + 1, dtype=np.int64)
        np.cumsum([len(part) for part in parts], out=ends[1:])
        return cls(np.frombuffer(b"".join(parts), dtype=np.uint8), ends)

    def __len__(self) -> int:
        return self.ends.size - 1

    @property
    def is_ascii_in_order(self) -> bool:
        """Return whether the offsets ascend within the data and no byte is beyond 127."""
        first, last = int(self.ends[0]), int(self.ends[-1])
        in_order = first >= 0 and last <= self.data.size and bool((self.ends[1:] >= self.ends[:-1]).all())
        return in_order and (first == last or int(self.data[first:last].max()) < _BEYOND_ASCII)

    def begins_with(self, other: "Text") -> bool:
        """Return whether the first texts are those of the other."""
        k = len(other)
        if len(self) < k or not np.array_equal(self.ends[: k + 1] - self.ends[0], other.ends - other.ends[0]):
            return False
        first, second = (text.data[text.ends[0] : text.ends[k]] for text in (self, other))
        return np.array_equal(first, second)

    def take(self, which: Codes) -> list[str]:
        """Return the texts at these positions, decoded."""
        begin, end = self.ends[which].tolist(), self.ends[which + 1].tolist()
        return [self.data[start:stop].tobytes().decode() for start, stop in zip(begin, end, strict=True)]

    def strings(self) -> list[str]:
        """Return all texts, decoded."""
        first, last = int(self.ends[0]), int(self.ends[-1])
        data, ends = self.data[first:last].tobytes(), (self.ends - first).tolist()
        pairs = pairwise(ends)
        if data.isascii():
            decoded = data.decode("ascii")
            return [decoded[start:stop] for start, stop in pairs]
        return [data[start:stop].decode() for start, stop in pairs]


class Texts:
    """A growing set of distinct texts; a new text gets the next row."""

    def __init__(self) -> None:
        self._slots = np.zeros(1024, dtype=np.uint64)
        self._data: Bytes = np.zeros(0, dtype=np.uint8)
        self._ends: Codes = np.zeros(1, dtype=np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def rows(self, texts: Text, which: Codes | None = None) -> Codes:
        """Return the row of each text, or of those at the positions ``which`` (k,); new texts get the next rows."""
        which = np.arange(len(texts)) if which is None else which
        size = int(texts.ends[-1] - texts.ends[0])
        self._reserve(self._count + which.size, int(self._ends[self._count]) + size)
        out = np.empty(which.size, dtype=np.int64)
        self._count = backend.ids(self._count + which.size).find_texts(
            normalised(texts.data), normalised(texts.ends), normalised(which), self._slots, self._data, self._ends,
            self._count, out,
        )  # fmt: skip
        return out

    def _reserve(self, count: int, size: int) -> None:
        if size > self._data.size:
            self._data = np.concatenate(
                [self._data, np.zeros(max(size, 2 * self._data.size) - self._data.size, dtype=np.uint8)]
            )
        if count >= self._ends.size:
            extension = max(count + 1, 2 * self._ends.size) - self._ends.size
            self._ends = np.concatenate([self._ends, np.zeros(extension, dtype=np.int64)])
        if 2 * count > self._slots.size:
            slots = np.zeros(1 << (2 * count - 1).bit_length(), dtype=np.uint64)
            backend.ids(self._count).spread_slots(self._slots, slots)
            self._slots = slots

    def all_texts(self) -> Text:
        """Return all texts in the order of their rows."""
        return Text(self._data, self._ends[: self._count + 1])
