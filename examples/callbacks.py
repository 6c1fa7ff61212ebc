"""Your own code while a run trains: follow the temperatures, stop early.

    python examples/callbacks.py

Callbacks run in the process that called ``train``, under every runtime. About ten seconds.
"""

from collections import deque

import dicerl


class Follow(dicerl.Callback):
    """Keeps the last 100 episodes, and prints their mean now and then."""

    def __init__(self):
        self.last = deque(maxlen=100)

    def on_episode(self, line):
        """A line of metrics.jsonl: docs/metrics.md has every field."""
        self.last.append((line["return"], line["inv_temperature"]))

    def on_train(self, line):
        """Every ``log_every`` updates."""
        if self.last:
            returns, inv_temperatures = zip(*self.last, strict=True)
            print(
                f"{line['frames']:>7,} frames  return {sum(returns) / len(returns):6.1f}"
                f"  1/tau {min(inv_temperatures):.1f} to {max(inv_temperatures):.1f}"
                f"  entropy {line['entropy']:.2f}"
            )


class GoodEnough(dicerl.Callback):
    """Stops a run, with a checkpoint, once an evaluation is good (the command's --stop-at)."""

    def __init__(self, score):
        self.score = score

    def on_evaluation(self, line):
        """True stops the run."""
        print(f"evaluation: {line['mean_return']:.1f}")
        return line["mean_return"] >= self.score


def main(score=100, frames=100_000):
    """Train until an evaluation reaches ``score``, or to the end; return the finished run."""
    return dicerl.train(
        "CartPole-v1",
        frames=frames,
        evaluation__every=5_000,
        quiet=True,
        callbacks=[Follow(), GoodEnough(score)],
    )


if __name__ == "__main__":
    run = main()
    print(f"{run.summary['frames']:,} of {run.config.frames:,} frames; all of it: {run.directory}")
