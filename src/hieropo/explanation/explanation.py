"""The explanation of one choice as a value, in words, as JSON and as a document."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hieropo._utils.text import Report, as_json, counted, paragraph, percent, table
from hieropo.report.document import Block, Document, Grid, Interval, Intervals, Items, Section, Text
from hieropo.report.page import fragment

_SHOWN = 8  # actions and coefficients that the text lists
_HALF = 1.959964  # standard deviations on either side of a 95 % interval


@dataclass(frozen=True, slots=True)
class ActionValue(Report):
    """Expected reward of an action here, in reward units, with ``lower_bound = mean - pessimism * sd``."""

    action: Any
    mean: float
    sd: float
    lower_bound: float


@dataclass(frozen=True, slots=True)
class Shares(Report):
    """A posterior mean as the sum of three shares.

    Attributes
    ----------
    name : str
    mean : float
    prior : float
        Share of the prior: the mean, were all rewards 0.
    own : float
        Share of the rows of the task.
    others : float
        Share of the rows of all other tasks.
    """

    name: str
    mean: float
    prior: float
    own: float
    others: float


@dataclass(frozen=True, slots=True)
class Influence(Report):
    """One task, and the answer without its rows.

    Attributes
    ----------
    task : id
    rows : float
    share : float
        Its share of the expected reward of the choice.
    share_of_lead : float
        Its share of the lead of the choice over the rival, in means.
    choice : id or None
        The action that the policy would take without its rows. None where the other rows leave that open.
    mean : float
        Expected reward of the present choice without its rows; NaN where the other rows leave it open.
    lead : float
        Lead of the present choice over the present rival without its rows, in lower bounds.
    """

    task: Any
    rows: float
    share: float
    share_of_lead: float
    choice: Any
    mean: float
    lead: float


@dataclass(frozen=True, slots=True)
class RowInfluence(Report):
    """One row of the log, and the answer without it.

    Attributes
    ----------
    row : int
        Its number in the log, from 0.
    task, action : id
        ``action`` is None where candidates are described by columns.
    reward : float
    change : float
        Change of the lead of the choice over the rival, in means, without the row; of the mean of the choice where
        there is no rival. NaN where the other rows leave it open.
    choice : id or None
        The action that the policy would take without the row. None where the other rows leave that open.
    mean : float
        Expected reward of the present choice without the row.
    lead : float
        Lead of the present choice over the present rival without the row, in lower bounds.
    """

    row: int
    task: Any
    action: Any
    reward: float
    change: float
    choice: Any
    mean: float
    lead: float


@dataclass(frozen=True, slots=True)
class Turn(Report):
    """A value of one context column at which the choice changes, all other columns as they are.

    Attributes
    ----------
    column : str
    value : float, or a level
        None for a missing value.
    above : bool or None
        True where the other choice is above ``value``, False where it is below, None where it is at this level.
    choice : id
        The action there.
    """

    column: str
    value: Any
    above: bool | None
    choice: Any


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """Why a policy chooses an action in a task and context; made by :func:`explain`. Print it, or read its fields.

    Attributes
    ----------
    task : id
    rows : float
        Rows of the task in the log, by their weights.
    other_tasks, other_rows : float
        Number of all other tasks with rows, and their rows.
    context : mapping of str to value
        The context, by the columns in which it was given; empty without context columns, or where candidates are
        described by columns.
    actions : tuple of ActionValue
        All candidates, the choice first and its rival next.
    pessimism : float
    better : float or None
        P(the expected reward of the choice is at least that of the rival | log); None without a rival.
    kept : bool
        True where the gate of the policy leaves the task to the incumbent, so that the choice is not taken.
    mean : Shares
        Of the expected reward of the choice.
    lead : Shares or None
        Of the lead of the choice over the rival, in means.
    coefficients : tuple of Shares
        Of each coefficient that the two expected rewards depend on.
    own : Influence
        The answer without the task's own rows.
    influential : tuple of Influence
        Other tasks whose rows change the lead most, the most influential first.
    turns : tuple of Turn
        The nearest values of context columns at which the choice changes, within three standard deviations of the mean.
    hierarchies : int
        Number of hierarchies over which means and shares are averaged.
    influential_rows : tuple of RowInfluence
        Rows of the log that change the lead most, the most influential first; empty without the log.
    rows_read, tasks_read : int
        Rows of the log, and the tasks whose rows were compared: all, or those that change the lead most.
    """

    task: Any
    rows: float
    other_tasks: float
    other_rows: float
    context: Mapping[str, Any]
    actions: tuple[ActionValue, ...]
    pessimism: float
    better: float | None
    kept: bool
    mean: Shares
    lead: Shares | None
    coefficients: tuple[Shares, ...]
    own: Influence
    influential: tuple[Influence, ...]
    turns: tuple[Turn, ...]
    hierarchies: int
    influential_rows: tuple[RowInfluence, ...] = ()
    rows_read: int = 0
    tasks_read: int = 0

    @property
    def choice(self) -> ActionValue:
        """The action that is chosen."""
        return self.actions[0]

    @property
    def rival(self) -> ActionValue | None:
        """The action with the next largest lower bound; None where there is one candidate."""
        return self.actions[1] if len(self.actions) > 1 else None

    def sentences(self) -> dict[str, str]:
        """Return the explanation in words: the choice, the sources of its mean and of its lead, and the turns."""
        return {
            "choice": self._choice(),
            "mean": _sources(f"The expected reward of {self.choice.action}", self.mean, self),
            "lead": ""
            if self.lead is None
            else _sources(f"Its lead of {_n(self.lead.mean)} in means", self.lead, self),
            "own": self._own() if self.rows else "",
        }

    def _choice(self) -> str:
        choice, rival = self.choice, self.rival
        at = ", ".join(f"{column} = {_value(value)}" for column, value in self.context.items())
        begin = f"In task {self.task}{f' at {at}' if at else ''} the choice is {choice.action}"
        held = " The gate of the policy leaves this task to the incumbent, so that the choice is not taken."
        new = "" if self.rows else f"{self._own()} "
        text = f"{new}{begin}: its expected reward is {_n(choice.mean)}, give or take {_n(choice.sd)}."
        if rival is None:
            return text + (held if self.kept else "")
        lead, better = _n(choice.lower_bound - rival.lower_bound), _p(self.better)
        return (
            f"{text} The rival is {rival.action}, with {_n(rival.mean)}, give or take {_n(rival.sd)}. The policy "
            f"compares lower bounds, mean - {self.pessimism:.3g} sd: {choice.action} leads by {lead}. By the model "
            f"{choice.action} is at least as good as {rival.action} with probability {better}."
        ) + (held if self.kept else "")

    def turning(self) -> tuple[str, ...]:
        """Return sentences on the changes that would turn the choice."""
        rival = self.rival
        if rival is None:
            return ()
        lead = self.choice.lower_bound - rival.lower_bound
        lines = [f"{rival.action} would be chosen if its expected reward here were {_n(lead)} higher."]
        lines += _turning(self.turns)
        turned = [one for one in self.influential if one.choice not in (None, self.choice.action)]
        lines += [f"Without the rows of task {one.task} the choice would be {one.choice}." for one in turned]
        if not turned and self.influential:
            lines.append("None of the other tasks that change the lead most turns the choice alone.")
        return (*lines, *self._turning_rows())

    def _turning_rows(self) -> Iterator[str]:
        turned = [one for one in self.influential_rows if one.choice not in (None, self.choice.action)]
        for one in turned:
            action = "" if one.action is None else f", {one.action}"
            yield (
                f"Without row {one.row:,} of the log, counted from 0 (task {one.task}{action}, reward "
                f"{_n(one.reward)}), the choice would be {one.choice}."
            )
        if self.influential_rows and not turned:
            yield "None of the rows that change the lead most turns the choice alone."

    def _own(self) -> str:
        own = self.own
        if not own.rows:
            return (
                f"Task {self.task} has no rows in the log. It gets the answer of a new task, learned from the "
                f"{counted(self.other_rows, 'row')} of {counted(self.other_tasks, 'other task')}."
            )
        without = f"Without its own {counted(own.rows, 'row')}"
        if own.choice is None:
            return f"{without} the task's answer is open."
        same = "still" if own.choice == self.choice.action else "then"
        return (
            f"{without} the choice would {same} be {own.choice}; the expected reward of {self.choice.action} would be "
            f"{_n(own.mean)}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON's types; numbers that are not finite are None."""
        found: dict[str, Any] = as_json(self)
        return {**found, "sentences": self.sentences(), "turning": list(self.turning())}

    def _influences(self) -> tuple[tuple[str, ...], ...]:
        lines = []
        for one in self.influential:
            left = "open" if one.choice is None else str(one.choice)
            lines.append((str(one.task), f"{one.rows:,.4g}", _n(one.share), _n(one.mean), _n(one.lead), left))
        return tuple(lines)

    def _influential_rows(self) -> tuple[tuple[str, ...], ...]:
        return tuple(
            (
                f"{one.row:,}", str(one.task), "" if one.action is None else str(one.action), _n(one.reward),
                _n(one.mean), _n(one.lead), "open" if one.choice is None else str(one.choice),
            )
            for one in self.influential_rows
        )  # fmt: skip

    def _rows_title(self) -> str:
        tasks = int(self.other_tasks) + bool(self.rows)
        of = (
            "" if self.tasks_read >= tasks else f" in the {self.tasks_read:,} tasks that change the lead most"
        )
        return f"The most influential of {counted(self.rows_read, 'row')}{of}"

    def _coefficients(self) -> tuple[tuple[str, ...], ...]:
        return tuple(
            (one.name, *map(_n, (one.mean, one.prior, one.own, one.others)))
            for one in self.coefficients[:_SHOWN]
        )

    def __str__(self) -> str:
        words = self.sentences()
        parts = [
            paragraph(words["choice"]),
            table([["action", "lower bound", "mean", "sd"], *_values(self.actions)]),
            *(paragraph(words[name]) for name in ("mean", "lead", "own") if words[name]),
        ]
        turning = self.turning()
        if turning:
            parts.append(
                "\n".join(["Changes that turn the choice:", *(paragraph(f"- {line}") for line in turning)])
            )
        if self.influential:
            parts += ["The most influential other tasks:", table([_INFLUENCES, *self._influences()])]
        if self.influential_rows:
            parts += [f"{self._rows_title()}:", table([_ROWS, *self._influential_rows()])]
        parts += [
            "Shares of each coefficient:",
            table([_COEFFICIENTS, *self._coefficients()]),
            paragraph(_NOTE),
        ]
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        size = counted(len(self.actions), "candidate")
        return f"Explanation(task {self.task!r}, choice {self.choice.action!r}, {size})"

    def blocks(self) -> tuple[Block, ...]:
        """Return the explanation as blocks of a document."""
        return tuple(self._blocks())

    def _blocks(self) -> Iterator[Block]:
        words = self.sentences()
        yield Text(words["choice"])
        lines = tuple(
            Interval(str(one.action), one.mean, one.mean - _HALF * one.sd, one.mean + _HALF * one.sd)
            for one in self.actions[:_SHOWN]
        )
        yield Intervals(
            "Expected reward of each action here, with 95 % intervals", "reward", lines, zero=False
        )
        yield Text(" ".join(words[name] for name in ("mean", "lead", "own") if words[name]))
        if self.turning():
            yield Text("Changes that turn the choice:")
            yield Items(self.turning())
        if self.influential:
            yield Grid(_INFLUENCES, self._influences(), "The most influential other tasks")
        if self.influential_rows:
            yield Grid(_ROWS, self._influential_rows(), self._rows_title())
        yield Grid(_COEFFICIENTS, self._coefficients(), "Shares of each coefficient")
        yield Text(_NOTE)

    def document(self) -> Document:
        """Return the explanation as a document, which :func:`hieropo.report.write_page` writes as HTML."""
        title = f"Why {self.choice.action} in task {self.task}?"
        rows = f"{counted(self.rows, 'row')} of the task, {counted(self.other_rows, 'row')} of others."
        return Document(title, rows, (Section("why", "Why this action", self.blocks()),))

    def _repr_html_(self) -> str:
        return fragment(self.document())


_INFLUENCES = ("task", "rows", "adds to the mean", "mean without", "lead without", "choice without")
_ROWS = ("row", "task", "action", "reward", "mean without", "lead without", "choice without")
_COEFFICIENTS = ("coefficient", "mean", "prior", "own rows", "other tasks")
_NOTE = (
    "Shares add to the mean exactly. They count rewards from 0; the effect of a task on the choice is the answer "
    "without its rows. Answers without rows take the variation between tasks as learned from all rows."
)


def _values(actions: tuple[ActionValue, ...]) -> list[list[str]]:
    lines = [[str(one.action), *map(_n, (one.lower_bound, one.mean, one.sd))] for one in actions[:_SHOWN]]
    hidden = len(actions) - _SHOWN
    return lines + ([[f"... and {hidden} more"]] if hidden > 0 else [])


def _sources(what: str, shares: Shares, of: Explanation) -> str:
    others = f"{counted(of.other_rows, 'row')} of {counted(of.other_tasks, 'other task')}"
    terms = [
        *([f"{_n(shares.prior)} from the prior"] if shares.prior else []),
        *([f"{_n(shares.own)} from the task's own {counted(of.rows, 'row')}"] if of.rows else []),
        f"{_n(shares.others)} from {others}",
    ]
    if len(terms) == 1:
        return f"{what} comes from {others}."
    return f"{what} is the sum of {', '.join(terms[:-1])} and {terms[-1]}."


def _turning(turns: tuple[Turn, ...]) -> list[str]:
    """Return sentences on turns; the levels of a column at which the same action is chosen are one sentence."""
    places: dict[tuple[Any, ...], list[str]] = {}
    for turn in turns:
        if turn.above is not None:
            places[turn.choice, turn.column, turn.above] = [
                f"at {turn.column} {'above' if turn.above else 'below'} {_n(turn.value)}"
            ]
        else:
            levels = places.setdefault((turn.choice, turn.column, None), [])
            levels.append("missing" if turn.value is None else str(turn.value))
    return [
        f"{choice} would be chosen {names[0] if above is not None else f'where {column} is {_either(names)}'}."
        for (choice, column, above), names in places.items()
    ]


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _value(value: Any) -> str:
    """Return a value of a context column in words."""
    if value is None or value == "":
        return "missing"
    return f"{value:.4g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _n(value: float) -> str:
    return "" if value != value else f"{value:.4g}"  # noqa: PLR0124 - NaN


def _p(probability: float | None) -> str:
    if probability is None:
        return ""
    return "above 99.9 %" if probability > 0.9995 else percent(probability)
