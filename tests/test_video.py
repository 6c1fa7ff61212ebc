"""evaluate/video.py: a film is the agent's episode, picture by picture, and the strip beside it
shows its numbers.
"""

import json

import numpy as np
import pytest
from ale_py import ALEInterface, LoggerMode, roms
from hypothesis import given, settings
from hypothesis import strategies as st

import dicerl
from dicerl.envs import make_filmed_env
from dicerl.envs.gym import maker
from dicerl.evaluate import video
from dicerl.records import checkpoint
from films import decode


@pytest.fixture
def result(call):
    """The JSON of an evaluation."""

    def run(*args):
        code, out, err = call("evaluate", *args, "--json", "--quiet")
        assert code == 0, err
        assert len(out.splitlines()) == 1
        return json.loads(out)

    return run


def difference(decoded, drawn, side=6):
    """Of each picture, the largest mean difference in brightness of a 6x6 block: the codec's is
    below 7, a paddle elsewhere makes 40.
    [frames]
    """

    def blocks(one, other):
        error = np.abs(
            (one.astype(np.float32) - other.astype(np.float32))
            @ np.array([0.299, 0.587, 0.114], np.float32)
        )
        height, width = error.shape[0] // side, error.shape[1] // side
        return (
            error[: height * side, : width * side]
            .reshape(height, side, width, side)
            .mean((1, 3))
            .max()
        )

    return np.array([blocks(one, other) for one, other in zip(decoded, drawn, strict=True)])


def replay_atari(game, about, sticky=0.0):
    """Another emulator, set up here: (pictures, rewards) of the episode in the sidecar."""
    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setInt("random_seed", about["start"]["seed"])
    ale.setFloat("repeat_action_probability", sticky)
    ale.loadROM(roms.get_rom_path(game))
    ale.reset_game()
    for _ in range(about["start"]["noops"]):
        ale.act(0)
    pictures, rewards = [ale.getScreenRGB()], []
    for action in about["actions"]:
        reward = 0
        for _ in range(4):
            reward += ale.act(ale.getLegalActionSet()[action])
            pictures.append(ale.getScreenRGB())
            if ale.game_over():
                break
        rewards.append(reward)
    return np.stack(pictures), rewards


def replay_gym(env_id, about):
    env = maker(env_id)(render_mode="rgb_array")
    env.reset(seed=about["start"]["seed"])
    pictures, rewards = [env.render()], []
    for action in about["actions"]:
        rewards.append(env.step(action)[1])
        pictures.append(env.render())
    return np.stack(pictures), rewards


def returns_shown(decoded, about, names, per_step):
    """Which of the returns the episode went through is drawn in each picture's strip, found by
    drawing them all.
    """
    height = decoded.shape[1]
    strip = video.Strip(height, names, {})
    # where the return stands
    numbers = slice(0, int(40 * strip.unit)), slice(0, int(60 * strip.unit))
    candidates = sorted({0.0, *np.cumsum(about["rewards"]).tolist()})
    blank = np.zeros(len(names))
    drawn = np.stack([strip.draw(c, 0.0, blank, None)[numbers] for c in candidates]).astype(
        np.int16
    )
    shown = decoded[:, :, -strip.width :][:, numbers[0], numbers[1]]
    nearest = np.abs(shown[:, None] - drawn[None]).mean((2, 3, 4)).argmin(1)
    expected = [0.0] + [
        total
        for total, count in zip(np.cumsum(about["rewards"]), per_step, strict=True)
        for _ in range(count)
    ]
    return [candidates[i] for i in nearest], expected


def test_an_atari_video_is_the_agents_episode(atari, result, tmp_path):
    game, film = atari.name, tmp_path / "film.mp4"
    # Breakout's five balls are soon lost: a whole episode.
    protocol, limit = ("paper", []) if game == "breakout" else ("sticky", ["--max-steps", 90])
    found = result(
        atari,
        "--episodes",
        2,
        "--protocol",
        protocol,
        "--inv-temperature",
        0,
        "--seed",
        3,
        "--video",
        film,
        *limit,
    )
    about = json.loads(film.with_suffix(".json").read_text())
    pictures, rewards = replay_atari(game, about, 0.25 if protocol == "sticky" else 0.0)
    assert about["rewards"] == rewards
    assert found["returns"][0] == about["return"] == sum(rewards)
    assert any(rewards), "an episode in which nothing happens proves little"
    assert about["ended"] == (game == "breakout")
    meta, decoded = decode(film)
    assert meta["fps"] == 60.0
    assert meta["size"] == (320, 210)
    assert len(decoded) == len(pictures) == about["frames"]
    game_picture = decoded[:, :, :160]
    assert difference(game_picture, pictures).max() < 12
    # The measure is sharp enough: most pictures of the next step do not pass for these.
    assert (difference(game_picture[:-4:8], pictures[4::8]) > 12).mean() > 0.5
    per_step = [4] * (about["steps"] - 1)
    shown, expected = returns_shown(
        decoded, about, make_names(game), [*per_step, len(pictures) - 1 - sum(per_step)]
    )
    assert shown == expected


def make_names(game):
    return make_filmed_env(dicerl.preset("debug", env__id=game), 1).action_names


@pytest.mark.parametrize(("run", "fps", "scale"), [("cartpole", 50.0, 1), ("minatar", 20.0, 20)])
def test_a_gymnasium_video_is_the_agents_episode(request, result, run, fps, scale):
    run = request.getfixturevalue(run)
    found = result(
        run, "--episodes", 3, "--max-steps", 60, "--inv-temperature", 0, "--seed", 2, "--video"
    )
    newest = checkpoint.newest(run)[0]
    film = run / "videos" / f"{newest.name}.mp4"
    about = json.loads(film.with_suffix(".json").read_text())
    pictures, rewards = replay_gym(found["env"], about)
    if pictures.dtype != np.uint8:
        pictures = np.round(255 * pictures).astype(np.uint8)
    pictures = pictures.repeat(scale, 1).repeat(scale, 2)
    assert about["rewards"] == rewards
    assert found["returns"][0] == about["return"] == sum(rewards)
    meta, decoded = decode(film)
    assert meta["fps"] == fps
    assert len(decoded) == about["frames"] == about["steps"] + 1
    height, width = pictures.shape[1:3]
    assert decoded.shape[1] == height
    assert difference(decoded[:, :, :width], pictures).max() < 12
    assert difference(decoded[:-1, :, :width], pictures[1:]).max() > 12
    names = make_filmed_env(dicerl.preset("debug", env__id=found["env"]), 1).action_names
    shown, expected = returns_shown(decoded, about, names, [1] * about["steps"])
    assert shown == expected


def test_filming_changes_no_episode(cartpole, result, tmp_path):
    arguments = (cartpole, "--episodes", 4, "--seed", 5)
    assert result(*arguments, "--video", tmp_path / "film.mp4") == result(*arguments)


@settings(max_examples=30, deadline=None)
@given(
    actions=st.integers(1, 300),
    height=st.sampled_from([200, 210, 400, 1080]),
    data=st.data(),
    value=st.floats(),
    total=st.floats(allow_nan=False, allow_infinity=False),
)
def test_a_strip_can_be_drawn_of_anything(actions, height, data, value, total):
    strip = video.Strip(height, [f"action {i}" for i in range(actions)], {"inv_temperature": 12.34})
    action = data.draw(st.none() | st.integers(0, actions - 1))
    probabilities = np.full(actions, 1 / actions)
    picture = strip.draw(total, value, probabilities, action)
    assert picture.shape == (height, strip.width, 3)
    assert strip.width % 2 == 0
    orange = (np.abs(picture.astype(int) - video.CHOSEN).sum(2) < 10).any()
    assert orange == (action is not None)


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({}, ("1/tau", "greedy")),
        ({"inv_temperature": 24.306}, ("1/tau", "24.31")),
        ({"epsilon": 0.0512}, ("epsilon", "0.051")),
        (
            {"inv_temperature_low": 2.0, "inv_temperature_high": 41.26, "weight_low": 0.35},
            ("1/tau, weight", "2.0, 0.35\n41.3, 0.65"),
        ),
    ],
)
def test_the_temperature_in_words(behaviour, words):
    assert video.caption(behaviour) == words
    video.Strip(210, ["left", "right"], behaviour).draw(1.0, 2.0, np.ones(2) / 2, 0)


def test_a_bar_is_as_long_as_its_probability():
    strip = video.Strip(420, ["a", "b", "c"], {})
    picture = strip.draw(0.0, 0.0, np.array([0.5, 0.25, 0.25]), 1)
    lengths = [
        int((np.abs(picture.astype(int) - colour).sum(2) < 10).sum(1).max())
        for colour in (video.OTHER, video.CHOSEN)
    ]
    assert lengths[0] == pytest.approx(2 * lengths[1], abs=2)
