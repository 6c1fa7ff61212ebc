"""RLlib: IMPALA on its new API stack. Fragments of 80 steps, batches of 16 fragments, two
epochs.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Any

from work import (
    BATCH,
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
    torso,
)

DIFFERS = (
    "IMPALA; an episode's end makes an extra, padded sequence; both uses of a sequence directly"
    " after each other; one more step a sequence for the bootstrap value; without burn-in;"
    " environments through Gymnasium"
)


def module(deep: bool) -> Any:
    """The common network as an RLModule."""
    import numpy as np
    import torch
    from ray.rllib.core.columns import Columns
    from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
    from ray.rllib.core.rl_module.torch import TorchRLModule

    class Module(TorchRLModule, ValueFunctionAPI):
        def setup(self) -> None:
            self.torso = torso(deep)
            self.lstm = torch.nn.LSTM(HIDDEN, LSTM, batch_first=True)
            self.policy_head = torch.nn.Linear(LSTM, self.action_space.n)
            self.value_head = torch.nn.Linear(LSTM, 1)

        def get_initial_state(self) -> dict[str, Any]:
            return {"h": np.zeros(LSTM, np.float32), "c": np.zeros(LSTM, np.float32)}

        def _embed(self, batch: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            frames, state = batch[Columns.OBS], batch[Columns.STATE_IN]  # [B, T, 4, 84, 84]
            features = self.torso(frames.flatten(0, 1).float() / 255).unflatten(0, frames.shape[:2])
            out, (h, c) = self.lstm(features, (state["h"][None], state["c"][None]))
            return out, {"h": h[0], "c": c[0]}

        def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
            out, state = self._embed(batch)
            return {Columns.ACTION_DIST_INPUTS: self.policy_head(out), Columns.STATE_OUT: state}

        def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
            out, state = self._embed(batch)
            return {
                Columns.ACTION_DIST_INPUTS: self.policy_head(out),
                Columns.STATE_OUT: state,
                Columns.EMBEDDINGS: out,
            }

        def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Any:
            return self.value_head(
                self._embed(batch)[0] if embeddings is None else embeddings
            ).squeeze(-1)

    return Module


def main() -> None:
    args = arguments(__doc__ or "", runners=2, learners=1, threads=1, wait_ms=0)
    # for every Ray process; its own default is 1 for an actor with one CPU
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    # 15 by default: the polling driver would run before the workers.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  Ray's spelling
    import ray
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.tune.registry import register_env

    ray.init(
        num_cpus=8,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={
            "env_vars": {
                "OMP_NUM_THREADS": str(args.threads),
                "PYTHONPATH": os.path.dirname(os.path.abspath(__file__)),
            }
        },
    )
    register_env("pong", make_game)
    envs = NUM_ENVS // args.runners
    assert BATCH % envs == 0, "a batch is made of whole fragments: 2 runners or more"
    config = (
        IMPALAConfig()
        .environment("pong")
        .env_runners(
            num_env_runners=args.runners,
            num_envs_per_env_runner=envs,
            rollout_fragment_length=LENGTH,
        )
        .learners(num_learners=args.learners, num_gpus_per_learner=0)
        # The learner adds the bootstrap step to each fragment: 81 keeps a fragment one sequence.
        .rl_module(
            rl_module_spec=RLModuleSpec(
                module_class=module(args.deep), model_config={"max_seq_len": LENGTH + 1}
            )
        )
        .training(
            train_batch_size_per_learner=STEPS,
            num_epochs=REUSE,
            minibatch_size=None,
            timeout_s_sampler_manager=args.wait_ms / 1000,
        )
        .reporting(min_time_s_per_iteration=2, min_train_timesteps_per_iteration=0)
    )
    algorithm = config.build_algo()
    if args.show:
        print(algorithm.get_module(), file=sys.stderr)
    watch = Stopwatch(args.seconds, args.deep)
    batches = sampled = 0
    while not watch.tell(batches * STEPS, batches * REUSE):
        result = algorithm.train()
        # The learner's own count of batches: what it has no room for is thrown away. NaN while it
        # has nothing new to report.
        told = result.get("learners", {}).get("default_policy", {}).get("weights_seq_no", math.nan)
        batches = batches if math.isnan(told) else int(told)
        sampled = int(result.get("env_runners", {}).get("num_env_steps_sampled_lifetime", sampled))
        if args.show and not math.isnan(told):
            passes = result["learners"]["__all_modules__"]["num_env_steps_trained_lifetime"]
            print(
                f"{batches} batches, {passes:.0f} steps passed the learner, {sampled} sampled",
                file=sys.stderr,
                flush=True,
            )
    algorithm.stop()
    ray.shutdown()
    report(
        {
            **watch.result,
            "sampled": sampled,
            "trained": batches * STEPS,
            "differs": DIFFERS,
            "settings": {
                "env runners": args.runners,
                "learner processes": args.learners,
                "torch threads": args.threads,
                "driver waits, ms": args.wait_ms,
            },
        }
    )


if __name__ == "__main__":
    main()
