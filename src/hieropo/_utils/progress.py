"""The progress line of long work: in terminals and notebooks, with the time left; silent elsewhere."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from threading import Event, Thread
from typing import Any, ParamSpec, Self, TypeVar

PATIENCE = 2.0  # seconds before the line appears
PAUSE = 0.2  # seconds between two updates
TICK = 1.0  # seconds between two updates during one long step
_LONG = 2.0  # seconds from which on a step shows its time
WIPE = "\r\x1b[K"

P = ParamSpec("P")
R = TypeVar("R")


class Line:
    """The progress line on standard error; a line within another one writes to that one.

    It shows the last text after ``PATIENCE`` seconds, with the time left where the share of the work is known, else
    with the time that this step has taken.
    """

    _active: "Line | None" = None  # of the whole process

    def __init__(self) -> None:
        self._wipe = _wipe()
        self._begun = time.monotonic()
        self._last = 0.0
        self._text = ""
        self._since = self._begun  # when this text was said first
        self._stage = (self._begun, 0.0)  # time and share when this stage began
        self._share = 1.0
        self._left: float | None = None
        self._width = 0
        self._counting = False
        self._ended = Event()

    @property
    def visible(self) -> bool:
        """Return True where a person can see the line."""
        return self._wipe is not None

    def say(self, text: str, *, now: bool = False, share: float | None = None) -> None:
        """Replace the text; ``share`` of the stage is done; ``now`` does not wait for the pause between updates."""
        active = Line._active
        if active is not None and active is not self:
            active.say(text, now=now, share=share)
            return
        moment = time.monotonic()
        if text != self._text:
            self._text, self._since = text, moment
        self._left = self._time_left(moment, share)
        if moment - self._begun > PATIENCE and (now or moment - self._last > PAUSE):
            self._write()

    def _time_left(self, moment: float, share: float | None) -> float | None:
        if share is None:
            self._share = 1.0
            return None
        if share < self._share:
            self._stage = (moment, share)
        self._share = share
        begun, first = self._stage
        if moment - begun < TICK or share <= first:
            return None
        return (moment - begun) * (1.0 - share) / (share - first)

    def _write(self) -> None:
        if self._wipe is None or not self._text:
            return
        self._last = time.monotonic()
        text = f"{self._text}{_timing(self._left, self._last - self._since)}"
        blank = " " * max(self._width - len(text), 0) if self._wipe == "\r" else ""
        self._width = len(text)
        self._put(f"{self._wipe}{text}{blank}")

    @staticmethod
    def _put(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    def _tick(self) -> None:
        wait = PATIENCE
        while not self._ended.wait(wait):
            wait = TICK
            if time.monotonic() - self._last >= TICK:
                self._write()

    def __enter__(self) -> Self:
        if Line._active is None:
            Line._active = self
            if self.visible:
                self._thread = Thread(target=self._tick, daemon=True)
                self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if Line._active is not self:
            return
        Line._active = None
        self._ended.set()
        if self._width:
            self._put(WIPE if self._wipe == WIPE else f"\r{' ' * self._width}\r")

    def counted(self, items: Iterable[Any], noun: str, total: int) -> Iterator[Any]:
        """Yield the items and show their number and the time left; items within an item are not counted."""
        if self._counting:
            yield from items
            return
        self._counting = True
        try:
            for number, item in enumerate(items, start=1):
                self.say(f"{noun} {number} of {total}", now=True, share=(number - 1) / max(total, 1))
                yield item
        finally:
            self._counting = False


def _wipe() -> str | None:
    """Return the text that clears the line; None where standard error is neither a terminal nor a notebook."""
    if sys.stderr is None:
        return None
    if type(sys.stderr).__module__.startswith("ipykernel"):
        return "\r"
    return WIPE if sys.stderr.isatty() else None


def _timing(left: float | None, taken: float) -> str:
    if left is not None:
        return f", {duration(left)} left"
    return f" {taken:.0f} s" if taken >= _LONG else ""


def duration(seconds: float) -> str:
    """Return a time as text, such as ``40 s``, ``3 min`` or ``2.5 h``."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def active_line() -> Line | None:
    """Return the line of the work in progress; None where nobody can see one."""
    line = Line._active
    return line if line is not None and line.visible else None


def say(text: str) -> None:
    """Show a step of the work in progress, where a person can see it."""
    line = active_line()
    if line is not None:
        line.say(text, now=True)


def steps(items: Iterable[R], noun: str, total: int) -> Iterable[R]:
    """Return the items; show their number and the time left, where a person can see it."""
    line = active_line()
    return items if line is None else line.counted(items, noun, total)


def shows_progress(work: Callable[P, R]) -> Callable[P, R]:
    """Show the progress line while a function runs, where a person can see it."""

    @wraps(work)
    def shown(*args: P.args, **kwargs: P.kwargs) -> R:
        with Line():
            return work(*args, **kwargs)

    return shown
