"""Linear algebra computes on one thread inside hieropo, and on as many as before outside."""

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pytest
import scipy.linalg  # noqa: F401  loads a BLAS of its own
import threadpoolctl
from click.testing import CliRunner

import hieropo
from hieropo._utils.blas_threads import _OneBlasThread, one_blas_thread
from hieropo.cli import main
from hieropo.storage.load import verify_policy

LIBRARIES = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
pytestmark = pytest.mark.skipif(not LIBRARIES, reason="threadpoolctl knows no BLAS of this process")
COLUMNS = {"task": "store", "action": "offer", "reward": "profit"}


class StopError(Exception):
    """Ends a call where the number of threads was read."""


def threads() -> set[int]:
    return {library.num_threads for library in LIBRARIES}


def set_threads(number: int) -> None:
    for library in LIBRARIES:
        library.set_num_threads(number)
        getattr(library, "clear_controlling_thread", lambda: None)()


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Two threads, on machines of one processor and beside OPENBLAS_NUM_THREADS=1 too."""
    before = [library.num_threads for library in LIBRARIES]
    set_threads(2)
    assert threads() == {2}
    yield
    for library, number in zip(LIBRARIES, before, strict=True):
        library.set_num_threads(number)
        getattr(library, "clear_controlling_thread", lambda: None)()


@pytest.fixture(scope="module")
def log() -> pa.Table:
    rng = np.random.default_rng(0)
    n = 400
    store, offer, age = rng.integers(0, 8, n), rng.integers(0, 3, n), rng.standard_normal(n)
    profit = 0.3 * offer * age + 0.1 * store + rng.standard_normal(n)
    return pa.table({"store": store, "offer": offer, "age": age, "profit": profit})


@pytest.fixture(scope="module")
def learner(log: pa.Table) -> hieropo.HierOPO:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hieropo.HieropoWarning)
        return hieropo.HierOPO().fit(log, context=["age"], **COLUMNS)


def test_one_thread_inside_and_as_many_as_before_outside() -> None:
    with one_blas_thread:
        assert threads() == {1}
        with one_blas_thread:
            assert threads() == {1}
        assert threads() == {1}
    assert threads() == {2}


def test_threads_return_after_an_error() -> None:
    with pytest.raises(StopError), one_blas_thread, one_blas_thread:
        raise StopError
    assert threads() == {2}


def test_a_decorated_function_is_itself() -> None:
    @one_blas_thread
    def found(number: int, *, more: int = 1) -> tuple[int, set[int]]:
        """Say how many."""
        return number + more, threads()

    assert found(2, more=3) == (5, {1})
    assert (found.__name__, found.__doc__) == ("found", "Say how many.")
    assert threads() == {2}


def test_loops_of_numba_keep_their_threads() -> None:
    before = numba.get_num_threads()
    with one_blas_thread:
        assert numba.get_num_threads() == before


def run_in_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def inside() -> set[int]:
    with one_blas_thread:
        return threads()


def test_any_python_thread_can_be_first() -> None:
    for _ in range(2):
        assert inside() == {1}
        assert run_in_thread(inside) == {1}
        assert threads() == {2}


def test_the_limit_holds_until_the_last_python_thread_leaves() -> None:
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with one_blas_thread:
            entered.set()
            leave.wait()
        left.set()

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    with one_blas_thread:
        leave.set()
        left.wait()
        thread.join()
        assert threads() == {1}
    assert threads() == {2}  # by another thread than the one that set the limit


def test_many_python_threads_leave_no_limit_behind() -> None:
    seen: list[set[int]] = []

    def work() -> None:
        for _ in range(50):
            with one_blas_thread:
                seen.append(threads())

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert seen == [{1}] * 400
    assert threads() == {2}


def test_a_limit_of_the_caller_returns() -> None:
    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        assert inside() == {1}
        assert threads() == {3}
    assert threads() == {2}


def test_a_limit_that_another_python_thread_holds_does_not_stay() -> None:
    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        run_in_thread(inside)
        assert threads() == {3}
    assert threads() == {2}


@pytest.mark.parametrize("api", ["mkl", "openblas"])
def test_libraries_with_a_limit_for_each_python_thread(api: str) -> None:
    numbers = threading.local()

    class Library(SimpleNamespace):
        internal_api, threading_layer, filepath = api, "openmp", "library"

        @property
        def num_threads(self) -> int:
            return getattr(numbers, "now", 2)

        def set_num_threads(self, number: int) -> None:
            numbers.now = number

    context, library = _OneBlasThread(), Library()
    context._loaded = lambda: (library,)
    entered, leave = threading.Event(), threading.Event()
    seen: list[int] = []

    def first() -> None:
        with context:
            seen.append(library.num_threads)
            entered.set()
            leave.wait()
        seen.append(library.num_threads)

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    with context:
        seen.append(library.num_threads)
    assert library.num_threads == 2
    leave.set()
    thread.join()
    assert seen == [1, 1, 2]


@pytest.mark.slow
def test_the_library_of_scipy_is_loaded_before_the_limit_is_set() -> None:
    program = """
import numpy, threadpoolctl
from hieropo._utils.blas_threads import one_blas_thread

with one_blas_thread:
    import scipy.linalg, scipy.optimize
    libraries = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    assert {library.num_threads for library in libraries} == {1}
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_library_that_is_loaded_inside_is_limited_by_the_next_call() -> None:
    class Library:
        internal_api, threading_layer = "openblas", "pthreads"

        def __init__(self, name: str) -> None:
            self.filepath, self.num_threads = name, 2

        def set_num_threads(self, number: int) -> None:
            self.num_threads = number

    context, first, later = _OneBlasThread(), Library("first"), Library("later")
    loaded: tuple[Library, ...] = (first,)
    context._loaded = lambda: loaded  # type: ignore[method-assign]
    with context:
        context._libraries = loaded
        assert (first.num_threads, later.num_threads) == (1, 2)
        loaded = first, later
        with context:
            assert (first.num_threads, later.num_threads) == (1, 1)
    assert (first.num_threads, later.num_threads) == (2, 2)


CALLS: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    "fit": ("hieropo.learners.hieropo.opened_log", lambda _, log: hieropo.HierOPO().fit(log, **COLUMNS)),
    "partial_fit": (
        "hieropo.learners.hieropo.opened_requests",
        lambda learner, log: learner.partial_fit(log),
    ),
    "predict": ("hieropo.learners.fitted.chosen_actions", lambda learner, log: learner.predict(log)),
    "decide": ("hieropo.learners.fitted.decide", lambda learner, log: learner.decide(log)),
    "choose": ("hieropo.learners.fitted.choose", lambda learner, _: learner.choose({})),
    "summary": ("hieropo.learners.fitted.crossed_population_summary", lambda learner, _: learner.summary()),
    "evaluate": ("hieropo.evaluation.entry.evaluated", lambda learner, log: learner.evaluate(log)),
    "save": ("hieropo.learners.fitted.save_policy", lambda learner, _: learner.save("nowhere")),
    "load_learner": ("hieropo.learners.loading.load_policy", lambda *_: hieropo.load_learner("nowhere")),
    "LogMoments.of": (
        "hieropo.passes.log_moments.opened_log",
        lambda _, log: hieropo.LogMoments.of(log, **COLUMNS),
    ),
    "verify_policy": (
        "hieropo.storage.load._open",
        lambda *_: verify_policy("nowhere"),
    ),
    "estimate": (
        "hieropo.estimation.reml.check_choices",
        lambda *_: hieropo.estimate(None),
    ),
    "estimate_levels": (
        "hieropo.estimation.tree_estimation.check_choices",
        lambda *_: hieropo.estimate_levels(None),
    ),
    "examine": (
        "hieropo.doctor.examine.examined",
        lambda _, log: hieropo.examine(log, **COLUMNS),
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_public_calls_are_limited(
    call: str, log: pa.Table, learner: hieropo.HierOPO, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[int]] = []

    def stop(*_: Any, **__: Any) -> None:
        seen.append(threads())
        raise StopError

    place, work = CALLS[call]
    module, _, name = place.rpartition(".")
    monkeypatch.setattr(import_module(module), name, stop)
    with pytest.raises(StopError):
        work(learner, log)
    assert seen == [{1}]
    assert threads() == {2}


def test_commands_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[int]] = []
    monkeypatch.setattr(main.commands["inspect"], "callback", lambda **_: seen.append(threads()))
    done = CliRunner().invoke(main, ["inspect", "policy"], catch_exceptions=False)
    assert done.exit_code == 0
    assert seen == [{1}]
    assert threads() == {2}
