"""Stable-Baselines3: RecurrentPPO of sb3-contrib. Rollouts of 80 steps of 32 environments = two
batches of 16 sequences, two epochs.
"""

from __future__ import annotations

import sys
from typing import Any

from work import (
    BATCH,
    LENGTH,
    LSTM,
    NUM_ENVS,
    REUSE,
    STEPS,
    Stopwatch,
    arguments,
    make_game,
    report,
    torso,
)

DIFFERS = (
    "PPO: collects and trains in turns; sequences are cut at a random place of the rollout and at"
    " episode ends, and padded; without burn-in; environments through Gymnasium"
)


def main() -> None:
    args = arguments(__doc__ or "", threads=2, processes=0)
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    torch.set_num_threads(args.threads)

    class Torso(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, features_dim=256)
            self.net = torso(args.deep)

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return self.net(observation)

    watch = Stopwatch(args.seconds, args.deep)

    class Clock(BaseCallback):
        def _on_rollout_start(self) -> None:  # right after the updates of the last rollout
            watch.tell(self.num_timesteps, self.num_timesteps // STEPS * REUSE)

        def _on_step(self) -> bool:
            return not watch.result

    envs = (SubprocVecEnv if args.processes else DummyVecEnv)([make_game] * NUM_ENVS)
    model = RecurrentPPO(
        "CnnLstmPolicy",
        envs,
        n_steps=LENGTH,
        batch_size=STEPS,
        n_epochs=REUSE,
        device="cpu",
        policy_kwargs={
            "features_extractor_class": Torso,
            "net_arch": [],
            "lstm_hidden_size": LSTM,
            "shared_lstm": True,
            "enable_critic_lstm": False,
        },
    )
    if args.show:
        print(model.policy, file=sys.stderr)
    model.learn(10**12, callback=Clock())
    assert model._n_updates == (model.num_timesteps // (NUM_ENVS * LENGTH)) * REUSE, (
        "SB3 counts epochs here"
    )
    report(
        {
            **watch.result,
            "differs": DIFFERS,
            "settings": {
                "environments in": "32 processes" if args.processes else "the one process",
                "torch threads": args.threads,
                "sequences in a batch": BATCH,
            },
        }
    )
    envs.close()


if __name__ == "__main__":
    main()
