"""Environments that film the first episode of environment 0, for playback at the game's natural
speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import numpy as np

from dicerl.config import EnvConfig
from dicerl.envs.atari import AtariEnv, first_seed
from dicerl.envs.base import EnvSpec, VectorEnv
from dicerl.envs.gym import GymEnv
from dicerl.errors import DicerlError, shortened, told

EMULATOR_FPS = 60.0
# Where an environment names no render_fps: MinAtar's own display shows each step for 50 ms.
DEFAULT_FPS = 20.0
SLOWEST_FPS, FASTEST_FPS = 0.1, 1000.0
MINATAR_ACTIONS = {"n": "noop", "l": "left", "u": "up", "r": "right", "d": "down", "f": "fire"}


class FilmedEnv(VectorEnv, Protocol):
    """A vector environment that also gives pictures of environment 0."""

    fps: float  # pictures per second at natural speed
    action_names: list[str]
    # how environment 0 started: with this and its actions the episode can be replayed
    start: dict[str, int]

    def pictures(self) -> list[np.ndarray]:
        """The pictures of environment 0 since the last call, RGB uint8 [H, W, 3]: one after a
        reset, then those of each step.
        """
        ...


class FilmedAtari(AtariEnv):
    """Atari with pictures. ale-py's vector environment shows no screens, so a second emulator
    replays environment 0: same seed, same no-ops, same actions.

    It gives every frame of the emulator, including those that action repeat hides from the agent.
    Sticky actions come from the emulator's own seeded stream, so it repeats those too. Each step
    checks that the two games still agree.
    """

    fps = EMULATOR_FPS

    def __init__(self, game: str, config: EnvConfig, num_envs: int, num_threads: int = 0) -> None:
        from ale_py import ALEInterface, LoggerMode, roms

        super().__init__(game, config, num_envs, num_threads)
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self._rom = roms.get_rom_path(game) or game  # it exists: AtariEnv has opened it
        self._ale = ALEInterface()
        self._ale.setFloat("repeat_action_probability", config.sticky_actions)
        self._ale.loadROM(self._rom)
        self._actions = (
            self._ale.getLegalActionSet()
            if config.full_action_space
            else self._ale.getMinimalActionSet()
        )
        self.action_names = [_spaced(action.name) for action in self._actions]
        self._pictures: list[np.ndarray] = []
        self._filming = False

    def reset(self, seed: int | None = None) -> np.ndarray:
        """As ``AtariEnv``, and bring the second emulator to the same start; it needs a seed."""
        if seed is None:
            raise ValueError("a filmed game needs a seed: the second emulator starts from it")
        observation = super().reset(seed)
        self.start = {
            "seed": first_seed(seed, self.num_envs),
            "noops": int(self._info["episode_frame_number"][0]),
        }
        self._ale.setInt("random_seed", self.start["seed"])
        self._ale.loadROM(self._rom)  # a seed takes effect only here
        self._ale.reset_game()
        for _ in range(self.start["noops"]):
            self._ale.act(0)
        self._pictures, self._filming = [self._ale.getScreenRGB()], True
        return observation

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """As ``AtariEnv``; the second emulator follows environment 0 until its episode ends."""
        observation, reward, terminated, truncated = super().step(actions)
        if self._filming:
            gained = 0
            for _ in range(
                int(self._info["episode_frame_number"][0]) - self._ale.getEpisodeFrameNumber()
            ):
                gained += self._ale.act(self._actions[actions[0]])
                self._pictures.append(self._ale.getScreenRGB())
            film, game = (gained, self._ale.lives()), (int(reward[0]), int(self._info["lives"][0]))
            if film != game:
                raise DicerlError(
                    f"the film of {self.spec.name} has left the game: (reward, lives) {film}"
                    f" instead of {game}; this is a bug"
                )
            self._filming = not (terminated[0] or truncated[0])
        return observation, reward, terminated, truncated

    def pictures(self) -> list[np.ndarray]:
        """The frames since the last call, one for each frame of the emulator.    [H, W, 3] each"""
        taken, self._pictures = self._pictures, []
        return taken


class FilmedGym(GymEnv):
    """Gymnasium with pictures: environment 0 is made with render_mode="rgb_array" and gives one
    picture a step.
    """

    def __init__(self, make: Callable[..., gymnasium.Env], num_envs: int, name: str) -> None:
        super().__init__(make, num_envs, name)
        first = self._envs[0]
        if first.render_mode != "rgb_array":
            modes = list(first.metadata.get("render_modes") or [])
            if "rgb_array" not in modes:
                raise DicerlError(
                    f"{name} cannot be filmed: its render modes are {modes}; a video needs"
                    " rgb_array"
                )
            try:
                self._envs[0] = make(render_mode="rgb_array")
            except Exception as error:
                raise DicerlError(
                    f"{name} cannot be filmed: with render_mode='rgb_array' it raised {told(error)}"
                ) from error
            first.close()
        self.fps = _fps_of(first, name)
        self.action_names = names_of_actions(first, self.spec)
        self._pictures: list[np.ndarray] = []
        self._shape: tuple[int, ...] | None = None  # of the first picture
        self._filming = False

    def reset(self, seed: int | None = None) -> np.ndarray:
        """As ``GymEnv``, with a picture of environment 0's first state."""
        observation = super().reset(seed)
        self.start = {} if seed is None else {"seed": self.seeds(seed)[0]}
        self._pictures, self._filming = [self._picture()], True
        return observation

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """As ``GymEnv``, with a picture after each step of environment 0's first episode."""
        result = super().step(actions)
        if self._filming:
            self._pictures.append(self._picture())
            self._filming = not self._ended[0]
        return result

    def _picture(self) -> np.ndarray:
        try:
            picture = np.asarray(self._envs[0].render())
        except Exception as error:
            raise DicerlError(
                f"{self.spec.name} cannot be filmed: render raised {told(error)}"
            ) from error
        if picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
            raise DicerlError(
                f"{self.spec.name} cannot be filmed: render gave shape {picture.shape}; it must be"
                " (height, width, 3)"
            )
        if self._shape not in (None, picture.shape):
            raise DicerlError(
                f"{self.spec.name} cannot be filmed: render gave shape {picture.shape} after"
                f" {self._shape}; a video has one size"
            )
        self._shape = picture.shape
        if picture.dtype.kind not in "biuf":
            raise DicerlError(
                f"{self.spec.name} cannot be filmed: render gave {picture.dtype}; it must be uint8,"
                " or numbers from 0 to 1"
            )
        if picture.dtype.kind == "f":  # MinAtar's colours are 0 to 1
            picture = np.round(255 * np.clip(np.nan_to_num(picture), 0, 1))
        return picture.astype(np.uint8)

    def pictures(self) -> list[np.ndarray]:
        """The pictures since the last call, one for each step.    [H, W, 3] each"""
        taken, self._pictures = self._pictures, []
        return taken


def _fps_of(env: gymnasium.Env, name: str) -> float:
    """The environment's ``render_fps``, if it names one."""
    given = env.metadata.get("render_fps") or DEFAULT_FPS
    try:
        fps = float(given)
    except (TypeError, ValueError, OverflowError):
        fps = 0.0
    if not SLOWEST_FPS <= fps <= FASTEST_FPS:
        raise DicerlError(
            f"{name} cannot be filmed: its render_fps is {shortened(given)}; it must be a number"
            f" between {SLOWEST_FPS:g} and {FASTEST_FPS:g}"
        )
    return fps


def _spaced(name: str) -> str:
    """'UPRIGHTFIRE' -> 'up right fire'"""
    for word in ("UP", "DOWN", "LEFT", "RIGHT", "FIRE"):
        name = name.replace(word, f" {word.lower()} ")
    return " ".join(name.lower().split())


def names_of_actions(env: gymnasium.Env, spec: EnvSpec) -> list[str]:
    """The environment's own names of its actions if it has any, else numbers."""
    own: Any = env.unwrapped
    if hasattr(own, "get_action_meanings"):
        names = [str(name).lower() for name in own.get_action_meanings()]
    elif type(own).__module__ == "minatar.gym":
        names = [MINATAR_ACTIONS[own.game.env.action_map[action]] for action in own.action_set]
    else:
        names = []
    if len(names) == spec.num_actions:
        return names
    every = spec.environment_actions(np.arange(spec.num_actions))
    return [" ".join(map(str, np.ravel(action))) for action in every]
