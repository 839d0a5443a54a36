"""effect(city): near exact random effects in value, careful where the city is new, and never told by its own row."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.sparse import csc_matrix, diags, hstack
from scipy.sparse.linalg import spsolve

from hieropo import HierOPO, InputError, LCBPolicy, PooledOPO, SchemaError, load_learner
from hieropo.features.terms.effects import LearnedEffect

ROLES: dict[str, Any] = {"task": "store", "action": "offer", "reward": "profit"}
STORES, OFFERS = 20, 3


class World:
    """Rewards theta_sa + u_c + v_ca + noise; the first half of the cities is in the log."""

    def __init__(self, seed: int, rows: int, cities: int, main: float = 0.3, own: float = 0.3) -> None:
        rng = np.random.default_rng(seed)
        self.cities = cities
        self.store, self.city = rng.integers(0, STORES, rows), rng.integers(0, cities, rows)
        self.offer = rng.integers(0, OFFERS, rows)
        self.theta = (
            0.3 * rng.normal(size=(STORES, 1))
            + 0.05 * np.arange(OFFERS)
            + 0.15 * rng.normal(size=(STORES, OFFERS))
        )
        self.effects = main * rng.normal(size=(2 * cities, 1)) + own * rng.normal(size=(2 * cities, OFFERS))
        noise = rng.normal(size=rows)
        self.profit = self.theta[self.store, self.offer] + self.effects[self.city, self.offer] + noise

    def log(self) -> pa.Table:
        return pa.table(
            {
                "store": self.store, "city": [f"city {k}" for k in self.city],
                "offer": [f"offer {k}" for k in self.offer], "profit": self.profit,
            }
        )  # fmt: skip

    def requests(self, n: int, *, new: bool) -> tuple[pa.Table, np.ndarray, np.ndarray, np.ndarray]:
        """Requests of known or new cities, their stores and cities, and the mean rewards of all offers."""
        rng = np.random.default_rng(99)
        store, city = rng.integers(0, STORES, n), rng.integers(0, self.cities, n) + self.cities * new
        table = pa.table({"store": store, "city": [f"city {k}" for k in city]})
        return table, store, city, self.theta[store] + self.effects[city]

    def exact(self) -> tuple[np.ndarray, np.ndarray]:
        """The best linear predictions of the mixed model with the true variances: of stores, and of cities."""
        sizes = [OFFERS, STORES, STORES * OFFERS, self.cities, self.cities * OFFERS]
        codes = [
            self.offer, self.store, self.store * OFFERS + self.offer, self.city, self.city * OFFERS + self.offer
        ]  # fmt: skip
        rows = np.arange(self.offer.size)
        blocks = [
            csc_matrix((np.ones(rows.size), (rows, code)), (rows.size, size))
            for code, size in zip(codes, sizes, strict=True)
        ]
        design = hstack(blocks).tocsc()
        precision = np.repeat([1e-6, 0.3**-2, 0.15**-2, 0.3**-2, 0.3**-2], sizes)
        parts = np.split(
            spsolve((design.T @ design + diags(precision)).tocsc(), design.T @ self.profit),
            np.cumsum(sizes)[:-1],
        )
        offer, store, both, city, of_offer = parts
        return (
            offer + store[:, None] + both.reshape(STORES, OFFERS), city[:, None] + of_offer.reshape(-1, OFFERS)
        )  # fmt: skip


def chosen(learner: HierOPO, requests: pa.Table) -> np.ndarray:
    return np.array([int(action[6:]) for action in learner.decide(requests)["action"].to_pylist()])


def bounds(learner: HierOPO, requests: pa.Table) -> np.ndarray:
    table = learner.decide(requests, top=OFFERS).table
    found = np.empty((requests.num_rows, OFFERS))
    found[table["row"], [int(action[6:]) for action in table["action"].to_pylist()]] = table["lower_bound"]
    return found


@pytest.mark.slow
def test_a_thousand_levels_have_the_value_of_exact_random_effects_and_new_ones_are_covered() -> None:
    covered = {False: [], True: []}  # type: ignore[var-annotated]  # lists of booleans
    for seed in range(2):
        world = World(seed, 20_000, 1_000)
        learner = HierOPO("effect(city)").fit(world.log(), **ROLES)
        requests, store, city, truth = world.requests(20_000, new=False)
        of_store, of_city = world.exact()
        best = (of_store[store] + of_city[city]).argmax(axis=1)
        exact, ours = (
            np.take_along_axis(truth, a[:, None], 1).mean() - truth.mean()
            for a in (best, chosen(learner, requests))
        )
        assert exact > 0.15
        assert ours > 0.95 * exact
        learner.policy_ = LCBPolicy(learner.posterior_, learner.features_, level=0.95)
        for new in (False, True):
            requests, _, _, truth = world.requests(5_000, new=new)
            covered[new].append(truth >= bounds(learner, requests))
    for new in (False, True):
        assert np.mean(covered[new]) > 0.93


@pytest.fixture(scope="module")
def world() -> World:
    return World(5, 3_000, 100)


@pytest.fixture(scope="module")
def learner(world: World) -> HierOPO:
    return HierOPO("effect(city)").fit(world.log(), **ROLES)


def test_a_new_city_is_the_mean_city_with_a_careful_bound(
    learner: HierOPO, world: World, tmp_path: Path
) -> None:
    requests = pa.table({"store": [3, 3], "city": ["city 4", "nowhere"]})
    decisions = learner.decide(requests, top=OFFERS).table
    assert decisions["city_known"].to_pylist() == [True] * 3 + [False] * 3
    known, new = (np.array(decisions["sd"].to_pylist()[k : k + 3]) for k in (0, 3))
    assert (new > known).all()
    assert (new**2 > 0.09).all()  # about 0.3^2 + 0.3^2
    assert learner.features_.columns == (
        "effect of city",
        "effect of city on offer 0",
        "effect of city on offer 1",
    )
    learner.save(tmp_path / "policy")
    again = load_learner(tmp_path / "policy").decide(requests, top=OFFERS).table
    assert again.equals(decisions)
    assert "city has effects of 100 levels, draws around 0" in " ".join(str(learner.summary()).split())
    shuffled = world.log().take(np.random.default_rng(1).permutation(3_000))
    other = HierOPO("effect(city)").fit(shuffled, **ROLES).decide(requests, top=OFFERS)
    assert other["mean"].to_numpy() == pytest.approx(decisions["mean"].to_numpy(), abs=1e-6)


def test_rows_of_a_log_have_the_effects_that_other_tasks_tell(learner: HierOPO, world: World) -> None:
    """The columns do not move with the rewards of the row's own task, given the sums of the others."""
    (term,) = learner.features_.terms.terms
    assert isinstance(term.effect, LearnedEffect)
    evaluation = learner.evaluate(world.log(), compare=False, propensities="none")
    assert np.isfinite(evaluation.model.difference.mean)
    rows, sums = np.array(term.effect.rows), np.array(term.effect.sums)
    part = 2
    moved = np.where(np.arange(5)[:, None, None] == part, sums + 100.0, sums)
    other = LearnedEffect(
        term.effect.actions, term.effect.task, term.effect.rows, moved.tolist(), term.effect.variances
    )
    place, own = np.arange(100), np.full(100, part)
    assert other.encode(place, own) == pytest.approx(term.effect.encode(place, own), abs=1e-9)
    assert not np.allclose(other.encode(place, own - 1), term.effect.encode(place, own - 1))
    assert rows.sum() == 3_000


def test_levels_that_differ_by_chance_alone_are_left_out() -> None:
    world = World(6, 3_000, 100, main=0.0, own=0.0)
    log = world.log().append_column("price", pa.array(np.random.default_rng(0).normal(size=3_000)))
    learner = PooledOPO("effect(city) + price").fit(log, **ROLES)
    assert learner.features_.columns == ("price",)
    assert "shows no effects of the levels of 'city'" in learner.features_.terms.described()


def test_an_effect_needs_tasks_few_actions_and_no_interaction(world: World) -> None:
    log = world.log()
    with pytest.raises(SchemaError, match=r"effect\(city\) needs a column of tasks and one of actions"):
        HierOPO("effect(city)").fit(log, action="offer", reward="profit")
    with pytest.raises(InputError, match=r"the log has 1 task\. Take 'city' as the task"):
        HierOPO("effect(city)").fit(log.set_column(0, "store", pa.array([1] * 3_000)), **ROLES)
    many = log.set_column(2, "offer", pa.array([f"offer {k % 40}" for k in range(3_000)]))
    with pytest.raises(InputError, match="the log has 40 actions; at most 20"):
        HierOPO("effect(city)").fit(many, **ROLES)
    with pytest.raises(InputError, match=r"'effect\(city\)' is no factor"):
        HierOPO("effect(city):store").fit(log, **ROLES)
