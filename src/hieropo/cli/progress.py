"""A line on standard error that says how far a long command is; only on a terminal, only after a second."""

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import click

PATIENCE = 1.0  # seconds before the line appears
PAUSE = 0.2  # seconds between two updates
WIPE = "\r\x1b[K"


class Line:
    """The progress line; says nothing where standard error is no terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._last = 0.0
        self._text = ""
        self._written = False
        self._timer = threading.Timer(PATIENCE, self._write)  # shows what was said last, while work goes on
        self._timer.daemon = True

    def say(self, text: str, *, now: bool = False) -> None:
        """Replace the line, unless it is too early; ``now`` does not wait for a pause."""
        self._text = text
        moment = time.monotonic()
        if moment - self._begun > PATIENCE and (now or moment - self._last > PAUSE):
            self._write()

    def _write(self) -> None:
        if self._terminal and self._text:
            self._last, self._written = time.monotonic(), True
            click.echo(f"{WIPE}{self._text}", nl=False, err=True)

    def __enter__(self) -> "Line":
        if self._terminal:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._written:
            click.echo(WIPE, nl=False, err=True)

    def counted(self, items: Iterable[Any], noun: str, total: int) -> Iterator[Any]:
        """Pass items on and count them."""
        for number, item in enumerate(items, start=1):
            self.say(f"{noun} {number} of {total}", now=True)
            yield item
