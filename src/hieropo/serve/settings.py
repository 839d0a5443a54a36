"""The settings of a service: reward window, exploration, sealing, refresh, and limits."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

from hieropo.errors import InputError

Several = Literal["sum", "first", "last", "max"]
Exploration = Literal["none", "floor", "sampling"]
SwapRule = Literal["better", "not-worse", "always", "never"]

_CHOICES = {"several": Several, "exploration": Exploration, "swap": SwapRule}


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a decision service; times are seconds.

    Parameters
    ----------
    window : float
        Time after a decision within which a reward counts, by the server's clock.
    several : {"sum", "first", "last", "max"}
        Reward of a decision that has several in its window.
    default : float or None
        Reward of a decision without one in its window. None leaves such decisions out of the log.
    exploration : {"none", "floor", "sampling"}
        "none" takes the action with the largest lower bound. "floor" draws a share of all decisions uniformly.
        "sampling" draws from the probabilities of being the best action, given independent marginal posteriors, with
        that floor.
    floor : float
        The share f of decisions that is drawn uniformly: each of K eligible actions has at least f / K.
    control : float
        Share of decisions that are left to the incumbent at random.
    shadow : bool
        Answer with the incumbent's action, and record the action that the policy would have taken.
    seal_every, seal_rows : float, int
        A segment is sealed after this time, or once so many windows have closed.
    half_life : float or None
        Age at which a row counts half in a refresh. None: all rows count the same.
    refresh_every : float or None
        Time between refreshes that the service starts by itself. None: only on request.
    swap : {"better", "not-worse", "always", "never"}
        Rule for activating a refreshed policy, by the doubly robust lead over the active one on rows that this one has
        not seen: its interval is above 0; its interval reaches above 0; in any case; on request alone.
    checks : bool
        Rules "better" and "not-worse" hold only where predictive checks of the refreshed policy on these rows find no
        misfit.
    max_harm : float or None
        Gate of refreshed policies: tasks with a larger probability of harm are left to the incumbent.
    base : bool
        Learn from the moments of the first policy too.
    keep_answers : float
        How long after its window the answer of a decision can be repeated.
    queue : int
        Decisions and rewards that may wait for the disk. Beyond it requests are refused (503).
    max_body, max_batch : int
        Largest body of a request in bytes, and largest number of decisions or rewards in one.
    max_policy : int
        Largest archive of a policy in bytes, as it is sent and unpacked.
    timeout : float
        Time within which a request must have arrived; an archive of a policy has 60 times as long.
    false_alarms : float
        Probability with which the check of rewards against predictions ever raises an alarm where there is none.
    """

    window: float = 86_400.0
    several: Several = "sum"
    default: float | None = 0.0
    exploration: Exploration = "floor"
    floor: float = 0.05
    control: float = 0.0
    shadow: bool = False
    seal_every: float = 3_600.0
    seal_rows: int = 1_000_000
    half_life: float | None = None
    refresh_every: float | None = None
    swap: SwapRule = "better"
    checks: bool = True
    max_harm: float | None = None
    base: bool = True
    keep_answers: float = 86_400.0
    queue: int = 10_000
    max_body: int = 8_388_608
    max_batch: int = 4_096
    max_policy: int = 1_073_741_824
    timeout: float = 10.0
    false_alarms: float = 0.01

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                raise InputError(
                    f"The setting {name}={getattr(self, name)!r} is none of {', '.join(map(repr, get_args(choices)))}, "
                    "and the service cannot follow it. Set one of these."
                )
        self._check_booleans()
        for name in ("floor", "control", "max_harm", "false_alarms"):
            self._check(name, 0.0, 1.0, "a share or probability in [0, 1]")
        for name in ("window", "seal_every", "half_life", "refresh_every", "timeout"):
            self._check(name, 1e-3, 1e9, "a time in seconds of at least 0.001")
        for name in ("keep_answers", "queue", "max_body", "max_batch", "max_policy", "seal_rows"):
            least = 0 if name == "keep_answers" else 1
            self._check(name, least, 1e15, f"a number of at least {least}")
        self._check("default", -1e300, 1e300, "a finite reward")
        if self.exploration == "none" and self.swap in ("better", "not-worse") and self.refresh_every:
            raise InputError(
                f"exploration='none' logs propensity 1 for every action, so that swap={self.swap!r}, which compares "
                "policies by importance weighting, can never hold, and refreshes would keep the old policy forever. "
                "Set exploration='floor', or swap='always' or 'never'."
            )

    def _check_booleans(self) -> None:
        for name in ("checks", "shadow", "base"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(
                    f"The setting {name}={getattr(self, name)!r} is neither true nor false, so that it is not known "
                    "whether it is on. Set one of these."
                )

    def _check(self, name: str, least: float, most: float, wanted: str) -> None:
        value = getattr(self, name)
        if value is None and name in ("default", "half_life", "refresh_every", "max_harm"):
            return
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not least <= value <= most:
            raise InputError(
                f"The setting {name}={value!r} is not {wanted}. Correct it in the file of settings."
            )

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """Return settings by their names.

        Raises
        ------
        InputError
            A name or a value cannot be used.
        """
        names = [field.name for field in fields(cls)]
        unknown = [name for name in given if name not in names]
        if unknown:
            raise InputError(
                f"There is no setting {unknown[0]!r}, so that it would have no effect. Settings are {', '.join(names)}."
            )
        return cls(**given)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the settings of a TOML file.

        Raises
        ------
        InputError
            The file is missing or is not TOML, or a setting cannot be used.
        """
        import tomllib

        try:
            given = tomllib.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(
                f"The settings {path} cannot be read ({error}), and the service would run with others than meant. "
                "Write a TOML file with lines such as: window = 3600."
            ) from error
        if given.get("default") == "none":  # TOML has no null
            given["default"] = None
        return cls.of(given)

    @property
    def explores(self) -> bool:
        """Return True where actions other than the policy's can be taken, so that the log can judge policies."""
        return (self.exploration == "floor" and self.floor > 0) or self.exploration == "sampling"
