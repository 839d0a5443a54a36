"""Decisions of requests that restrict nothing: drawn from arrays, many at once, and answered from prepared bytes.

All actions of the policy are eligible in them, and nothing is left to the incumbent. Draws, with the same numbers of
the generator, and answers are those of :func:`deciding.settle`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from hieropo._utils.arrays import Array, Codes
from hieropo.policies.gating import GatedPolicy
from hieropo.serve.deciding import Engine, Scores, best_shares
from hieropo.serve.messages import DecideRequest, Decision, Mode, Probability
from hieropo.serve.settings import Settings

_encode = msgspec.json.Encoder().encode
_HEAD, _TAIL = b'{"decision_id":"', b'"}'
_MIDDLES = 1 << 26  # bytes of prepared answers that are kept; with K actions they would be of order K^3


class PlainDecision(NamedTuple):
    """The encoded answer to a request, and the posterior of the reward of its action."""

    answer: bytes
    mode: Mode
    mean: float
    sd: float


class PlainDecider:
    """Decides plain requests with one version of the policy.

    Parameters
    ----------
    engine : Engine
    settings : Settings
    """

    engine: Engine
    eligible: msgspec.Raw

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine, self._settings = engine, settings
        self.eligible = msgspec.Raw(_encode(engine.actions))
        self._middles: dict[tuple[int, int, bool], bytes] = {}
        self._size = 0  # of these, in bytes
        n_actions = len(engine.actions)
        floor = 0.0 if settings.exploration == "none" else settings.floor
        self._share, self._rest = floor / n_actions, 1.0 - floor
        names = [_encode(action) for action in engine.actions]
        self._done = [b'","action":%b,"propensity":' % name for name in names]
        self._between = [b'},{"action":%b,"probability":' % name for name in names]
        self._between[0] = b',"probabilities":[' + self._between[0][2:]
        self._by_best = self._share + self._rest * np.eye(n_actions)  # probabilities, given the best action

    def rows(self, requests: Sequence[DecideRequest], scores: Scores) -> list[int]:
        """Return the positions of the plain requests."""
        settings = self._settings
        if settings.shadow or (settings.control and isinstance(self.engine.policy, GatedPolicy)):
            return []
        kept, refused, control = scores.kept, scores.refused, settings.control > 0
        other_level = np.any(list(scores.unseen.values()), axis=0).tolist() if scores.unseen else None
        return [
            row
            for row, (request, best) in enumerate(zip(requests, scores.best, strict=True))
            if request.eligible is None
            and not request.exclude
            and best >= 0
            and not (control and request.incumbent is not None)
            and not (kept is not None and kept[row])
            and not (other_level is not None and other_level[row])
            and row not in refused
        ]

    def decide(
        self, scores: Scores, rows: Sequence[int], ids: Sequence[str], deadline: str, rng: np.random.Generator
    ) -> list[PlainDecision]:
        """Return decisions of the plain requests in these rows.

        Parameters
        ----------
        scores : Scores
        rows : sequence of int
        ids : sequence of str
            Of all requests that were scored; they need no escapes in JSON.
        deadline : str
            Likewise.
        rng : Generator
        """
        places = np.array(rows, dtype=np.int64)
        sampling = self._settings.exploration == "sampling"
        best = np.array(scores.best, dtype=np.int64)[places]
        if sampling:
            probabilities = self._share + self._rest * best_shares(scores.mean[places], scores.sd[places])
        else:
            probabilities = self._by_best[best]
        codes = drawn(probabilities, rng) if self._settings.explores else best
        means = scores.mean[places, codes].tolist()
        sds = np.hypot(scores.sd[places, codes], self.engine.noise_sd).tolist()
        if sampling:
            answered = self._sampled(probabilities, codes.tolist(), [ids[row] for row in rows], deadline,
                                     [scores.known[row] for row in rows])  # fmt: skip
        else:
            answered = self._prepared(scores, rows, codes.tolist(), ids, deadline)
        return [
            PlainDecision(answer, mode, mean, sd)
            for (answer, mode), mean, sd in zip(answered, means, sds, strict=True)
        ]

    def _prepared(
        self, scores: Scores, rows: Sequence[int], codes: list[int], ids: Sequence[str], deadline: str
    ) -> list[tuple[bytes, Mode]]:
        """Return answers that differ from others with the same actions in id and deadline alone."""
        tail = deadline.encode() + _TAIL
        mode: Mode = "policy" if self._positive == 1 else "explore"
        answers = []
        for row, code in zip(rows, codes, strict=True):
            key = scores.best[row], code, scores.known[row]
            middle = self._middles.get(key) or self._middle(*key)
            answers.append((b"".join((_HEAD, ids[row].encode(), middle, tail)), mode))
        return answers

    @property
    def _positive(self) -> int:
        return int(np.count_nonzero(self._by_best[0]))

    def _middle(self, best: int, code: int, known: bool) -> bytes:  # noqa: FBT001
        """Prepare the bytes of an answer between id and deadline."""
        decision, _ = self._decision("", self._by_best[best].tolist(), code, "", known=known)
        middle = _encode(decision)[len(_HEAD) : -len(_TAIL)]
        if self._size + len(middle) > _MIDDLES:
            self._middles.clear()
            self._size = 0
        self._middles[best, code, known] = middle
        self._size += len(middle)
        return middle

    def _sampled(
        self, probabilities: Array, codes: list[int], ids: Sequence[str], deadline: str, known: Sequence[bool]
    ) -> list[tuple[bytes, Mode]]:  # fmt: skip
        """Return answers whose bytes are put together around numbers that are encoded all at once."""
        n_actions = probabilities.shape[1]
        if n_actions == 1 or not (probabilities > 0).all():
            return self._encoded(probabilities.tolist(), codes, ids, deadline, known)
        numbers = _encode(probabilities.ravel().tolist())[1:-1].split(b",")
        ends = [self._end(known=in_log) + deadline.encode() + _TAIL for in_log in (False, True)]
        pieces = [b""] * (2 * n_actions)
        pieces[::2] = self._between
        answers: list[tuple[bytes, Mode]] = []
        for row, (code, id_, in_log) in enumerate(zip(codes, ids, known, strict=True)):
            first = row * n_actions
            pieces[1::2] = numbers[first : first + n_actions]
            parts = (_HEAD, id_.encode(), self._done[code], numbers[first + code], *pieces, ends[in_log])
            answers.append((b"".join(parts), "explore"))
        return answers

    def _end(self, *, known: bool) -> bytes:
        """Return the bytes of an answer between its last probability and its deadline."""
        return b'}],"mode":"explore","policy_version":%d,"task_known":%b,"unseen":%b,"reward_deadline":"' % (
            self.engine.number, _encode(known), _encode([] if known else ["task"]),
        )  # fmt: skip

    def _encoded(
        self, probabilities: list[list[float]], codes: list[int], ids: Sequence[str], deadline: str,
        known: Sequence[bool],
    ) -> list[tuple[bytes, Mode]]:  # fmt: skip
        answers = []
        for shares, code, id_, in_log in zip(probabilities, codes, ids, known, strict=True):
            decision, mode = self._decision(id_, shares, code, deadline, known=in_log)
            answers.append((_encode(decision), mode))
        return answers

    def _decision(
        self, id_: str, probabilities: list[float], code: int, deadline: str, *, known: bool
    ) -> tuple[Decision, Mode]:
        actions = self.engine.actions
        positive = [
            Probability(action, probability)
            for action, probability in zip(actions, probabilities, strict=True)
            if probability > 0
        ]
        mode: Mode = "policy" if len(positive) == 1 else "explore"
        unseen = [] if known else ["task"]
        decision = Decision(
            id_,
            actions[code],
            probabilities[code],
            positive,
            mode,
            self.engine.number,
            known,
            unseen,
            deadline,
        )
        return decision, mode


def drawn(probabilities: Array, rng: np.random.Generator) -> Codes:
    """Return a draw from each row of probabilities (n, K), by one number of the generator each."""
    sums = np.cumsum(probabilities, axis=1)
    codes = np.count_nonzero(sums <= rng.random(len(sums))[:, None], axis=1)
    last = probabilities.shape[1] - 1 - np.argmax(probabilities[:, ::-1] > 0, axis=1)
    return np.asarray(np.minimum(codes, last))  # where rounding leaves the sum of all below the number
