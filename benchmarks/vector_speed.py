"""How fast vector environments step: Gymnasium's in a plain loop, EnvPool's through dicerl.vector,
and EnvPool's by themselves. Needs `pip install envpool`.

    python benchmarks/vector_speed.py

Prints the best of five times 1,000 steps, as docs/environments.md quotes them; then agent steps for
each second of processor time of short runs.
"""

import shutil
import tempfile
import time
import warnings

import envpool
import gymnasium
import numpy as np

import dicerl
from dicerl.config import Config
from dicerl.envs import make_vector_env

warnings.simplefilter("ignore")


def pool(env_id):
    """Makes EnvPool's ``env_id``, on one thread."""

    def make(num_envs, seed):
        return envpool.make(
            env_id, env_type="gymnasium", num_envs=num_envs, seed=seed, num_threads=1
        )

    return make


def steps_per_s(env, num_envs):
    """The best of five; the last action is 0 everywhere."""
    actions, best = np.zeros(num_envs, np.int64), 0.0
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(1000):
            env.step(actions)
        best = max(best, 1000 * num_envs / (time.perf_counter() - began))
    env.close()
    return best


def alone(env_id, num_envs):
    """Environments alone, in three ways."""
    for name, make in (
        ("plain loop", lambda: gymnasium.make(env_id)),
        ("dicerl.vector", dicerl.vector(pool(env_id))),
    ):
        env = make_vector_env(Config().replace(env__id=env_id), num_envs, make)
        env.reset(1)
        print(f"{env_id} × {num_envs}, {name}: {steps_per_s(env, num_envs):,.0f} steps/s")
    env = pool(env_id)(num_envs, 1)
    env.reset()
    print(f"{env_id} × {num_envs}, EnvPool itself: {steps_per_s(env, num_envs):,.0f} steps/s")


def whole(env_id, make, name):
    """A short serial run."""
    folder = tempfile.mkdtemp()
    began = time.process_time()
    run = dicerl.train(
        make,
        frames=20_000,
        preset="classic",
        run_dir=f"{folder}/run",
        quiet=True,
        tensorboard=False,
        evaluation__every=0,
    )
    seconds = time.process_time() - began
    print(
        f"{env_id}, a run with {name}: {run.summary['agent_steps'] / seconds:,.0f} steps/s of CPU"
    )
    shutil.rmtree(folder)


if __name__ == "__main__":
    for env_id in ("CartPole-v1", "Acrobot-v1"):
        for num_envs in (16, 64, 256):
            alone(env_id, num_envs)
        for _ in range(2):  # in turns
            whole(env_id, lambda env_id=env_id: gymnasium.make(env_id), "the plain loop")
            whole(env_id, dicerl.vector(pool(env_id)), "EnvPool")
