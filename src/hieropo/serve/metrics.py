"""Metrics in the format of Prometheus; no label holds an id."""

from bisect import bisect_left
from collections import Counter as Count
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from hieropo.serve.messages import Mode
from hieropo.serve.watching import Watch

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class RequestSeconds(Collector):
    """Times of requests by route, counted in lists of one thread: prometheus_client's locks cost more than a count."""

    def __init__(self) -> None:
        self._routes: dict[str, tuple[list[int], list[float]]] = {}

    def observe(self, route: str, seconds: float) -> None:
        """Count the time of a request."""
        entry = self._routes.get(route)
        if entry is None:
            entry = self._routes[route] = [0] * (len(_SECONDS) + 1), [0.0]
        counts, total = entry
        counts[bisect_left(_SECONDS, seconds)] += 1
        total[0] += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Return the histogram."""
        family = HistogramMetricFamily("hieropo_request_seconds", "Time of a request", labels=["route"])
        names = [*map(str, _SECONDS), "+Inf"]
        for route, (counts, total) in sorted(self._routes.items()):
            family.add_metric([route], list(zip(names, accumulate(counts), strict=True)), total[0])
        yield family


class Metrics:
    """The metrics of one service, in a registry of its own."""

    registry: CollectorRegistry

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"hieropo_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"hieropo_{name}", text, registry=registry)

        def labelled(name: str, text: str, label: str) -> Gauge:
            return Gauge(f"hieropo_{name}", text, [label], registry=registry)

        self._decisions = counter("decisions", "Recorded decisions", "mode")
        self._replayed = counter("replayed_decisions", "Answers that were repeated for a known id")
        self._unknown = counter("unknown_tasks", "Decisions of tasks that are not in the log of the policy")
        self._unseen = counter(
            "unseen_actions", "Decisions with an eligible action that the policy does not know"
        )
        self._levels = counter(
            "unknown_levels", "Decisions with a group or a level that the policy does not know"
        )
        self._unrecorded = counter(
            "unrecorded_fallbacks", "Incumbent's actions answered while the record was full"
        )
        self._rewards = counter("rewards", "Rewards", "status")
        self._refused = counter("refused_requests", "Requests that were refused", "reason")
        self._seconds = RequestSeconds()
        registry.register(self._seconds)
        self._waiting = gauge("waiting_operations", "Operations that wait for the disk")
        self._version = gauge("active_version", "Version of the policy that decides")
        self._alarms = gauge("reward_alarms", "Actions whose rewards are not as predicted")
        self._evidence = gauge(
            "reward_evidence", "Largest evidence against the predictions, as a share of its limit"
        )
        self._ess = gauge("effective_rows", "Effective sample size of the active version's rows")
        self._shift = gauge(
            "tasks_shift", "Total variation distance between the older and newer mixes of tasks"
        )
        self._shares = labelled("mode_share", "Share of the active version's rows by mode", "mode")
        self._unseen_share = labelled(
            "unseen_share", "Share of rows with something that the policy does not know", "kind"
        )
        self._contexts = labelled(
            "context_shift",
            "Shift of a context between the older and newer rows, in its sds or as a distance",
            "column",
        )
        self._left_out = labelled("left_out_rows", "Decisions that a refresh does not learn from", "reason")
        self._by_mode = {
            mode: self._decisions.labels(mode) for mode in ("policy", "explore", "gate", "shadow", "fallback")
        }
        self._by_status = {
            status: self._rewards.labels(status) for status in ("recorded", "duplicate", "late", "unknown")
        }

    def decided(self, modes: Iterable[Mode], unseen: Sequence[Sequence[str]], replayed: int) -> None:
        """Count recorded decisions by their modes, those with unseen tasks or actions, and repeated answers."""
        for mode, count in Count(modes).items():
            self._by_mode[mode].inc(count)
        if unseen:
            self._levels.inc(sum(any(kind.startswith("level:") for kind in kinds) for kinds in unseen))
            self._unknown.inc(sum("task" in kinds for kinds in unseen))
            self._unseen.inc(sum("action" in kinds for kinds in unseen))
        if replayed:
            self._replayed.inc(replayed)

    def rewarded(self, statuses: Sequence[str]) -> None:
        """Count rewards by their status."""
        for status, count in Count(statuses).items():
            self._by_status[status].inc(count)

    def refused(self, reason: str, count: int = 1) -> None:
        """Count requests that were refused."""
        self._refused.labels(reason).inc(count)

    def unrecorded(self, count: int) -> None:
        """Count decisions that were answered with the incumbent's action and not recorded."""
        self._unrecorded.inc(count)

    def took(self, route: str, seconds: float) -> None:
        """Count the time of a request."""
        self._seconds.observe(route, seconds)

    def watching(self, watched: Watch) -> None:
        """Set the gauges of the watch."""
        self._alarms.set(len(watched.alarms))
        self._evidence.set(max((one.evidence for one in watched.actions), default=0.0) / watched.limit)
        self._ess.set(watched.ess)
        self._shift.set(watched.tasks_shift)
        for gauge, shares in (
            (self._shares, {mode: watched.mode_share(mode) for mode in self._by_mode}),
            (self._unseen_share, watched.unseen_shares), (self._contexts, watched.context_shifts),
            (self._left_out, watched.left_out),
        ):  # fmt: skip
            gauge.clear()
            for label, value in shares.items():
                gauge.labels(label).set(value)

    def text(self, *, waiting: int, version: int) -> bytes:
        """Return the metrics as text."""
        self._waiting.set(waiting)
        self._version.set(version)
        return bytes(generate_latest(self.registry))
