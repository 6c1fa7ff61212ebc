"""parts/actor.py alone: what its episodes carry, and how long its windows stay as they were sent.
What it records is compared with what the environments gave in test_pipeline.py.
"""

import contextlib
import itertools

import numpy as np
import pytest
import torch

import probe
from dicerl.agent.behaviour import Behaviour, Behaviours
from dicerl.config.presets import preset
from dicerl.core import family
from dicerl.envs import make_vector_env
from dicerl.errors import EnvironmentFailed

# --- the x that was drawn -------------------------------------------------------------------------


def through_float32(name, x):
    """The x of a value that went through the actor's arrays."""
    return float(family.to_x(name, np.float64(np.float32(family.from_x(name, x)))))


def lost_at_a_border(name, bandit):
    """Points x right at the border of a tile that land in the next one if their value goes through
    float32.
    """
    found = []
    for tile in range(1, bandit.num_tiles):
        border = bandit.edges(tile)[0]
        for towards in (0.0, bandit.right):
            x = border
            for _ in range(4):
                if bandit.tile(through_float32(name, x)) != bandit.tile(x):
                    found.append(float(x))
                    break
                x = np.nextafter(x, towards)
    return found


CONFIGS = {
    "boltzmann": {},
    "epsilon": {"behaviour.family": "epsilon"},
    "mixture": {"behaviour.family": "mixture"},
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_vote_is_taught_the_tile_that_was_drawn(kind):
    """Every x lies right at a border, where the float32 that acts falls into the tile beside it: an
    episode carries the x through.
    """
    config = preset("debug", **CONFIGS[kind])
    behaviours = Behaviours(config, 1)
    votes = behaviours.votes[0].votes
    points = [
        lost_at_a_border(name, vote.bandits[0])
        for name, vote in zip(behaviours.names, votes, strict=True)
    ]
    assert min(map(len, points)) >= 5
    draws = itertools.cycle(zip(*map(itertools.cycle, points), strict=False))
    drawn, ended = [], []

    def next_behaviours(wanted):
        new = [next(draws) for _ in range(wanted)]
        new = [
            Behaviour(
                x,
                tuple(float(family.from_x(n, v)) for n, v in zip(behaviours.names, x, strict=True)),
            )
            for x in new
        ]
        drawn.extend(new)
        return lambda: new

    actor = probe.actor_of(
        config, probe.Small, 3, end_episodes=ended.extend, next_behaviours=next_behaviours
    )
    while len(ended) < 20:
        actor.act()
        actor.advance()
    assert {episode.behaviour.x for episode in ended} <= {behaviour.x for behaviour in drawn}
    for episode in ended:
        before = [vote.counts() for vote in votes]
        behaviours.update(episode.behaviour, episode.episode_return)
        for name, vote, counts, x, acted in zip(
            behaviours.names, votes, before, *episode.behaviour, strict=True
        ):
            visited = np.flatnonzero(vote.counts() - counts).tolist()
            assert visited == [vote.bandits[0].tile(x)]
            rounded = float(family.to_x(name, np.float64(acted)))
            assert visited != [vote.bandits[0].tile(rounded)]  # what its value alone would teach


def test_a_trainable_tau_teaches_the_vote_the_value_that_acted():
    """It was not drawn: x is that of the network's own 1/tau, not of the config's."""
    config = preset("debug", **{"behaviour.source": "trainable", "behaviour.inv_temperature": 2.0})
    ended = []
    actor = probe.actor_of(config, probe.Small, 2, end_episodes=ended.extend)
    actor.model.flat["log_inv_temperature"].fill_(np.log(30.0))  # trained meanwhile
    while len(ended) < 3:
        actor.act()
        actor.advance()
    behaviours = Behaviours(config, 1)
    for episode in ended:
        assert episode.behaviour.values == (pytest.approx(30.0),)
        behaviours.update(episode.behaviour, episode.episode_return)
    (vote,) = behaviours.votes[0].votes
    tile = vote.bandits[0].tile(float(np.log1p(30.0)))
    assert tile != vote.bandits[0].tile(float(np.log1p(2.0)))
    assert np.flatnonzero(vote.counts()).tolist() == [tile]


# --- windows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("burn_in", [0, 4, 11])
def test_windows_stay_as_they_were_sent_until_the_next_advance(burn_in):
    """The receiver may copy them until the actor continues."""
    config = preset(
        "debug",
        **{"sequence.burn_in": burn_in, "sequence.length": 5, "network.last_action_reward": True},
    )
    sent = []

    def send(windows):
        sent.append((windows, {n: a.copy() for n, a in windows.items()}))

    actor = probe.actor_of(config, probe.Small, 3, send_sequences=send)
    changed = set()
    for _ in range(80):
        whole = actor.act()
        assert whole is bool(sent)
        for windows, kept in sent:
            for name, array in kept.items():
                np.testing.assert_array_equal(windows[name], array, err_msg=name)
        actor.advance()
        for windows, kept in sent:  # it is the same memory: the next window has begun
            changed |= {n for n, a in kept.items() if not np.array_equal(windows[n], a)}
        sent.clear()
    assert changed >= {"observation", "action", "reward", "log_prob", "stream"}


@pytest.mark.parametrize("burn_in", [0, 4, 5, 11])
def test_a_window_begins_with_what_stood_before_its_first_step(burn_in):
    """Windows of one step without burn-in have that of every step of the same streams."""

    def windows(burn_in, length):
        config = preset(
            "debug",
            **{
                "sequence.burn_in": burn_in,
                "sequence.length": length,
                "network.last_action_reward": True,
            },
        )
        sent = []

        def send(windows):
            sent.append({n: windows[n].copy() for n in ("state", "last_action", "last_reward")})

        torch.manual_seed(0)  # the same weights
        actor = probe.actor_of(config, probe.Small, 3, send_sequences=send)
        for _ in range(81):
            actor.act()
            actor.advance()
        return sent

    steps = windows(0, 1)
    nothing = {name: np.zeros_like(array) for name, array in steps[0].items()}
    nothing["last_action"] -= 1
    sent = windows(burn_in, 5)
    assert len(sent) == 16
    for number, window in enumerate(sent):
        first = 5 * number - burn_in
        expected = steps[first] if first >= 0 else nothing
        for name, array in window.items():
            np.testing.assert_array_equal(array, expected[name], err_msg=f"{name} of {number}")
    assert all(steps[40][name].any() for name in nothing)


# --- environments that misbehave -----------------------------------------------------------------


class Doubles(probe.Small):
    def step(self, action):
        torch.set_default_dtype(torch.float64)
        return super().step(action)


def test_an_environment_that_leaves_torch_in_inference_mode():
    """Nothing could be trained on what is made then."""

    class Infers(probe.Small):
        def step(self, action):
            left.enter_context(torch.inference_mode())
            return super().step(action)

    actor = probe.actor_of(preset("debug"), Infers, 2)
    actor.act()
    with (
        contextlib.ExitStack() as left,
        pytest.raises(EnvironmentFailed, match="left torch in inference mode"),
    ):
        actor.advance()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: torch.set_default_dtype(torch.float64), "made torch.float64 torch's"),
        (lambda: torch.set_default_device("meta"), "made meta torch's default device"),
    ],
    ids=["dtype", "device"],
)
def test_an_environment_that_changes_torch_when_it_is_made(change, said):
    class Changes(probe.Small):
        def __init__(self):
            super().__init__()
            change()

    try:
        with pytest.raises(EnvironmentFailed, match=said):
            make_vector_env(preset("debug"), 2, Changes)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


def test_what_an_environment_does_wrong_is_told_with_the_actor_and_the_step():
    """Here it changes what every tensor of this process would be from now on."""
    actor = probe.actor_of(preset("debug"), Doubles, 2)
    actor.act()
    try:
        with pytest.raises(EnvironmentFailed, match=r"default type; .* \(actor 0, step 1\)$"):
            actor.advance()
    finally:
        torch.set_default_dtype(torch.float32)
