"""MovieLens from file to folder: what is read and refused, clusters, runs, the command."""

import hashlib
import http.server
import json
import re
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from real_data import real_table
from sklearn.mixture import GaussianMixture

from hieropo import InputError, LogError, NumericalError, SchemaError
from hieropo.cli import main
from hieropo.model.hierarchy import Hierarchy
from hieropo.model.posterior import condition
from hieropo.reproduce.beyond import experiment as beyond
from hieropo.reproduce.judging import losses
from hieropo.reproduce.movielens import download as grouplens
from hieropo.reproduce.movielens import experiment as movielens
from hieropo.reproduce.movielens import learned_prior
from hieropo.reproduce.movielens.clusters import Clusters, best_of, one_start
from hieropo.reproduce.movielens.ratings import read_ratings
from hieropo.reproduce.settings import Counts, Settings, settings_of, shipped


def made_up(seed: int = 0, users: int = 60, movies: int = 30) -> pd.DataFrame:
    """Ratings of three kinds of users, sorted by user; every user and movie has some."""
    rng = np.random.default_rng(seed)
    taste = np.repeat(np.array([[1.5, 0.5], [0.5, 1.5], [1.0, 1.0]]), users // 3, axis=0)
    worth = rng.uniform(0.5, 2.0, (movies, 2))
    stars = np.clip(np.round((taste + 0.2 * rng.standard_normal(taste.shape)) @ worth.T), 1, 5)
    there = rng.random(stars.shape) < 0.7
    there[np.arange(users), np.arange(users) % movies] = True
    user, movie = np.nonzero(there)
    return pd.DataFrame({"user_id": user + 1, "movie_id": 10 * movie + 7, "rating": stars[there].astype(int)})


def counts_of(frame: pd.DataFrame) -> Counts:
    stars = tuple(int((frame["rating"] == k).sum()) for k in range(1, 6))
    return Counts(len(frame), frame["user_id"].nunique(), frame["movie_id"].nunique(), stars)


def as_dat(frame: pd.DataFrame) -> bytes:
    rows = frame.itertuples(index=False)
    return b"".join(
        f"{r.user_id}::{r.movie_id}::{r.rating}::97830{k:04d}\n".encode() for k, r in enumerate(rows)
    )


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """The same ratings in each form, in another order in each."""
    frame = made_up()
    found = {
        kind: tmp_path / name
        for kind, name in (("dat", "ratings.dat"), ("zip", "ml-1m.zip"), ("parquet", "r.parquet"))
    }
    found["dat"].write_bytes(as_dat(frame.sample(frac=1.0, random_state=1)))
    with zipfile.ZipFile(found["zip"], "w") as archive:
        archive.writestr("ml-1m/README", "terms")
        archive.writestr("ml-1m/ratings.dat", as_dat(frame).replace(b"\n", b"\r\n"))
    frame.sample(frac=1.0, random_state=2).astype({"user_id": "int16", "rating": "int8"}).to_parquet(
        found["parquet"]
    )
    return found


# --- the reader -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dat", "zip", "parquet"])
def test_every_form_gives_the_same_ratings(files: dict[str, Path], kind: str) -> None:
    frame = made_up()
    found = read_ratings(files[kind], counts_of(frame))
    assert found.users[found.user].tolist() == frame["user_id"].tolist()
    assert found.movies[found.movie].tolist() == frame["movie_id"].tolist()
    assert found.rating.tolist() == frame["rating"].tolist()
    triples = np.concatenate([frame[name].to_numpy("<i8") for name in ("user_id", "movie_id", "rating")])
    assert found.checksum == hashlib.sha256(triples.tobytes()).hexdigest()


def test_an_unpacked_archive_is_read(files: dict[str, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(files["zip"]) as archive:
        archive.extractall(tmp_path)
    found = read_ratings(tmp_path / "ml-1m", counts_of(made_up()))
    assert found.checksum == read_ratings(files["dat"], counts_of(made_up())).checksum


def test_floats_that_are_whole_are_read(tmp_path: Path) -> None:
    frame = made_up()
    frame.astype("float64").to_parquet(tmp_path / "r.parquet")
    assert read_ratings(tmp_path / "r.parquet", counts_of(frame)).rating.tolist() == frame["rating"].tolist()


@pytest.mark.parametrize("kind", ["dat", "parquet"])
def test_a_file_that_lacks_its_end_is_refused_with_what_is_missing(tmp_path: Path, kind: str) -> None:
    frame = made_up()
    cut = frame[frame["user_id"] < 59]
    lost = frame[frame["user_id"] >= 59]
    path = tmp_path / f"ratings.{kind}"
    if kind == "dat":
        path.write_bytes(as_dat(cut))
    else:
        cut.to_parquet(path)
    with pytest.raises(LogError) as caught:
        read_ratings(path, counts_of(frame))
    text = str(caught.value)
    assert f"missing {len(lost)} ratings ({len(cut):,} of {len(frame):,})" in text
    assert "missing 2 users (58 of 60)" in text
    assert "The last user is 58." in text
    stars = int((lost["rating"] == 4).sum())
    assert f"missing {stars} ratings of 4 stars" in text
    assert "movies" not in text.partition("missing 2 users")[2].partition("The last")[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"1::7::3::978300760\n1::17::4::9783",
            None,
        ),  # ends inside a row that still looks whole: the counts tell
        (b"1::7::3::978300760\n1::17::", r"Row 2 of .* is '1::17::'; user::movie::rating::time"),
        (b"1::7::3::978300760\n\n1::17::4::978300760\n", "Row 2 of .* is ''"),
        (b"user_id,movie_id,rating\n1,7,3\n", "Row 1 of .* is 'user_id,movie_id,rating'"),
        (b"1::7::x::978300760\n", "Row 1"),
        (b"1::7::3::978300760\n1::7::4::978300761\n", r"user 1 and movie 7 twice \(row 1"),
        (b"", r"missing .* ratings \(0 of"),
    ],
)
def test_text_that_is_no_list_of_ratings_is_refused_by_row(
    tmp_path: Path, content: bytes, said: str | None
) -> None:
    path = tmp_path / "ratings.dat"
    path.write_bytes(content)
    with pytest.raises(LogError, match=said or "is not all of MovieLens 1M"):
        read_ratings(path, counts_of(made_up()))


def test_too_many_ratings_are_told_as_such(tmp_path: Path) -> None:
    frame = made_up()
    more = pd.concat([frame, pd.DataFrame({"user_id": [61], "movie_id": [7], "rating": [5]})])
    more.to_parquet(tmp_path / "r.parquet")
    with pytest.raises(LogError, match=r"1 too many ratings .*1 too many users"):
        read_ratings(tmp_path / "r.parquet", counts_of(frame))


def test_archives_that_are_torn_or_of_something_else_are_refused(files: dict[str, Path]) -> None:
    path = files["zip"]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LogError, match=r"no whole zip archive.*ml-1m.zip again"):
        read_ratings(path, counts_of(made_up()))
    spoilt = bytearray(whole)
    spoilt[whole.find(b"::") - 1] ^= 1
    path.write_bytes(bytes(spoilt))
    with pytest.raises(LogError, match="no whole zip archive"):
        read_ratings(path, counts_of(made_up()))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/u.data", "")
    with pytest.raises(LogError, match=r"holds no ratings.dat, but a/u.data"):
        read_ratings(path, counts_of(made_up()))


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            lambda f: f.rename(columns={"rating": "stars"}),
            SchemaError,
            "no column 'rating'; it has user_id, movie_id, stars",
        ),
        (lambda f: f.assign(rating=f["rating"] + 0.5), LogError, "rating of row 0 is"),
        (lambda f: f.assign(user_id=f["user_id"].where(f.index != 3)), LogError, "user_id of row 3 is nan"),
        (lambda f: f.assign(movie_id=f["movie_id"].astype(str)), SchemaError, "movie_id is of type"),
        (lambda f: pd.concat([f, f.tail(1)]), LogError, "twice"),
    ],
)
def test_tables_that_cannot_be_ratings_are_refused(
    tmp_path: Path, change: Any, error: type, said: str
) -> None:
    change(made_up()).to_parquet(tmp_path / "r.parquet")
    with pytest.raises(error, match=said):
        read_ratings(tmp_path / "r.parquet", counts_of(made_up()))


def test_no_file_is_refused(tmp_path: Path) -> None:
    for name in ("ratings.dat", "ml-1m.zip", "r.parquet"):
        with pytest.raises(InputError, match=name):
            read_ratings(tmp_path / name, counts_of(made_up()))


@pytest.mark.slow
def test_the_real_ratings_have_the_known_counts_and_less_is_refused(tmp_path: Path) -> None:
    path = real_table("ml1m_ratings_notime.parquet")
    counts = settings_of(shipped(), "paper.toml").movielens.counts
    found = read_ratings(path, counts)
    assert (found.rating.size, found.users.size, found.movies.size) == (1000209, 6040, 3706)
    pd.read_parquet(path).iloc[:-5].to_parquet(tmp_path / "cut.parquet")
    with pytest.raises(LogError, match=r"missing 5 ratings \(1,000,204 of 1,000,209\)"):
        read_ratings(tmp_path / "cut.parquet", counts)


# --- clusters -------------------------------------------------------------------------------------------------------


def blobs(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shape = np.array([[1.0, 0.4], [0.0, 0.5]])
    parts = [
        rng.standard_normal((n, 2)) @ (s * shape) + c
        for n, s, c in ((300, 1.0, 0), (200, 0.4, 4), (100, 0.7, -5))
    ]
    return np.concatenate(parts)


def test_em_reaches_a_maximum_that_another_implementation_does_not_leave() -> None:
    points = blobs()
    found = best_of(points, 3, np.random.default_rng(0), starts=3, tolerance=1e-9)
    precisions = np.stack([np.linalg.solve(cov, np.eye(2)) for cov in found.covs])
    other = GaussianMixture(
        3, tol=1e-9, max_iter=1000, reg_covar=1e-6,
        weights_init=found.weights, means_init=found.means, precisions_init=precisions,
    ).fit(points)  # fmt: skip
    assert found.score == pytest.approx(other.score(points), abs=1e-6)
    assert found.means == pytest.approx(other.means_, abs=1e-3)
    assert np.array_equal(found.labels, other.predict(points))
    assert np.bincount(found.labels)[found.largest] == np.bincount(found.labels).max()
    assert found.weights.sum() == pytest.approx(1.0)


def test_the_score_is_the_mean_log_likelihood_and_starts_are_compared_by_it() -> None:
    from scipy.stats import multivariate_normal

    points = blobs(1)
    starts = [one_start(points, 3, np.random.default_rng(k), tolerance=1e-2) for k in range(6)]
    for each in starts:
        parts = [
            w * multivariate_normal(m, c).pdf(points)
            for w, m, c in zip(each.weights, each.means, each.covs, strict=True)
        ]
        one_more = np.log(sum(parts)).mean()
        assert each.score == pytest.approx(one_more)
    rng, again = np.random.default_rng(9), np.random.default_rng(9)
    best = best_of(points, 5, rng, starts=4, tolerance=1e-2)
    tried = [one_start(points, 5, again, tolerance=1e-2) for _ in range(4)]
    assert all(each.regular for each in tried)
    assert best.score == max(each.score for each in tried)


def test_a_cluster_that_closes_in_on_a_few_points_is_not_taken() -> None:
    points = np.concatenate([np.random.default_rng(0).standard_normal((60, 2)), np.full((2, 2), 1e4)])
    assert not one_start(points, 2, np.random.default_rng(0), tolerance=1e-3).regular
    with pytest.raises(NumericalError, match="closed in on a few points"):
        best_of(points, 2, np.random.default_rng(0), starts=2, tolerance=1e-3)
    with pytest.raises(InputError, match="3 points cannot make 4 clusters"):
        best_of(points[:3], 4, np.random.default_rng(0), starts=1, tolerance=1e-3)
    same = np.ones((50, 2))
    assert one_start(same, 2, np.random.default_rng(0), tolerance=1e-3).labels.max() == 0


# --- a run ----------------------------------------------------------------------------------------------------------


def small(frame: pd.DataFrame) -> str:
    """Settings for made-up ratings, as text."""
    counts = counts_of(frame)
    changes = {
        r"rank = 10": "rank = 2", r"clusters = 7": "clusters = 3",
        r"tasks = 100\nactions = 10": "tasks = 8\nactions = 4",
        r"rows_grid = \[500, .*\]": "rows_grid = [80, 200]",
        r"runs = 100\nfew_runs = 10": "runs = 4\nfew_runs = 2",
        r"ratings = 1000209": f"ratings = {counts.ratings}", r"users = 6040": f"users = {counts.users}",
        r"movies = 3706": f"movies = {counts.movies}", r"by_rating = .*": f"by_rating = {list(counts.by_rating)}",
        r"evaluation_contexts = 100": "evaluation_contexts = 20",
        r"runs = 30\nrows = \[500, 5000\]": "runs = 3\nrows = [80]",
        r"runs = 30\nrows_grid = .*": "runs = 3\nrows_grid = [150]",
    }  # fmt: skip
    text = shipped()
    for old, new in changes.items():
        text, found = re.subn(old, new, text)
        assert found, old
    return text


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, movielens.Problem]:
    frame = made_up()
    path = tmp_path_factory.mktemp("ratings") / "r.parquet"
    frame.to_parquet(path)
    settings = settings_of(small(frame), "small.toml")
    return settings, movielens.make_problem(settings, read_ratings(path, settings.movielens.counts))


def read_as(settings: Settings, **open_: Any) -> Settings:
    what = settings.movielens
    return replace(settings, movielens=replace(what, open=replace(what.open, **open_)))


def test_the_shipped_settings_are_the_papers() -> None:
    what = settings_of(shipped(), "paper.toml").movielens
    assert (what.rank, what.ridge, what.noise_sd, what.clusters) == (10, 1.0, 0.759, 7)
    assert (what.tasks, what.actions) == (100, 10)
    assert (what.few_runs, what.runs) == (10, 100)
    assert (what.counts.ratings, what.counts.users, what.counts.movies) == (1000209, 6040, 3706)
    assert sum(what.counts.by_rating) == 1000209


def test_the_prior_is_that_of_the_centres_and_the_largest_cluster(setup: Any) -> None:
    settings, _ = setup
    rng = np.random.default_rng(0)
    means, weights = rng.standard_normal((3, 5)), np.array([0.2, 0.5, 0.3])
    covs = np.stack([(k + 1.0) * np.eye(5) for k in range(3)])
    clusters = Clusters(weights, means, covs, np.repeat([0, 1, 2], [4, 10, 6]), 0.0)

    def prior(**open_: Any) -> Hierarchy:
        return movielens.prior(settings.movielens, replace(settings.movielens.open, **open_), clusters)

    found = prior()
    assert found.hyper is not None
    assert found.hyper.mean == pytest.approx(means.mean(axis=0))
    assert found.hyper.cov == pytest.approx(np.cov(means.T))
    assert np.linalg.matrix_rank(found.hyper.cov) == 2  # one less than there are centres
    assert np.array_equal(found.task_cov, covs[1])
    assert found.noise_var == pytest.approx(0.759**2)
    assert prior(hyper_cov="population").hyper.cov == pytest.approx(np.cov(means.T, ddof=0))
    by_size = prior(centres="by size", hyper_cov="population").hyper
    assert by_size.mean == pytest.approx(weights @ means)
    assert by_size.cov == pytest.approx(np.cov(means.T, aweights=weights, ddof=0))


def test_contexts_are_sets_of_distinct_movies_each_as_likely() -> None:
    found = movielens.draw_contexts(np.zeros((5, 1)), (30_000, 3), np.random.default_rng(0))
    ordered = np.sort(found, axis=1)
    assert (np.diff(ordered, axis=1) > 0).all()
    _, counts = np.unique(ordered, axis=0, return_counts=True)
    assert counts.size == 10
    assert np.abs(counts - 3000).max() < 5 * np.sqrt(3000)


def test_a_world_has_the_users_of_the_largest_cluster_and_their_rewards(setup: Any) -> None:
    settings, given = setup
    once = read_as(settings, clusters_found="once", starts=3)
    problem = replace(
        given,
        clusters={
            once.movielens.open: best_of(given.users, 3, np.random.default_rng(0), starts=3, tolerance=1e-3)
        },
    )
    clusters = problem.clusters[once.movielens.open]
    world = movielens.draw(once, problem, movielens.Cell(200), 0)
    members = given.users[clusters.labels == clusters.largest]
    assert world.theta.shape == (8, 2)
    assert all((members == theta).all(axis=1).any() for theta in world.theta)
    assert len(np.unique(world.theta, axis=0)) == 8
    assert np.array_equal(world.root, clusters.means[clusters.largest])
    assert world.candidates.shape == (8, 20, 4, 2)
    assert world.moments.n_rows == 200
    rows = movielens.draw_rows(once, problem, movielens.Cell(200), 0)
    assert np.array_equal(rows.movies[rows.judged], world.candidates)
    mine = rows.task == 3
    phi = rows.movies[rows.candidates[mine, rows.action[mine]]]
    assert world.moments.cross(3) == pytest.approx(phi.T @ rows.reward[mine])
    # least squares on many rows of each task gives its theta back, with the noise that was asked for
    many = movielens.draw(once, problem, movielens.Cell(80_000), 0)
    for s in range(8):
        theta = np.linalg.solve(many.moments.gram(s), many.moments.cross(s))
        assert theta == pytest.approx(many.theta[s], abs=0.05)
        rest = many.moments.reward_squares(s) - theta @ many.moments.cross(s)
        assert rest / many.moments.rows[many.moments.keys.find(s)] == pytest.approx(0.759**2, rel=0.05)


def test_each_reading_changes_what_it_says(setup: Any) -> None:
    settings, given = setup
    cell = movielens.Cell(200)

    def world(run: int = 0, **open_: Any) -> Any:
        return movielens.draw(read_as(settings, **open_), given, cell, run)

    usual = world()
    assert not np.array_equal(world(run=1).theta, usual.theta)
    assert not np.array_equal(world(run=1).root, usual.root)  # other clusters in each run
    assert np.array_equal(
        movielens.draw(settings, given, movielens.Cell(80), 0).root, usual.root
    )  # the same at each n
    drawn = world(truth="drawn")
    assert not any((given.users == theta).all(axis=1).any() for theta in drawn.theta)
    assert sorted(world(rows_of_tasks="even").moments.rows) == [25] * 8
    unrated = world(unrated_movies=300)
    share = (unrated.candidates == 0).all(axis=-1).mean()
    assert share == pytest.approx(300 / 330, abs=0.05)
    assert not (usual.candidates == 0).all(axis=-1).any()
    fixed = read_as(settings, users_drawn="once", clusters_found="once")
    problem = replace(
        given,
        clusters={
            fixed.movielens.open: best_of(given.users, 3, np.random.default_rng(0), starts=1, tolerance=1e-3)
        },
    )
    assert np.array_equal(
        movielens.draw(fixed, problem, cell, 0).theta, movielens.draw(fixed, problem, cell, 5).theta
    )


def test_clusters_that_all_runs_share_are_found_beforehand(setup: Any) -> None:
    settings, given = setup
    assert {each.clusters_found for each in given.clusters} == {"once"}
    names = [
        name for name, change in settings.movielens.alternatives.of.items() if "clusters_found" in change
    ]
    assert len(given.clusters) == len(names) == 2
    cell = movielens.Cell(80, names[0])
    assert np.array_equal(
        movielens.draw(settings, given, cell, 0).root, movielens.draw(settings, given, cell, 1).root
    )


def test_too_few_users_in_the_largest_cluster_are_refused(setup: Any) -> None:
    settings, given = setup
    many = replace(settings, movielens=replace(settings.movielens, tasks=50))
    with pytest.raises(InputError, match=r"The largest cluster has \d+ users; movielens.tasks asks for 50"):
        movielens.one_run(many, given, movielens.Cell(80), 0)


def test_a_run_judges_all_algorithms_in_one_world(setup: Any) -> None:
    settings, given = setup
    cell = movielens.Cell(80)
    found = movielens.one_run(settings, given, cell, 3)
    assert found == losses(movielens.draw(settings, given, cell, 3), settings.algorithms)
    assert {each.name for each in settings.algorithms} < set(found)
    assert all(value >= 0 for value in found.values())


def test_the_learned_prior_is_measured_against_the_given_one(setup: Any) -> None:
    settings, given = setup
    found = learned_prior.one_run(settings, given, movielens.Cell(150), 1)
    world = movielens.draw(settings, given, movielens.Cell(150), 1)
    size = np.sqrt(np.trace(world.prior.task_cov))
    away = condition(world.moments, world.prior).hyper.mean - world.root
    assert found[learned_prior.GIVEN_MEAN] == pytest.approx(np.linalg.norm(away) / size)
    assert set(found) == set(learned_prior.FIGURES)
    assert all(np.isfinite(value) and value >= 0 for value in found.values())


# --- beyond ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_figure_beyond_is_what_a_loop_finds(setup: Any) -> None:
    settings, given = setup
    found = beyond.one_run(settings, given, beyond.Cell(150), 1)
    log = beyond.draw(settings, given, beyond.Cell(150), 1)
    values: dict[str, list[float]] = {}
    lost = []
    for s, user in enumerate(log.users):
        total = dict.fromkeys(("most", "best", "logged", "learned", "max"), 0.0)
        learned = beyond.CHOOSERS[beyond.LEARNED](settings, given, log)
        for e, movies in enumerate(log.judged[s]):
            stars = [float(given.users[user] @ given.movies[movie]) for movie in movies]
            total["most"] += stars[int(np.argmax([given.counts[movie] for movie in movies]))]
            total["best"] += stars[int(np.argmax([given.means[movie] for movie in movies]))]
            total["logged"] += float(np.mean(stars))
            total["learned"] += stars[learned[s, e]]
            total["max"] += max(stars)
        for name, value in total.items():
            values.setdefault(name, []).append(value / log.judged.shape[1])
    lost = np.array(values["max"]) - np.array(values["learned"])
    assert found[f"{beyond.MOST_RATED}: {beyond.VALUE}"] == pytest.approx(np.mean(values["most"]))
    assert found[f"{beyond.BEST_RATED}: {beyond.VALUE}"] == pytest.approx(np.mean(values["best"]))
    assert found[f"{beyond.AS_LOGGED}: {beyond.VALUE}"] == pytest.approx(np.mean(values["logged"]))
    assert found[f"{beyond.LEARNED}: {beyond.VALUE}"] == pytest.approx(np.mean(values["learned"]))
    tenth = np.interp(0.1 * 7, range(8), sorted(values["learned"]))  # of eight users
    assert found[f"{beyond.LEARNED}: {beyond.TENTH}"] == pytest.approx(tenth)
    assert found[f"{beyond.LEARNED}: {beyond.LOSS}"] == pytest.approx(lost.mean())
    for name, of in ((beyond.WORSE_THAN_MOST, "most"), (beyond.WORSE_THAN_BEST, "best")):
        share = np.mean([mine < theirs for mine, theirs in zip(values["learned"], values[of], strict=True)])
        assert found[f"{beyond.LEARNED}: {name}"] == share
    assert found[f"{beyond.MOST_RATED}: {beyond.WORSE_THAN_MOST}"] == 0.0
    assert set(found) == {f"{name}: {figure}" for name in beyond.NAMES for figure in beyond.FIGURES}


@pytest.mark.slow
def test_what_is_from_the_log_alone_sees_nothing_else(setup: Any) -> None:
    settings, given = setup
    log = beyond.draw(settings, given, beyond.Cell(150), 0)
    rng = np.random.default_rng(0)
    other = replace(given, users=rng.permutation(given.users), counts=rng.random(30), means=rng.random(30))
    recentred = replace(
        log.clusters, labels=rng.permutation(log.clusters.labels), means=rng.permuted(log.clusters.means)
    )
    unlike = replace(log, clusters=recentred, users=rng.permutation(log.users))
    same = {
        name: np.array_equal(choose(settings, given, log), choose(settings, other, unlike))
        for name, choose in beyond.CHOOSERS.items()
    }
    alone = {beyond.LEARNED, "each user alone", "all users as one", "best movie of the log"}
    assert {name for name, equal in same.items() if equal} == alone


def test_a_known_cluster_is_the_prior_of_its_users(setup: Any) -> None:
    settings, given = setup
    log = beyond.draw(settings, given, beyond.Cell(150), 2)
    found = beyond.CHOOSERS["own cluster known"](settings, given, log)
    for s, user in enumerate(log.users):
        k = log.clusters.labels[user]
        gram, cross = log.moments.gram(s) / 0.759**2, log.moments.cross(s) / 0.759**2
        precision = np.linalg.solve(log.clusters.covs[k], np.eye(2))
        cov = np.linalg.solve(precision + gram, np.eye(2))
        mean = cov @ (precision @ log.clusters.means[k] + cross)
        for e, movies in enumerate(log.judged[s]):
            phi = given.movies[movies]
            bound = phi @ mean - 0.1 * np.sqrt(np.einsum("ki,ij,kj->k", phi, cov, phi))
            assert found[s, e] == bound.argmax()


def test_the_log_ranks_movies_by_mean_rewards_drawn_to_that_of_all(setup: Any) -> None:
    settings, given = setup
    log = beyond.draw(settings, given, beyond.Cell(150), 0)
    score = np.empty(30)
    for movie in range(30):
        mine = log.reward[log.movie == movie]
        score[movie] = (mine.sum() + 5 * log.reward.mean()) / (mine.size + 5)
    assert np.array_equal(
        beyond.CHOOSERS["best movie of the log"](settings, given, log), score[log.judged].argmax(axis=2)
    )


# --- the download ---------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[tuple[str, bytes]]:
    """A server of one file on this machine."""
    content = b"not MovieLens" * 1000

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/file" else 404)
            self.end_headers()
            if self.path == "/file":
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{found.server_port}", content
    found.shutdown()
    found.server_close()
    thread.join()


def test_a_download_is_checked_before_it_is_kept(server: tuple[str, bytes], tmp_path: Path) -> None:
    url, content = server
    target = tmp_path / "cache" / "ml-1m.zip"
    known = hashlib.sha256(content).hexdigest()
    with pytest.raises(InputError, match="is not the known MovieLens 1M: 13,000 bytes"):
        grouplens.download(target, url=f"{url}/file")
    with pytest.raises(InputError, match="404"):
        grouplens.download(target, url=f"{url}/other")
    with pytest.raises(InputError, match=r"cannot be reached.*--data"):
        grouplens.download(target, url="http://127.0.0.1:9/file")
    assert not target.exists()
    assert (
        grouplens.download(target, url=f"{url}/file", sha256=known, size=len(content)).read_bytes() == content
    )
    assert list(target.parent.iterdir()) == [target]


def invoke(*words: str, **more: Any) -> Any:
    return CliRunner().invoke(main, ["reproduce", "movielens", *words], **more)


def test_without_ratings_nothing_is_fetched_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(
        grouplens.urllib.request, "urlopen", lambda *_, **__: pytest.fail("the network was used")
    )
    found = invoke("-o", str(tmp_path / "x"))
    assert found.exit_code == 2
    assert "--data" in found.output
    assert "--download" in found.output
    assert not (tmp_path / "x").exists()


def test_the_terms_are_shown_before_a_download_and_the_cache_is_used(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = []

    def fetch(url: str, **_: Any) -> Any:
        asked.append(url)
        raise TimeoutError("too slow")

    monkeypatch.setattr(grouplens.urllib.request, "urlopen", fetch)
    found = invoke("-o", str(tmp_path / "x"), "--download", "--no-figures")
    assert asked == [grouplens.URL]
    assert found.exit_code == 1
    assert "it may not be passed on" in found.output
    assert "cannot be reached: too slow" in found.output
    grouplens.cached().parent.mkdir(parents=True)
    grouplens.cached().write_bytes(files["zip"].read_bytes())
    found = invoke("-o", str(tmp_path / "x"), "--no-figures")
    assert len(asked) == 1
    assert "ml-1m.zip is not all of MovieLens 1M" in found.output


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_leaves_tables_that_do_not_depend_on_the_form_of_the_ratings(
    files: dict[str, Path], tmp_path: Path
) -> None:
    settings = tmp_path / "small.toml"
    settings.write_text(small(made_up()))
    told = {}
    for kind in ("zip", "parquet"):
        out = tmp_path / kind
        found = invoke(
            "--data",
            str(files[kind]),
            "--settings",
            str(settings),
            "-o",
            str(out),
            "--json",
            "--processes",
            "1",
        )
        assert found.exit_code == 0, found.output
        said = json.loads(found.stdout)
        told[kind] = said["results"]
        told[f"{kind}, beyond"] = said["beyond"]
    assert told["zip"] == told["parquet"]
    assert told["zip, beyond"] == told["parquet, beyond"]
    assert {each["runs"] for each in told["zip, beyond"]} == {3}
    assert f"| {beyond.LEARNED} |" in (out / "beyond.md").read_text()
    assert f"| {learned_prior.SD} |" in (out / "prior.md").read_text()
    assert {each["runs"] for each in told["zip"] if each["reading"] != "as set"} == {3}
    assert {each["runs"] for each in told["zip"] if each["reading"] == "as set"} == {2, 3, 4}
    few = [each for each in told["zip"] if each["runs"] == 2]
    assert {each["reading"] for each in few} == {"as set"}
    assert {each["rows"] for each in few} == {80, 200}
    text = (out / "results.md").read_text()
    assert "## 2 runs" in text
    assert "## 4 runs" in text
    assert "may not be passed on" in text
    assert read_ratings(files["zip"], counts_of(made_up())).checksum in text
    assert "| clusters_found = once |" in text
    assert {path.suffix for path in out.iterdir()} == {".md", ".parquet", ".jsonl", ".svg", ".png"}
    shown = invoke("--data", str(files["zip"]), "--settings", str(settings), "-o", str(out), "--no-figures")
    assert "From bandit feedback alone" in shown.output
    assert f"Standard errors: {out / 'beyond.md'}." in shown.output.replace("\n", " ")
