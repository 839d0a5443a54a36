"""Rewards with heavy tails: Student-t errors, a share of them gross, as pseudo-rewards of Gaussian ones.

The reward of a row of action a is phi' theta_s + sigma_a e, with the density of e

    f = (1 - epsilon) t_nu + epsilon Cauchy(0, 10),    psi = - (log f)'

so that one gross reward does not give tails to all. With N(mu, h) the posterior of phi' theta_s, a row enters sums as

    z = mu + sigma_a E psi((r - phi' theta) / sigma_a) / c,    c = mean over rows of E psi'((r - phi' theta) / sigma_a)

and as a row of precision 1. At the fixed point of posterior and pseudo-rewards the posterior mean is that of the
variational Gaussian approximation to this likelihood, with the mean curvature c / sigma_a^2 of all rows in place of
that of each. The variance of z about its mean is sigma_a^2 E psi^2 / c^2, that of an M-estimator. So the noise variance
that a Gaussian fit learns from z is right for any symmetric law of errors; and a gross reward counts as a row that says
nothing new.

nu, on a grid, epsilon and sigma_a maximise the density of residuals r - m, m and v the mean and variance of phi' theta
without the row itself, with the squared scale sigma_a^2 + v. epsilon is 0 unless that raises the log density by more
than half the log of the number of rows.

A location that ignores far rewards is the mean only where errors are symmetric. Where they are not, it is off by

    b = E(u - beta psi(u)) sigma_a,    u the standardised residual, between -8 and 8;  beta = E u psi / E psi^2

which cancels between actions where it is alike. :class:`Asymmetry` tests whether b is 0, alike in all actions, and
independent of the mean.

Sources: Lange, Little and Taylor, JASA 84, 1989; Huber, Robust Statistics, 1981, 3.2 and 7.6; Opper and Archambeau,
Neural Computation 21, 2009.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.special import chdtrc, chdtri, gammaln

from hieropo._utils.arrays import Array, Codes
from hieropo._utils.progress import say
from hieropo.errors import InputError
from hieropo.estimation.conditioning import condition_learned
from hieropo.estimation.sites import LogRows, SiteFit, Sites
from hieropo.model.crossed.task_noise import row_precision

DEGREES = (1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 25.0, 50.0, 200.0)
_NODES, _MASSES = np.polynomial.hermite_e.hermegauss(3)
_MASSES = _MASSES / _MASSES.sum()
_WIDTH = 10.0  # of gross errors
_START = 0.01  # share of gross errors
_GAUSSIAN = 100.0  # degrees
_PIECE = 2**14  # rows worked on together, while they are in the cache
_SAMPLE = 2**13  # rows that the law of errors is learned from
_MOST_STEPS = 5
_LARGE = 2**17  # rows
_ENOUGH = 0.05  # root mean square change of means, in posterior standard deviations, at which the search ends
_MOST_SHARE = 0.9  # of its posterior that a row makes at most, where it is left out
_ITERATIONS = 50
_SAME = 1e-3  # change of log sigma_a^2
_CLIP = 8.0  # standardised residual
_CHANCE = 0.003  # probability of a deviation that is not taken as chance
_LEAST = 1e-6  # squared scale of an action, as a share of the largest
_FEWEST = 20.0  # effective number of rows that differences are told from
_MOST_ALIKE = 0.5  # share of rewards of one value
_SOME = 2**16  # rows that this share is taken from
_ODDS = float(np.log(10.0))
_SIZE = 0.03  # asymmetry, in noise standard deviations, that matters
_HEAVY = "Rewards have heavy tails, but likelihood='auto' keeps the Gaussian likelihood: {}."
_SKEWED = "errors are skewed, so that the centre of a robust fit is not the mean"


class Tails(NamedTuple):
    """The law of standardised errors.

    Attributes
    ----------
    degrees : float
        nu.
    gross : float
        epsilon.
    """

    degrees: float
    gross: float = 0.0

    def log_densities(self, square: Array) -> tuple[Array, Array]:
        """Return the log densities (n,) of errors that are not gross, and that are, from their squares."""
        nu, wide = self.degrees, _WIDTH**2
        constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi)
        usual = constant - (nu + 1) / 2 * np.log1p(square / nu)
        return usual, np.log(_WIDTH / np.pi) - np.log(wide + square)

    def log_density(self, square: Array) -> tuple[Array, Array]:
        """Return the log density (n,), and the probability that the error is not gross."""
        usual, gross = self.log_densities(square)
        if self.gross == 0.0:
            return usual, np.ones_like(usual)
        log_density = np.logaddexp(np.log1p(-self.gross) + usual, np.log(self.gross) + gross)
        return log_density, np.exp(np.log1p(-self.gross) + usual - log_density)

    def psi(self, e: Array) -> Array:
        """Return psi (n,)."""
        usual = _score(e, self.degrees, self.degrees + 1.0)
        if self.gross == 0.0:
            return usual
        share = self.log_density(np.square(e))[1]
        return share * usual + (1.0 - share) * _score(e, _WIDTH**2, 2.0)

    def slope(self, e: Array) -> Array:
        """Return psi' (n,)."""
        nu, wide = self.degrees, _WIDTH**2
        usual = _slope(e, nu, nu + 1.0)
        if self.gross == 0.0:
            return usual
        share = self.log_density(np.square(e))[1]
        apart = _score(e, nu, nu + 1.0) - _score(e, wide, 2.0)
        return share * usual + (1.0 - share) * _slope(e, wide, 2.0) - share * (1.0 - share) * apart**2


def _score(e: Array, nu: float, factor: float) -> Array:
    return np.asarray(factor * e / (nu + e * e))


def _slope(e: Array, nu: float, factor: float) -> Array:
    square = e * e
    return np.asarray(factor * (nu - square) / (nu + square) ** 2)


def _averaged(function: Callable[[Array], Array], e: Array, sd: Array) -> Array:
    """Return the means (n,) of a function of N(e, sd^2)."""
    total = np.zeros_like(e)
    for node, mass in zip(_NODES.tolist(), _MASSES.tolist(), strict=True):
        total += mass * function(e - node * sd)
    return total


@dataclass(frozen=True, eq=False)
class StudentRule:
    """Student-t errors, a share of them gross.

    Attributes
    ----------
    tails : Tails
    scale : (K,) array
        sigma_a.
    slope : float
        c.
    warning : str
        A sentence where errors are not symmetric; else empty.
    """

    tails: Tails
    scale: Array
    slope: float
    warning: str = ""
    name = "robust"

    def sites(self, reward: Array, mean: Array, variance: Array, action: Codes) -> Sites:
        """Return the pseudo-rewards of rows, as :class:`SiteRule` says."""
        z = np.empty_like(mean)
        for start in range(0, z.size, _PIECE):
            part = slice(start, start + _PIECE)
            scale, centre = self.scale[action[part]], mean[part]
            e, sd = (reward[part] - centre) / scale, np.sqrt(variance[part]) / scale
            z[part] = centre + scale * _averaged(self.tails.psi, e, sd) / self.slope
        return Sites(z)

    def note(self, actions: Iterable[Any]) -> str:  # noqa: ARG002 - of the interface of all rules
        """Return sentences for a summary."""
        degrees, gross = self.tails
        law = "about Gaussian" if degrees >= _GAUSSIAN else f"Student-t with {degrees:g} degrees of freedom"
        share = f", but for a share of {gross:.2g} that are gross" if gross else ""
        text = (
            f"The robust likelihood: errors are {law}{share}, so that rewards far from their mean count for less. The "
            "noise sd is that of Gaussian rewards with as much information."
        )
        return f"{text} {self.warning}" if self.warning else text

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as JSON can hold them."""
        return {
            "name": self.name,
            "degrees": self.tails.degrees,
            "gross": self.tails.gross,
            "scale": self.scale.tolist(),
            "slope": self.slope,
            "warning": self.warning,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Return the rule that :meth:`to_dict` wrote."""
        return cls(
            Tails(saved["degrees"], saved["gross"]),
            np.array(saved["scale"]),
            saved["slope"],
            saved["warning"],
        )


class LeftOut(NamedTuple):
    """Predictions of a sample of the rows, without each of them.

    Attributes
    ----------
    residual : (n,) array
        r - m.
    variance : (n,) array
        v.
    noise : (n,) array
        Noise variance of the Gaussian rewards, or pseudo-rewards, that the posterior was learned from.
    action : (n,) int array
    weight, mean : (n,) array
        Weights, and posterior means with the row.
    """

    residual: Array
    variance: Array
    noise: Array
    action: Codes
    weight: Array
    mean: Array

    @classmethod
    def of(cls, rows: LogRows, posterior: Any, reward: Array, mean: Array, variance: Array) -> Self:
        """Leave out each of at most 8,192 rows, which entered the posterior N(mean, variance) as ``reward``."""
        some = rows.sample(_SAMPLE)
        task, action = np.divmod(rows.unit[some], rows.moments.n_actions)
        noise = np.asarray(posterior.noise_variances)[action]
        precision = row_precision(posterior, task, None)
        noise = noise if precision is None else noise / precision
        mean, variance = mean[some], variance[some]
        share = np.minimum(variance / noise, _MOST_SHARE)
        left = mean - share / (1.0 - share) * (reward[some] - mean)
        weight = np.ones(some.size) if rows.count is None else rows.count[some]
        return cls(rows.reward[some] - left, variance / (1.0 - share), noise, action, weight, mean)

    @property
    def gaussian(self) -> float:
        """The log density of the residuals with Gaussian noise."""
        variance = self.variance + self.noise
        logs = np.log(2 * np.pi * variance) + self.residual**2 / variance
        return float(-0.5 * self.weight @ logs)

    def student(self, degrees: float, start: Array, gross: float) -> "Student":
        """Return the sigma_a^2 (K,), and the epsilon where it is above 0, that maximise the log density."""
        square, v, action, weight = np.square(self.residual), self.variance, self.action, self.weight
        K, scale, least = start.size, start, _LEAST * float(start.max())
        for _ in range(_ITERATIONS):  # the parameter-expanded EM algorithm
            g = 1.0 / (scale[action] + v)
            e2 = square * g
            log_density, usual = Tails(degrees, gross).log_density(e2)
            w = weight * usual * (degrees + 1.0) / (degrees + e2) * g
            above, below = np.bincount(action, w * e2, K), np.bincount(action, w, K)
            new = np.where(below > 0, scale * above / np.where(below > 0, below, 1.0), scale)
            new = np.maximum(new, least)
            change = np.abs(np.log(new / scale)).max()
            scale = new
            if gross:
                gross = max(float(weight @ (1.0 - usual)) / float(weight.sum()), 1e-12)
            if change < _SAME:
                break
        return Student(Tails(degrees, gross), scale, float(weight @ (log_density + 0.5 * np.log(g))))


class Student(NamedTuple):
    """The law of errors and sigma_a^2 (K,), with the log density of residuals."""

    tails: Tails
    scale: Array
    log_density: float

    @classmethod
    def of(cls, left: LeftOut, actions: int) -> "Student":
        """Return those of the largest density; without gross errors unless these raise it enough."""
        all_usual, some_gross = (
            max(cls._each(left, actions, gross), key=_density) for gross in (0.0, _START)
        )
        more = 0.5 * np.log(left.weight.sum())
        return some_gross if some_gross.log_density - all_usual.log_density > more else all_usual

    @classmethod
    def _each(cls, left: LeftOut, actions: int, gross: float) -> "Iterator[Student]":
        middle = float(np.median(np.square(left.residual))) / 0.6
        scale = np.full(actions, max(middle, 1e-300))
        for degrees in DEGREES:
            student = left.student(degrees, scale, gross)
            scale = student.scale
            yield student


def _density(student: Student) -> float:
    return student.log_density


class Asymmetry(NamedTuple):
    """Distance of the location of the rewards from their mean.

    Attributes
    ----------
    overall : float
        b over all rows, in noise standard deviations; 0 where it may be chance.
    between : float
        How far b differs between actions, or along the mean reward, in the same units; 0 where it may be chance.
    """

    overall: float
    between: float

    @classmethod
    def of(cls, left: LeftOut, student: Student) -> Self:
        """Test the residuals."""
        sd = np.sqrt(student.scale[left.action] + left.variance)
        e = left.residual / sd
        u, psi = np.clip(e, -_CLIP, _CLIP), student.tails.psi(e)
        b = (u - psi * float((u * psi).mean() / np.square(psi).mean())) * sd / float(sd.mean())
        squares, overall = np.square(b), float(b.mean())
        away, limit = b - overall, float(np.sqrt(chdtri(1, _CHANCE)))
        between = max(_between(away, left.action), _along(away, left.mean, limit))
        if squares.sum() ** 2 < _FEWEST * np.square(squares).sum():  # a few rows make all of it
            between = 0.0
        chance = abs(float(b.sum())) < limit * float(np.sqrt(squares.sum()))
        return cls(0.0 if chance or abs(overall) < _SIZE else overall, between if between > _SIZE else 0.0)

    @property
    def warning(self) -> str:
        """Sentences on its consequence; empty where errors are symmetric."""
        if self.between:
            return (
                "Errors are skewed, and their skewness differs between actions or changes with the mean reward. The "
                "robust fit learns the centre of the errors, which is then not the mean: comparisons of actions may be "
                f"wrong by {self.between:.2g} noise standard deviations. Use likelihood='gaussian', whose means are "
                "right."
            )
        if self.overall:
            return (
                f"Errors are skewed alike in all actions: predicted rewards are {abs(self.overall):.2g} noise standard "
                f"deviations too {'low' if self.overall > 0 else 'high'}, and comparisons of actions are right."
            )
        return ""


def fit_robust(rows: LogRows, learn: Callable[..., Any]) -> SiteFit:
    """Return the fit with Student-t errors.

    Parameters
    ----------
    rows : LogRows
    learn : callable
        From moments, and a similar hierarchy or None, to a Learning.

    Raises
    ------
    InputError
        Most rewards have one value.
    """
    share, value = _commonest(rows)
    if share > _MOST_ALIKE:
        raise InputError(
            f"The reward is {value:g} in {share:.0%} of the rows, and likelihood='robust' is for rewards that vary: it "
            "would treat all others as gross errors. Set likelihood='gaussian', whose means are right."
        )
    return _robust(rows, learn).fit


def fit_auto(rows: LogRows, learn: Callable[..., Any]) -> SiteFit:
    """Return the fit with Student-t errors where the log is ten to one for it and errors are symmetric, else Gaussian.

    Parameters
    ----------
    rows : LogRows
    learn : callable
        From moments, and a similar hierarchy or None, to a Learning.
    """
    learned = learn(rows.moments, None)
    gaussian = SiteFit(learned, rows.moments, None)
    if _commonest(rows)[0] > _MOST_ALIKE:
        return gaussian
    mean, variance = rows.predicted(learned.posterior)
    left = LeftOut.of(rows, learned.posterior, rows.reward, mean, variance)
    least = left.gaussian + _ODDS + float(np.log(left.weight.sum()))  # of at most two parameters
    if Student.of(left, rows.moments.n_actions).log_density <= least:
        return gaussian
    robust = _robust(rows, learn)
    if robust.student.log_density <= least:
        return gaussian._replace(
            note=_HEAVY.format("the robust fit does not predict left-out rows clearly better")
        )
    if robust.asymmetry != Asymmetry(0.0, 0.0):
        return gaussian._replace(note=_HEAVY.format(_SKEWED))
    return robust.fit


class _Robust(NamedTuple):
    """A fit with the law of errors under which it was made, and the asymmetry of its residuals."""

    fit: SiteFit
    student: Student
    asymmetry: Asymmetry


def _robust(rows: LogRows, learn: Callable[..., Any]) -> _Robust:
    """Repeat posterior, law of errors, pseudo-rewards and sums until the means stay.

    The first posterior is of clipped rewards, and the second under the hierarchy that was learned from these. A
    large log has two steps, at the posteriors under the central hierarchy.
    """
    large, means = len(rows) > _LARGE, np.zeros(len(rows))
    reward = _clipped(rows)
    learned = learn(rows.sums(Sites(reward)), None)
    posterior = learned.posterior
    for step in range(2 if large else _MOST_STEPS):
        mean, variance = rows.predicted(posterior.central() if large else posterior)
        if step > 1 and np.square(mean - means).mean() < _ENOUGH**2 * variance.mean():
            break
        say(f"Learning the tails of the rewards, step {step + 1} ...")
        left = LeftOut.of(rows, posterior, reward, mean, variance)
        student = Student.of(left, rows.moments.n_actions)
        rule = StudentRule(student.tails, np.sqrt(student.scale), _mean_slope(left, student))
        reward = rule.sites(rows.reward, mean, variance, rows.action).reward
        moments, means = rows.sums(Sites(reward)), mean
        if step == 0:
            posterior = condition_learned(moments, learned.hierarchy, None)
        else:
            learned = learn(moments, None)
            posterior = learned.posterior
    asymmetry = Asymmetry.of(left, student)
    return _Robust(SiteFit(learned, moments, replace(rule, warning=asymmetry.warning)), student, asymmetry)


def _mean_slope(left: LeftOut, student: Student) -> float:
    """Return c: the mean of psi' over the rows without each of them."""
    scale = np.sqrt(student.scale)[left.action]
    slopes = _averaged(student.tails.slope, left.residual / scale, np.sqrt(left.variance) / scale)
    return float(left.weight @ slopes / left.weight.sum())


def _between(away: Array, action: Codes) -> float:
    """Return how far the means of actions differ; 0 where it may be chance."""
    total, squares, rows = (np.bincount(action, x) for x in (away, away**2, np.ones_like(away)))
    some = squares > 0
    statistic = float((total[some] ** 2 / squares[some]).sum())
    if chdtrc(max(int(some.sum()) - 1, 1), statistic) > _CHANCE:
        return 0.0
    return float(np.ptp(total[some] / rows[some]))


def _along(away: Array, mean: Array, limit: float) -> float:
    """Return how far values differ between rows two standard deviations of their means apart; 0 where by chance."""
    along = away * (mean - mean.mean()) / max(float(mean.std()), 1e-300)
    total = abs(float(along.sum()))
    return 0.0 if total < limit * float(np.sqrt(np.square(along).sum())) else 2.0 * total / along.size


def _commonest(rows: LogRows) -> tuple[float, float]:
    """Return the share of the commonest reward, and the reward."""
    some = rows.sample(_SOME)
    values, number = np.unique(rows.reward[some], return_inverse=True)
    totals = np.bincount(number, rows.counts[some])
    return float(totals.max() / totals.sum()), float(values[totals.argmax()])


def _clipped(rows: LogRows) -> Array:
    """Return the rewards; where some are gross, those of their tasks at most 8 robust sds from the task's median."""
    task, reward = rows.unit // rows.moments.n_actions, rows.reward
    away = np.abs(reward - np.median(reward))
    width = _CLIP * 1.4826 * float(np.median(away))
    tasks = np.unique(task[away > width])
    if width == 0.0 or not tasks.size:
        return reward
    clipped, some = reward.copy(), np.flatnonzero(np.isin(task, tasks))
    order = some[np.lexsort((reward[some], task[some]))]
    starts = np.flatnonzero(np.diff(task[order], prepend=-1))
    size = np.diff(np.append(starts, order.size))
    medians = (reward[order[starts + (size - 1) // 2]] + reward[order[starts + size // 2]]) / 2
    centre = np.repeat(medians, size)
    clipped[order] = np.clip(reward[order], centre - width, centre + width)
    return clipped
