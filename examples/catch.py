"""DiCE learns Catch: the paper's five boxes, wired by hand.

    python examples/catch.py

A ball falls down a board; a paddle catches it (+1) or not (-1). One process, about ten seconds. The
package's runtimes (dicerl/runtime) wire the same parts, and add checkpoints, metrics and processes.
"""

import sys

import numpy as np
import torch

from dicerl import preset
from dicerl.agent.actor_critic import ActorCritic
from dicerl.agent.behaviour import Behaviour
from dicerl.core import BanditVote, inv_temperature_from_x
from dicerl.envs import make_vector_env
from dicerl.envs.toy import Catch
from dicerl.parts.actor import Actor
from dicerl.parts.collector import Collector
from dicerl.parts.learner import Learner
from dicerl.parts.parameter_server import ParameterServer
from dicerl.parts.sequence import Store, schema, window_length


def main(agent_steps: int = 30_000, seed: int = 0) -> float:
    """Train; return the mean return of the last 200 episodes, at temperatures from the vote."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    config = preset("classic", env__reward_scale=1.0, seed=seed)
    batch, reuse, num_envs = config.sequence.batch, config.sequence.reuse, config.runtime.num_envs
    env = make_vector_env(config, num_envs, Catch)

    # The Bandits Vote Algorithm draws x = log(1 + 1/tau) for an episode and learns from its return.
    vote = BanditVote(seed=seed)
    returns = []

    def next_behaviours(count):
        drawn = [vote.sample() for _ in range(count)]
        return lambda: [Behaviour((x,), (inv_temperature_from_x(x),)) for x in drawn]

    def end_episodes(episodes):
        for episode in episodes:
            vote.update(*episode.behaviour.x, episode.episode_return)
            returns.append(episode.episode_return)

    # The Data Collector lends slots of a store, serves each sequence `reuse` times, and keeps the
    # newest for replay.
    kept, new = 1_000, batch - config.replayed
    capacity = 2 * batch + num_envs + kept
    store = Store(schema(config, env.spec), window_length(config), capacity)
    collector = Collector(capacity, batch, reuse, config.replayed, kept, seed)

    def send_sequences(windows):
        slots = collector.lend(num_envs)
        store.write(slots, windows, list(range(num_envs)))
        collector.receive(slots)

    # The Learner publishes its parameters through the Parameter Server after each update.
    model = ActorCritic(config, env.spec)
    server = ParameterServer(model.flat.vector.numel())
    total = agent_steps * reuse // (new * config.sequence.length)
    learner = Learner(model, total, publish=server.push)
    learner.publish()

    # The Actor pulls them, plays, and sends windows of T + 1 steps.
    actor = Actor(
        ActorCritic(config, env.spec),
        env,
        rng=np.random.default_rng(seed),
        env_seed=seed,
        get_parameters=server.pull,
        send_sequences=send_sequences,
        end_episodes=end_episodes,
        next_behaviours=next_behaviours,
    )

    while actor.agent_steps < agent_steps:
        while not actor.act():  # until a window of every environment is complete
            actor.advance()
        while collector.ready():
            slots = collector.next_batch()
            learner.update(store.read(slots))
            collector.taken(slots)
        actor.advance()  # starts the next window
        if learner.updates % 50 == 0:
            low, high = (inv_temperature_from_x(x) for x in vote.best_region())
            print(
                f"{actor.agent_steps:>7,} steps  {learner.updates:>4} updates  return"
                f" {np.mean(returns[-200:]):+.2f}  best 1/tau {low:.1f}–{high:.1f}",
                file=sys.stderr,
            )
    return float(np.mean(returns[-200:]))


if __name__ == "__main__":
    print(f"mean return of the last 200 episodes: {main():+.2f}")
