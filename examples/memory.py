"""Memory: an agent with an LSTM, and one without, in a T-maze.

    python examples/memory.py

A cue at the start of a corridor says which way to turn at its end, where it is no longer seen.
Without memory half of the turns are right. About twenty seconds. More: docs/howto/memory.md
"""

import dicerl
from dicerl.envs.toy import TMaze
from dicerl.evaluate.evaluate import evaluate


def short_maze():
    """A corridor of 5 places."""
    return TMaze(length=5)


def main(lstm=64, frames=25_000):
    """Train; return the share of right turns in 64 episodes."""
    run = dicerl.train(
        short_maze,
        frames=frames,
        network__lstm=lstm,  # units; 0 is a network without memory
        # A window begins in the middle of an episode, with the LSTM's state as it was when the
        # actor played. Some steps of burn-in bring that up to date before training begins.
        sequence__burn_in=10 if lstm else 0,
    )
    return evaluate(run.directory, short_maze, episodes=64).result["mean_return"]


if __name__ == "__main__":
    print(f"right turns: {main(lstm=64):.0%} with an LSTM, {main(lstm=0):.0%} without")
