"""The number of processors that a process may use."""

import pytest

from hieropo._utils.threads import in_threads, processors


def test_the_environment_bounds_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HIEROPO_THREADS", raising=False)
    available = processors()
    for text, expected in (("1", 1), ("0", 1), ("9999", available), ("", available), ("some", available)):
        monkeypatch.setenv("HIEROPO_THREADS", text)
        assert processors() == expected


def test_results_are_in_the_order_of_the_pieces() -> None:
    assert in_threads(lambda piece: 2 * piece, [3, 1, 2], 2) == [6, 2, 4]
