"""Atari through ale-py's C++ vector environment, set up to the paper's protocol (docs/paper.md
2.6).
"""

from __future__ import annotations

import functools
from typing import cast

import ale_py.roms as roms
import gymnasium
import numpy as np
from gymnasium.spaces import Discrete

from dicerl.config import EnvConfig
from dicerl.envs.base import EnvSpec
from dicerl.errors import DicerlError
from dicerl.games import find_game

# The 57 games of the paper's tables.
_GAMES = """
    alien amidar assault asterix asteroids atlantis bank_heist battle_zone beam_rider berzerk
    bowling boxing breakout centipede chopper_command crazy_climber defender demon_attack
    double_dunk enduro fishing_derby freeway frostbite gopher gravitar hero ice_hockey jamesbond
    kangaroo krull kung_fu_master montezuma_revenge ms_pacman name_this_game phoenix pitfall
    pong private_eye qbert riverraid road_runner robotank seaquest skiing solaris space_invaders
    star_gunner surround tennis time_pilot tutankham up_n_down venture video_pinball
    wizard_of_wor yars_revenge zaxxon
"""
ATARI_57 = tuple(_GAMES.split())
MOST_APART = 16  # groups of emulators: to hand over to the thread of one costs 0.1 ms


def game_name(env_id: str) -> str | None:
    """The game's short name: 'pong' for pong, Pong, ALE/Pong-v5, PongNoFrameskip-v4; None if ale-py
    has no such game.
    """
    registered = gymnasium.registry.get(env_id)
    if registered is not None and "ale_py" not in str(registered.entry_point):
        return None  # Blackjack-v1 is not the cartridge
    return find_game(env_id, games())


@functools.cache
def games() -> dict[str, str]:
    """Every game's short name with its id in Gymnasium: {"pong": "ALE/Pong-v5", ...}. ale-py also
    brings games that it cannot play, of two players: to open one ends the process.
    """
    ids = [name for name in gymnasium.registry if name.startswith("ALE/")]
    found = {find_game(name, roms.get_all_rom_ids()): name for name in ids}
    return {game: found[game] for game in sorted(filter(None, found))}


def first_seed(seed: int, num_envs: int) -> int:
    """The seed of environment 0. ale-py seeds environment i with that + i and keeps 32 bits."""
    return int(seed % (2**31 - num_envs))


class AtariEnv:
    """N games in lock-step; observations uint8 [N, stack, 84, 84], raw rewards."""

    def __init__(self, game: str, config: EnvConfig, num_envs: int, num_threads: int = 0) -> None:
        from ale_py.vector_env import AtariVectorEnv

        self._env = AtariVectorEnv(
            game,
            num_envs,
            num_threads=num_threads,
            max_num_frames_per_episode=config.max_episode_frames,
            repeat_action_probability=config.sticky_actions,
            full_action_space=config.full_action_space,
            img_height=config.image_size,
            img_width=config.image_size,
            stack_num=config.frame_stack,
            frameskip=config.action_repeat,
            noop_max=config.noop_max,
            episodic_life=config.episodic_life,
            reward_clipping=False,
            use_fire_reset=False,
        )
        self.num_envs = num_envs
        self.spec = EnvSpec(
            name=game,
            observation_shape=(config.frame_stack, config.image_size, config.image_size),
            observation_dtype=np.dtype(np.uint8),
            num_actions=int(cast(Discrete, self._env.single_action_space).n),
            action_repeat=config.action_repeat,
            game=game,
            frame_stack=config.frame_stack,
        )

    def reset(self, seed: int | None = None) -> np.ndarray:
        """As ``VectorEnv``; environment i is seeded with ``first_seed`` + i."""
        observation, self._info = self._env.reset(
            seed=None if seed is None else first_seed(seed, self.num_envs)
        )
        return np.asarray(observation)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """As ``VectorEnv``; actions that the game does not have are refused."""
        self.send(actions)
        return self.receive()

    def send(self, actions: np.ndarray) -> None:
        """The first half of a step: the emulators start."""
        # ale-py hangs on an action it does not know.
        if (
            actions.shape != (self.num_envs,)
            or actions.min() < 0
            or actions.max() >= self.spec.num_actions
        ):
            raise DicerlError(
                f"{self.spec.name} takes {self.num_envs} actions from 0 to"
                f" {self.spec.num_actions - 1}; got {actions}"
            )
        self._env.send(actions)

    def receive(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The second half: wait for them."""
        observation, reward, terminated, truncated, self._info = self._env.recv()
        return observation, reward.astype(np.float32), terminated, truncated

    def close(self) -> None:
        """Close the emulators."""
        self._env.close()


class AtariApart:
    """The same N games for an evaluation, which plays one episode of each: those that have ended
    can rest, while ``AtariEnv`` steps all or none. One that goes on until it is cut (breakout's
    ball may come back for ever to a paddle at rest) then costs its own time, not that of all.
    """

    def __init__(self, game: str, config: EnvConfig, num_envs: int, num_threads: int = 0) -> None:
        size = -(-num_envs // MOST_APART)
        parts = [slice(i, min(i + size, num_envs)) for i in range(0, num_envs, size)]
        self._groups = [(p, AtariEnv(game, config, p.stop - p.start, 1)) for p in parts]
        self.num_envs, self.spec = num_envs, self._groups[0][1].spec
        self._one_by_one = num_threads == 1  # else as many at a time as there are cores
        self._awake = self._groups

    def reset(self, seed: int | None = None) -> np.ndarray:
        """As ``AtariEnv``, with the same seeds; none rests any more."""
        self._awake = self._groups
        first = None if seed is None else first_seed(seed, self.num_envs)
        return np.concatenate(
            [env.reset(None if first is None else first + p.start) for p, env in self._groups]
        )

    def rest(self, ended: np.ndarray) -> None:
        """Step the ``ended`` games [N] no more until ``reset``; they observe and gain 0 then."""
        self._awake = [(p, env) for p, env in self._groups if not ended[p].all()]

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """As ``AtariEnv``."""
        n = self.num_envs
        observation = np.zeros((n, *self.spec.observation_shape), self.spec.observation_dtype)
        reward = np.zeros(n, np.float32)
        terminated, truncated = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        for together in [[one] for one in self._awake] if self._one_by_one else [self._awake]:
            for p, env in together:
                env.send(actions[p])
            for p, env in together:
                observation[p], reward[p], terminated[p], truncated[p] = env.receive()
        return observation, reward, terminated, truncated

    def close(self) -> None:
        """Close the emulators."""
        for _, env in self._groups:
            env.close()
