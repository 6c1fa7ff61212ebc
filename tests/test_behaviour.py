"""agent/behaviour.py: what episodes draw, what the vote learns of them, and what is evaluated."""

import json

import numpy as np
import pytest

from dicerl.agent.behaviour import Behaviour, Behaviours, draw_behaviour
from dicerl.config.presets import preset
from dicerl.core import family
from dicerl.core.bandit import MAX_X


def behaviours(num_actors=1, **changes):
    return Behaviours(preset("debug", **changes), num_actors)


def behaviour_of(t, *values):
    """An episode's behaviour with these values."""
    pairs = zip(t.names, values, strict=True)
    return Behaviour(tuple(float(family.to_x(name, value)) for name, value in pairs), values)


MIXTURE = {"behaviour.family": "mixture"}


@pytest.mark.parametrize("source", ["bandit", "distribution"])
def test_a_mixture_draws_ordered_temperatures(source):
    t = behaviours(**MIXTURE, **{"behaviour.source": source})
    assert t.names == ("inv_temperature_low", "inv_temperature_high", "weight_low")
    drawn = np.array([t.next().values for _ in range(400)])
    assert (drawn[:, 0] <= drawn[:, 1]).all()
    assert (drawn >= 0).all()
    assert (drawn <= [50, 50, 1]).all()
    assert 0.4 < drawn[:, 2].mean() < 0.6
    x = np.log1p(drawn[:, :2])
    # the smaller and the larger of two uniform draws
    np.testing.assert_allclose(x.mean(0), [MAX_X / 3, 2 * MAX_X / 3], atol=0.25)


def test_every_parameter_has_as_many_tiles():
    votes = behaviours(**MIXTURE).votes[0].votes
    assert [v.bandits[0].num_tiles for v in votes] == [39, 39, 39]
    assert [(v.bandits[0].left, v.bandits[0].right) for v in votes] == [
        (0.0, pytest.approx(MAX_X))
    ] * 2 + [(0.0, 1.0)]
    # each with a stream of its own
    assert len({tuple(v.sample() for _ in range(3)) for v in votes}) == 3


@pytest.mark.parametrize("name", family.NUMBERS)
def test_an_update_reaches_the_tile_of_what_was_drawn(name):
    """next -> episode -> update: every coordinate's count lies where its draw came from; float32
    rounding on the way does no harm.
    """
    t = behaviours(**{"behaviour.family": name})
    for _ in range(50):
        drawn = t.next()
        acted = drawn._replace(values=tuple(float(np.float32(v)) for v in drawn.values))
        before = [v.counts() for v in t.votes[0].votes]
        t.update(acted, 1.0)
        for vote, counts, parameter, x, value in zip(
            t.votes[0].votes, before, t.names, drawn.x, drawn.values, strict=True
        ):
            changed = np.flatnonzero(vote.counts() - counts)
            assert changed.tolist() == [vote.bandits[0].tile(x)]
            assert float(family.to_x(parameter, value)) == pytest.approx(x, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"behaviour.source": "fixed"}, (1.0,)),
        (
            {"behaviour.source": "fixed", "behaviour.family": "epsilon", "behaviour.epsilon": 0.2},
            (0.2,),
        ),
        (
            {
                "behaviour.source": "fixed",
                "behaviour.family": "mixture",
                "behaviour.mixture": (2.0, 9.0, 0.3),
            },
            (2.0, 9.0, 0.3),
        ),
        (
            {"behaviour.source": "fixed", "behaviour.family": "epsilon", "behaviour.epsilon": 0.0},
            (0.0,),
        ),
        (
            {
                "behaviour.source": "fixed",
                "behaviour.family": "conditioned",
                "behaviour.inv_temperature": 0.0,
            },
            (0.0,),
        ),
    ],
    ids=str,
)
def test_a_fixed_behaviour_is_drawn_and_evaluated_as_it_is(changes, expected):
    t = behaviours(**changes)
    for _ in range(3):
        assert t.next().values == expected
        t.update(t.next(), 5.0)  # the shadow vote learns from it
    region = t.evaluation_region()
    drawn = draw_behaviour(preset("debug", **changes), region, np.random.default_rng(0), 4)
    np.testing.assert_allclose(drawn, np.tile(np.float32(expected), (4, 1)), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("name", family.NUMBERS)
def test_evaluation_episodes_lie_in_the_best_region(name):
    changes = {"behaviour.family": name}
    t = behaviours(**changes)
    # before any episode: everywhere
    assert t.best_region() == [(0.0, pytest.approx(family.largest_x(p, 50.0))) for p in t.names]
    good = {
        "inv_temperature": 10.0,
        "epsilon": 0.1,
        "inv_temperature_low": 0.5,
        "inv_temperature_high": 20.0,
        "weight_low": 0.4,
    }
    best = tuple(good[p] for p in t.names)
    for _ in range(20):
        t.update(behaviour_of(t, *best), 100.0)
        t.update(t.next(), 1.0)
    region = t.evaluation_region()
    assert region == t.best_region()
    for (low, high), p, value in zip(region, t.names, best, strict=True):
        assert low <= float(family.to_x(p, value)) < high
        assert t.favoured()[p][0] <= value <= t.favoured()[p][1]
    drawn = draw_behaviour(preset("debug", **changes), region, np.random.default_rng(0), 100)
    assert drawn.shape == (100, len(t.names))
    assert drawn.dtype == np.float32
    for i, p in enumerate(t.names):
        low, high = t.favoured()[p]
        assert ((drawn[:, i] >= low * 0.999) & (drawn[:, i] <= high * 1.001)).all()
        assert len(np.unique(drawn[:, i])) > 50


def test_evaluation_draws_of_a_mixture_are_ordered_even_where_the_regions_overlap():
    config = preset("debug", **MIXTURE)
    drawn = draw_behaviour(
        config, [(1.0, 2.0), (0.5, 1.5), (0.2, 0.3)], np.random.default_rng(0), 500
    )
    assert (drawn[:, 0] <= drawn[:, 1]).all()
    assert ((drawn[:, 2] >= 0.2) & (drawn[:, 2] <= 0.3)).all()
    assert np.expm1(0.5) <= drawn[:, :2].min() < np.expm1(1.0)
    assert np.expm1(1.5) < drawn[:, :2].max() <= np.expm1(2.0)


def test_the_state_of_a_mixture_s_votes_goes_through_json():
    a, b = behaviours(**MIXTURE), behaviours(seed=5, **MIXTURE)
    for _ in range(20):
        a.update(a.next(), 1.0)
    b.load_state_dict(json.loads(json.dumps(a.state_dict())))
    assert [a.next() for _ in range(5)] == [b.next() for _ in range(5)]
    assert a.favoured() == b.favoured()


def test_with_a_vote_for_each_actor_the_best_region_is_that_of_all():
    t = behaviours(num_actors=2, **MIXTURE, **{"bandit.scope": "actor"})
    assert t.next(0) != t.next(1)
    t.update(behaviour_of(t, 1.0, 10.0, 0.5), 5.0, actor=0)
    t.update(behaviour_of(t, 2.0, 30.0, 0.1), 50.0, actor=1)
    for (low, high), p, value in zip(t.best_region(), t.names, (2.0, 30.0, 0.1), strict=True):
        assert low <= float(family.to_x(p, value)) < high
    assert [v.counts().sum() for joint_vote in t.votes for v in joint_vote.votes] == [1] * 6


# --- docs/paper.md 2.7: random is the initial distribution, whatever came back --------------------


def chi_square(x, right=MAX_X, bins=20):
    """The statistic of uniformity over [0, right]; with 19 degrees of freedom 43.8 is passed by one
    uniform sample in a thousand.
    """
    seen = np.histogram(x, bins, (0.0, right))[0]
    assert seen.sum() == len(x)
    return float(((seen - len(x) / bins) ** 2).sum() / (len(x) / bins))


@pytest.mark.parametrize(("source", "uniform"), [("distribution", True), ("bandit", False)])
def test_after_many_returns_only_the_initial_distribution_is_uniform_in_x(source, uniform):
    t = behaviours(**{"behaviour.source": source})
    x = []
    for _ in range(2000):
        behaviour = t.next()
        x.append(float(np.log1p(behaviour.values[0])))
        t.update(behaviour, 10 * x[-1])  # colder pays
    assert (chi_square(x[500:]) < 43.8) is uniform
    if not uniform:
        assert chi_square(x[500:]) > 300


def test_a_region_at_the_greedy_end_is_said():
    behaviours = Behaviours(preset("paper"), 1)
    assert behaviours.at_end() == []  # nothing is known yet
    for x, expected in ((0.01, []), (MAX_X - 0.01, ["inv_temperature"]), (2.0, [])):
        for _ in range(200):
            behaviours.update(Behaviour((x,), (0.0,)), 10.0 if x == 2.0 else x)
        assert behaviours.at_end() == expected, x
