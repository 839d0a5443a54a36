"""What became of every decision and every reward of a join."""

from dataclasses import asdict, dataclass
from typing import Any

from hieropo.text import counted, table


@dataclass(frozen=True, slots=True)
class JoinReport:
    """Counts of a join of decisions with later rewards; each decision and each reward is in one of them.

    Parameters
    ----------
    decisions, rewards : int
        Rows of the two streams.
    rows : int
        Rows of the log: decisions whose window is closed, with their reward or with the default.
    with_reward, defaulted : int
        Of these, how many got a reward, and how many the default.
    without_reward : int
        Decisions without a reward in their closed window that were left out.
    open, open_with_reward : int
        Decisions left out because their window was not closed, and how many of them have a reward already: to keep
        those alone would favour actions that pay at once.
    repeated_decisions : int
        Further rows of a decision id, left out.
    used : int
        Rewards that are in the log.
    further : int
        Rewards of a decision beside the one that counts.
    repeated : int
        Rewards equal to another in id, time and value, which count once.
    waiting : int
        Rewards in a window that is still open.
    late, early, orphaned : int
        Rewards after the window, before the decision, of no decision.
    window, until : str
        The window, and up to when all rewards were taken to be in.
    until_given : bool
        Whether the caller said so; else it is the time of the latest reward.
    delays : dict
        How long after the decision rewards came, late ones too, by the share of them: 0.5, 0.9, 0.99, 1.
    """

    decisions: int
    rewards: int
    rows: int
    with_reward: int
    defaulted: int
    without_reward: int
    open: int
    open_with_reward: int
    repeated_decisions: int
    used: int
    further: int
    repeated: int
    waiting: int
    late: int
    early: int
    orphaned: int
    window: str
    until: str
    until_given: bool
    delays: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types."""
        return asdict(self)

    def __str__(self) -> str:
        why = (
            "as was said"
            if self.until_given
            else "the time of the latest one; say until when they are in if longer"
        )
        kept = [
            ("Decisions", self.decisions),
            ("  with a reward in their window", self.with_reward),
            ("  without one, which get the default", self.defaulted),
            ("  without one, left out", self.without_reward),
            ("  window still open, left out", self.open),
            ("  another row of the same decision, left out", self.repeated_decisions),
        ]
        came = [
            ("Rewards", self.rewards),
            ("  used", self.used),
            ("  further ones of a decision", self.further),
            ("  repeated, counted once", self.repeated),
            ("  in windows that are still open", self.waiting),
            ("  late, after the window", self.late),
            ("  early, before the decision", self.early),
            ("  orphaned, of no decision", self.orphaned),
        ]
        lines = [
            f"Window {self.window} after the decision; rewards are in until {self.until}, {why}.",
            table([[name, f"{count:,}"] for name, count in kept if count or not name.startswith(" ")]),
            table([[name, f"{count:,}"] for name, count in came if count or not name.startswith(" ")]),
        ]
        if self.open_with_reward:
            lines.append(
                f"{counted(self.open_with_reward, 'decision')} with an open window {_have(self.open_with_reward)} a "
                "reward already; to keep them alone would favour what pays at once."
            )
        if self.delays:
            said = ", ".join(f"{float(share):.0%} within {delay}" for share, delay in self.delays.items())
            lines.append(f"Rewards came after the decision: {said}.")
        return "\n\n".join(lines)


def _have(count: int) -> str:
    return "has" if count == 1 else "have"
