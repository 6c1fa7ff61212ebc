"""A run's metrics as pandas tables.

    python examples/read_metrics.py [RUN]

metrics.jsonl has a line for each episode, evaluation and event, and one every `log_every` updates;
docs/metrics.md says what each field means. Without a RUN a short one is trained first.
"""

import sys
from pathlib import Path

import pandas as pd

import dicerl


def tables(run_dir):
    """A table for each kind of line."""
    lines = pd.read_json(Path(run_dir) / "metrics.jsonl", lines=True)
    return {kind: part.dropna(axis="columns", how="all") for kind, part in lines.groupby("kind")}


def by_temperature(episodes, groups=5):
    """Mean return over 1/tau: what the vote sees. Groups of equally many episodes."""
    group = pd.qcut(episodes["inv_temperature"], groups, precision=1)
    return episodes.groupby(group, observed=True)["return"].agg(["count", "mean", "std"])


def main(run_dir=None, frames=20_000):
    """Print what a run has; return its tables."""
    if run_dir is None:
        run_dir = dicerl.train("CartPole-v1", frames=frames, log_every=10, quiet=True).directory
    found = tables(run_dir)
    for kind, table in found.items():
        print(f"{kind}: {len(table)} lines, {len(table.columns)} fields")
    episodes = found["episode"].set_index("frames")
    print("\nreturn, mean of 50 episodes:")
    print(episodes["return"].rolling(50).mean().iloc[49::100].round(1).to_string())
    print("\nreturn over 1/tau, last 200 episodes:")
    print(by_temperature(episodes.tail(200)).round(1).to_string())
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
