"""evaluate/video.py: films of one's own environment, what cannot be filmed, and the files of a film
that was stopped or could not be written.
"""

import json
import shutil
import signal
import subprocess
import sys

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import dicerl
from dicerl.agent.actor_critic import ActorCritic
from dicerl.errors import DicerlError
from dicerl.evaluate import video
from dicerl.evaluate.evaluate import evaluate
from films import decode
from runs import EVALUATION_KEYS, debug


class Square(gymnasium.Env):
    """Five steps; a picture of odd sides whose grey is the step's number."""

    observation_space, action_space = Box(-1, 1, (3,), np.float32), Discrete(2, start=1)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    shape = (31, 33, 3)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        self._steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self._steps += 1
        return np.zeros(3, np.float32), 0.25, self._steps == 5, False, {}

    def render(self):
        return np.full(self.shape, 40 * self._steps, np.uint8)


class Flat(Square):
    shape = (31, 33)


class Fractions(Square):
    def render(self):
        picture = np.ones(self.shape)
        picture[: len(picture) // 2] = np.nan
        return picture


class Growing(Square):
    def render(self):
        return np.zeros((20 + 30 * self._steps, 20, 3), np.uint8)


class Objects(Square):
    def render(self):
        return np.full(self.shape, "x", object)


class Complex(Square):
    def render(self):
        return np.zeros(self.shape, complex)


class NoRate(Square):
    metadata = {"render_modes": ["rgb_array"], "render_fps": float("nan")}  # noqa: RUF012


class NoNumber(Square):
    metadata = {"render_modes": ["rgb_array"], "render_fps": "fast"}  # noqa: RUF012


class Endless(Square):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10**400}  # noqa: RUF012


class Blind(Square):
    def __init__(self):
        super().__init__()


class NeverPlayed(Square):
    def step(self, action):
        raise AssertionError


class Interrupted(Square):
    def step(self, action):
        if self._steps == 3 and self.render_mode:
            raise KeyboardInterrupt
        return super().step(action)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return dicerl.train(
        debug(tmp_path_factory.mktemp("evaluate") / "own", "x", frames=40, evaluation__every=0),
        Square,
        quiet=True,
    ).directory


def test_an_own_environment_is_evaluated_and_filmed(own, tmp_path):
    done = evaluate(own, Square, episodes=2, video=tmp_path / "film.mp4")
    assert done.result["returns"] == [1.25, 1.25]
    meta, decoded = decode(tmp_path / "film.mp4")
    assert meta["size"] == (232 + 166, 218)  # 33 x 31 times seven, then even
    np.testing.assert_allclose(
        decoded[:, :217, :231].mean((1, 2, 3)), [0, 40, 80, 120, 160, 200], atol=2
    )
    assert list(done.result) == EVALUATION_KEYS


def test_a_picture_of_fractions_with_holes_is_filmed(own, tmp_path):
    evaluate(own, Fractions, episodes=1, video=tmp_path / "film.mp4")
    _, decoded = decode(tmp_path / "film.mp4")
    np.testing.assert_allclose(decoded[0, :217, :231].mean(), 255 / 2, atol=8)


@pytest.mark.parametrize("shape", ["none", "log"])
def test_v_stands_beside_the_return_in_its_units(own, tmp_path, monkeypatch, shape):
    """Trained on rewards a tenth as large, V is shown ten times what the network says; where a
    logarithm shapes rewards, the title says so.
    """
    shutil.copytree(own, tmp_path / "run")
    config = json.loads((own / "config.json").read_text())
    config["env"] |= {"reward_shape": shape, "reward_scale": 0.1}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    strips, shown, given = [], [], []
    draw, init, step = video.Strip.draw, video.Strip.__init__, ActorCritic.step
    monkeypatch.setattr(
        video.Strip, "__init__", lambda self, *a: (strips.append(a), init(self, *a))[1]
    )
    monkeypatch.setattr(
        video.Strip, "draw", lambda self, g, v, *a: (shown.append(v), draw(self, g, v, *a))[1]
    )

    def watched(self, *arguments):
        found = step(self, *arguments)
        given.append(float(found.value()[0]))
        return found

    monkeypatch.setattr(ActorCritic, "step", watched)
    evaluate(tmp_path / "run", Square, episodes=1, video=tmp_path / "film.mp4")
    scale, title = (10.0, "V") if shape == "none" else (1.0, "V (log)")
    assert strips[0][3] == title
    assert shown[1:] == pytest.approx([scale * v for v in given])


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (Flat, r"render gave shape \(31, 33\)"),
        (Blind, "render_mode"),
        (Growing, r"render gave shape \(50, 20, 3\) after \(20, 20, 3\); a video has one size"),
        (Objects, "render gave object; it must be uint8"),
        (Complex, "render gave complex128; it must be uint8"),
        (NoRate, "its render_fps is nan; it must be a number between 0.1 and 1000"),
        (NoNumber, "its render_fps is 'fast'"),
        (Endless, "its render_fps is "),
    ],
)
def test_an_own_environment_that_cannot_be_filmed(own, tmp_path, env, words):
    with pytest.raises(DicerlError, match=f"{env.__name__} cannot be filmed: .*{words}"):
        evaluate(own, env, episodes=1, video=tmp_path / "film.mp4")
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_cannot_be_filmed_is_one_line(tmp_path, call):
    run = dicerl.train(
        debug(tmp_path / "run", "dicerl.envs.toy:Catch-v0", frames=40, evaluation__every=0),
        quiet=True,
    )
    code, out, err = call("evaluate", run.directory, "--video", "--quiet")
    assert (code, out) == (2, "")
    assert (
        err == "dicerl: dicerl.envs.toy:Catch-v0 cannot be filmed: its render modes are []; a video"
        " needs rgb_array\n"
    )
    assert not (run.directory / "videos").exists()


def test_a_run_of_an_own_environment_says_so(own, call):
    code, _, err = call("evaluate", own, "--quiet")
    assert code == 2
    assert "make_env" in err


@pytest.mark.parametrize("name", ["-y/film.mp4", "tcp:/film.mp4", "-film.mp4", "[/b]/a%d.mp4"])
def test_a_film_of_any_name_is_a_file(own, tmp_path, monkeypatch, name):
    """ffmpeg would take some for an option or an address."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    evaluate(own, Square, episodes=1, video=name)
    assert imageio_ffmpeg.count_frames_and_secs(str(tmp_path / name))[0] > 0


def test_a_film_is_no_folder(own, tmp_path):
    (tmp_path / "film.mp4").mkdir()
    with pytest.raises(DicerlError, match=r"film\.mp4 is a directory"):
        evaluate(own, NeverPlayed, episodes=1, video=tmp_path / "film.mp4")


@pytest.mark.parametrize("content", [b'{"frames": 40}', b"{", b"[]", None])
def test_a_film_replaces_no_file_but_another_film_s(own, tmp_path, content):
    """x.json is written beside x.mp4: config.mp4 in a run's directory would end the run."""
    beside = tmp_path / "config.json"
    if content is None:
        beside.mkdir()
    else:
        beside.write_bytes(content)
    with pytest.raises(DicerlError, match=r"config\.mp4 would replace .*config\.json, which"):
        evaluate(own, NeverPlayed, episodes=1, video=tmp_path / "config.mp4")
    assert list(tmp_path.iterdir()) == [beside]
    assert content is None or beside.read_bytes() == content
    for _ in range(2):
        evaluate(own, Square, episodes=1, video=tmp_path / "film.mp4")
    assert json.loads((tmp_path / "film.json").read_text())["return"] == 1.25


def test_an_interrupt_leaves_no_half_video(own, tmp_path):
    # as Ctrl-C finds it; where it is ignored, an interrupt is the environment's own
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            evaluate(own, Interrupted, episodes=1, video=tmp_path / "film.mp4")
    finally:
        signal.signal(signal.SIGINT, before)
    assert list(tmp_path.iterdir()) == []


STOPPED = """
import os, signal, sys
from dicerl import cli
from dicerl.evaluate.video import Film
watch = Film.watch
def stopped(film, step):
    watch(film, step)
    if step.number == 3:
        print("filming", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
Film.watch = stopped
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_stop_leaves_no_half_video(cartpole, tmp_path):
    command = ["evaluate", str(cartpole), "--episodes", "1", "--video", "film.mp4", "--quiet"]
    ended = subprocess.run(
        [sys.executable, "-c", STOPPED, *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGTERM, "filming\n")
    assert ended.stderr.endswith("dicerl: stopped at once\n")  # SDL may say something, too
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("good", [0, 3])
def test_a_video_that_could_not_be_written_is_no_video(own, tmp_path, monkeypatch, good):
    """An ffmpeg that ends early, as on a full disk."""
    real = imageio_ffmpeg.write_frames
    monkeypatch.setattr(
        imageio_ffmpeg,
        "write_frames",
        lambda *args, output_params, **kwargs: real(
            *args, output_params=[*output_params, "-frames:v", str(good)], **kwargs
        ),
    )
    with pytest.raises(DicerlError, match="could not be written"):
        evaluate(own, Square, episodes=1, video=tmp_path / "film.mp4")
    assert list(tmp_path.iterdir()) == []
