"""``dicerl bench`` as a value: stages, limit, the whole under each runtime, and advice."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from dicerl.bench.costs import Work, costs, measured_sequences
from dicerl.bench.stages import stages
from dicerl.bench.whole import whole
from dicerl.config import Config, flatten, validate
from dicerl.envs import EnvSpec, env_spec
from dicerl.records.vocabulary import declared
from dicerl.runtime import precision
from dicerl.runtime.machine import hardware
from dicerl.runtime.setup import Plan, is_small, plan

# what the advice looks at, in the last train line of a whole
STARVED, WAITING, ENVIRONMENT, LAG = declared(
    "train", "learner_starved", "actor_waiting", "actor_environment", "policy_lag"
)


def bench(
    config: Config,
    seconds: float = 20.0,
    say: Callable[[str], None] = lambda line: None,
    repeat: int = 1,
    runtimes: Sequence[str] = ("serial", "process"),
) -> dict[str, Any]:
    """Medians over ``repeat``. Wholes and stages alternate, and each whole is compared with the
    stages around it: a machine's speed varies.

    The headline is the faster runtime's; ``default_runtime`` is what a run with these settings
    would use.
    """
    config = validate(config)
    spec = env_spec(config)
    chosen = plan(config, spec).runtime
    plans = {
        kind: plan(config.replace(**{"runtime.kind": kind}), spec)
        for kind in dict.fromkeys([chosen, *runtimes])
    }
    several = plans.get("process", plans[chosen])  # its actors share the environments
    config = precision.resolved(config, spec, several.runtime, several.device)
    alone: list[dict[str, float]] = []
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in plans}
    for turn in range(repeat):
        mark = f" ({turn + 1} of {repeat})" if repeat > 1 else ""
        found = {}
        for kind, machine in plans.items():
            say(f"the whole, runtime {kind}, for {seconds:.0f} s …{mark}")
            found[kind] = whole(config.replace(**{"runtime.kind": kind}), spec, machine, seconds)
        valid = statistics.fmean(run.get("valid_fraction", 1.0) for run in found.values())
        alone.append(
            stages(
                config,
                spec,
                several,
                max(0.5, seconds / 5),
                lambda line: say(line + mark),  # noqa: B023 (called in this turn only)
                valid,
            )
        )
        for kind, run in found.items():
            # right before it and right after it
            around = statistics.fmean(x["limit_steps_per_s"] for x in alone[-2:])
            runs[kind].append(run | {"efficiency": run["steps_per_s"] / around})
    parts = {}
    for kind, own in (("serial", plans.get("serial")), ("process", several)):
        if own is not None and (kind == "serial") == (own.runtime == "serial"):
            parts[kind] = costs_here(config, spec, own, max(0.5, seconds / 5), say)
    wholes = {
        kind: {
            **_medians(found),
            "runs": [round(r["steps_per_s"], 1) for r in found],
            "efficiencies": [round(r["efficiency"], 3) for r in found],
        }
        for kind, found in runs.items()
    }
    best = max(wholes, key=lambda kind: wholes[kind]["steps_per_s"])
    result = {
        "env": spec.name,
        "preset": config.preset,
        "runtime": best,
        "default_runtime": chosen,
        "cores": several.cores,
        "device": str(several.device),
        "precision": config.runtime.precision,
        "num_envs": config.runtime.num_envs,
        "num_actors": several.num_actors,
        "num_learners": plans[best].num_learners,
        "learner_threads": plans[best].learner_threads,
        **{k: round(v, 1) for k, v in _medians(alone).items()},
        "whole_steps_per_s": wholes[best]["steps_per_s"],
        "efficiency": wholes[best]["efficiency"],
        "repeat": repeat,
        "whole": wholes,
        "machine": hardware(),
        "costs": parts,
        "config": config.to_dict(),
    }
    return result | {"advice": advice(result)}


def costs_here(
    config: Config, spec: EnvSpec, machine: Plan, seconds: float, say: Callable[[str], None]
) -> dict[str, float]:
    """What a step and an update cost here, under a plan's runtime."""
    sequences = measured_sequences(config, is_small(spec), machine.device)
    return costs(
        Work(
            config,
            spec,
            machine.device,
            max(1, config.runtime.num_envs // machine.num_actors),
            machine.learner_threads,
            sequences,
            machine.runtime == "serial",
        ),
        seconds,
        say,
    )


def _medians(found: Sequence[dict[str, float]]) -> dict[str, Any]:
    names = [name for name in found[0] if all(name in x for x in found)]
    return {name: round(statistics.median(x[name] for x in found), 4) for name in names}


def advice(result: dict[str, Any]) -> list[str]:
    """Settings that would make this faster on this machine, the most certain first."""
    wholes, best, default = result["whole"], result["runtime"], result["default_runtime"]
    here, lines = wholes[best], []
    gain = here["steps_per_s"] / max(wholes[default]["steps_per_s"], 1e-9)
    if gain > 1.05:
        lines.append(f"--runtime {best}: {gain:.2f} times the steps/s of {default} here")
    if best == "process":
        actors, learners, threads, cores = (
            result[name] for name in ("num_actors", "num_learners", "learner_threads", "cores")
        )
        if here.get(STARVED, 0.0) > 0.15 and actors < min(cores, result["num_envs"]):
            lines.append(
                f"--runtime.num-actors {actors + 1}: the learner waits for data"
                f" {here[STARVED]:.0%} of its time"
            )
        if here.get(WAITING, 0.0) > 0.3 and learners * threads < cores:
            lines.append(
                f"--runtime.learner-threads {threads + 1}, or for a small network"
                f" --runtime.num-learners {learners + 1}: actors wait for the learner"
                f" {here[WAITING]:.0%} of their time"
            )
        elif here.get(WAITING, 0.0) > 0.3:
            lines.append(
                "a smaller network or less sequence.reuse: actors wait for the learner"
                f" {here[WAITING]:.0%} of their time"
            )
    if here.get(ENVIRONMENT, 0.0) > 0.6:
        lines.append(
            f"a faster environment, or more cores: actors spend {here[ENVIRONMENT]:.0%} of"
            " their time in it"
        )
    if here.get(LAG, 0.0) > 20:
        lines.append(
            f"a smaller runtime.push_every or pull_every: data is {here[LAG]:.0f} updates"
            " old when it is trained"
        )
    return lines


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, float, float, float]]:
    """(name, before, after, after / before) of every number the two have in common."""

    def numbers(result: dict[str, Any]) -> dict[str, float]:
        return {
            name: float(value)
            for name, value in flatten(result).items()
            if name.split(".")[0] not in ("config", "machine")
            and type(value) in (int, float)
            and abs(value) < 1e300
        }

    old, new = numbers(before), numbers(after)
    return [
        (name, old[name], new[name], new[name] / old[name])
        for name in old
        if name in new and old[name] > 0
    ]
