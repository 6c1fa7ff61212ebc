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
        """As ``VectorEnv``; environment i is seeded with ``first_seed(seed)`` + i."""
        observation, self._info = self._env.reset(
            seed=None if seed is None else self.first_seed(seed)
        )
        return np.asarray(observation)

    def first_seed(self, seed: int) -> int:
        """The seed of environment 0. ale-py seeds environment i with that + i and keeps 32 bits."""
        return int(seed % (2**31 - self.num_envs))

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """As ``VectorEnv``; actions that the game does not have are refused."""
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
        observation, reward, terminated, truncated, self._info = self._env.step(actions)
        return observation, reward.astype(np.float32), terminated, truncated

    def close(self) -> None:
        """Close the emulators."""
        self._env.close()
