"""Sample Factory 2.1.1: asynchronous PPO (APPO). Rollouts of 80 steps, batches of 16 rollouts, two
epochs.
"""

from __future__ import annotations

import os
import sys
import tempfile

import ale_py  # noqa: F401  registers the Atari games in every process Sample Factory starts
from work import (
    CHANNELS,
    HIDDEN,
    LENGTH,
    LSTM,
    NUM_ENVS,
    REUSE,
    STEPS,
    Stopwatch,
    arguments,
    make_game,
    report,
)

DIFFERS = (
    "APPO (GAE, clipped ratio): its V-trace crashes in this version; both uses of a sequence"
    " directly after each other; without burn-in; environments through Gymnasium"
)


def game(name: str, cfg: object, env_config: object, render_mode: str | None = None) -> object:
    from sample_factory.envs.env_wrappers import NumpyObsWrapper

    return NumpyObsWrapper(make_game())


def main() -> None:
    args = arguments(__doc__ or "", workers=2, splits=2, serial=0)
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    assert CHANNELS == ((16, 8, 4), (32, 4, 2)), "convnet_impala is this torso"
    register_env("pong", game)
    watch = Stopwatch(args.seconds, args.deep)

    class Clock(AlgoObserver):
        def on_training_step(self, runner: object, training_iteration_since_resume: int) -> None:
            # Steps the learner received; frameskip is 1 for Sample Factory, since the game does it
            # itself: these are agent steps.
            steps = runner.env_steps.get(0, 0)  # type: ignore[attr-defined]
            if watch.tell(steps, steps // STEPS * REUSE):
                runner._stop_training()  # type: ignore[attr-defined]

    with tempfile.TemporaryDirectory() as folder:
        options = {
            "env": "pong",
            "train_dir": folder,
            "experiment": "peer",
            "device": "cpu",
            "seed": 0,
            "with_wandb": False,
            "env_frameskip": 1,
            "summaries_use_frameskip": False,
            "num_workers": args.workers,
            "num_envs_per_worker": NUM_ENVS // args.workers,
            "worker_num_splits": args.splits,
            "async_rl": not args.serial,
            "serial_mode": bool(args.serial),
            "batched_sampling": False,
            "rollout": LENGTH,
            "recurrence": LENGTH,
            "batch_size": STEPS,
            "num_batches_per_epoch": 1,
            "num_epochs": REUSE,
            "with_vtrace": False,
            "use_rnn": True,
            "rnn_type": "lstm",
            "rnn_size": LSTM,
            "nonlinearity": "relu",
            "encoder_conv_architecture": "resnet_impala" if args.deep else "convnet_impala",
            "encoder_conv_mlp_layers": HIDDEN,
            "actor_critic_share_weights": True,
            "obs_scale": 255.0,
            "normalize_input": False,
            "normalize_returns": False,
            "save_every_sec": 10**6,
            "save_best_every_sec": 10**6,
            "heartbeat_reporting_interval": 10**4,
            "default_niceness": os.nice(0),
        }
        argv = [f"--{name}={value}" for name, value in options.items()]
        parser, _ = parse_sf_args(argv)
        _, runner = make_runner(parse_full_cfg(parser, argv))
        runner.register_observer(Clock())
        runner.init()
        runner.run()
    report(
        {
            **watch.result,
            "differs": DIFFERS,
            "settings": {
                "environment workers": args.workers,
                "splits": args.splits,
                "mode": "serial" if args.serial else "asynchronous, 1 inference worker",
                "torch threads": "its own: 1 a process" if not args.serial else "torch's default",
            },
        }
    )


if __name__ == "__main__":
    sys.exit(main())
