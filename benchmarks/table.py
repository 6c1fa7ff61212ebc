"""Tables (Markdown) and one figure from benchmarks/results/*.json.

python benchmarks/table.py            prints the tables
python benchmarks/table.py --figure   also draws benchmarks/results/learning.png (needs matplotlib)
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from learn import BENCHMARKS, RESULTS

from dicerl.report.compare import colour


def load() -> dict[str, list[dict[str, Any]]]:
    """The results of learn.py. What is measured otherwise has its own tables."""
    found = {
        name: json.loads((RESULTS / f"{name}.json").read_text())
        for name in sorted(BENCHMARKS)
        if (RESULTS / f"{name}.json").exists()
    }
    return {name: [r for r in runs if "failed" not in r] for name, runs in found.items()}


def option(command: str, name: str, default: str) -> str:
    found = re.search(rf"--{re.escape(name)} (\S+)", command)
    return found.group(1) if found else default


def groups(results: list[dict[str, Any]]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """Runs that differ only in their seed, by (environment, variant, other options)."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for r in results:
        words = r["command"].split()
        rest = re.sub(
            r" --(seed|variant|preset) \S+", "", " ".join(words[3:]) and " " + " ".join(words[3:])
        ).strip()
        found[words[2], option(r["command"], "variant", "dice"), rest].append(r)
    return dict(sorted(found.items()))


def cell(values: list[float | None]) -> str:
    numbers = [v for v in values if v is not None]
    return (
        f"**{statistics.mean(numbers):.2f}** ({', '.join(f'{v:.2f}' for v in numbers)})"
        if numbers
        else "–"
    )


def table(name: str, results: list[dict[str, Any]]) -> str:
    lines = [
        f"### {name}",
        "",
        (
            "| environment | variant | options | seeds | training return, last 100 episodes |"
            " evaluation, best region | evaluation, greedy | frames | seconds a run | commit |"
        ),
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (env, variant, rest), runs in groups(results).items():
        runs.sort(key=lambda r: int(option(r["command"], "seed", "0")))
        lines.append(
            "| "
            + " | ".join(
                [
                    env,
                    variant,
                    f"`{rest}`" if rest else "",
                    ", ".join(option(r["command"], "seed", "0") for r in runs),
                    cell([r["training_return_last_100"] for r in runs]),
                    cell([r["evaluation_best_region"] for r in runs]),
                    cell([r["evaluation_greedy"] for r in runs]),
                    f"{runs[0]['frames']:,}",
                    ", ".join(str(r["seconds"]) for r in runs),
                    ", ".join(sorted({r["commit"] for r in runs})),
                ]
            )
            + " |"
        )
    return "\n".join(lines)


def figure(results: dict[str, list[dict[str, Any]]]) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name in ("atari", "cartpole", "minatar", "minatar_ablation"):
        for r in results.get(name, []):
            panels[r["command"].split()[2]].append(r)
    columns = 3
    rows = -(-len(panels) // columns)
    fig, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.1 * rows), squeeze=False)
    for axis, (env, runs) in zip(axes.flat, panels.items(), strict=False):
        for r in runs:
            variant = option(r["command"], "variant", "dice")
            frames, returns = zip(*r["training_curve"], strict=True)
            axis.plot(
                [f / 1e6 for f in frames],
                returns,
                color=colour(variant),
                alpha=0.8,
                linewidth=1.3,
                label=variant,
            )
        axis.set_title(env)
        axis.set_xlabel("million frames")
        axis.set_ylabel("training return")
        axis.grid(alpha=0.3)
        handles = dict(
            zip(
                axis.get_legend_handles_labels()[1],
                axis.get_legend_handles_labels()[0],
                strict=True,
            )
        )
        axis.legend(handles.values(), handles.keys(), frameon=False)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    fig.tight_layout()
    path = RESULTS / "learning.png"
    fig.savefig(path, dpi=110)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--figure", action="store_true", help="draw the learning curves too")
    args = parser.parse_args()
    results = load()
    print("\n\n".join(table(name, runs) for name, runs in results.items() if runs))
    if args.figure:
        print(figure(results))


if __name__ == "__main__":
    main()
