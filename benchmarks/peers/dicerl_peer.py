"""dicerl with its process runtime: windows of 80 trained steps, batches of 16, each trained twice,
with burn-in or without.
"""

from __future__ import annotations

import sys
from typing import Any

from work import BATCH, HIDDEN, LENGTH, LSTM, NUM_ENVS, REUSE, arguments, report
from work import Stopwatch as PeersStopwatch

from dicerl.bench.whole import Stopwatch, whole
from dicerl.config.presets import preset
from dicerl.envs import env_spec
from dicerl.runtime import precision
from dicerl.runtime.setup import build_model, plan


class Clock(Stopwatch):
    """Also drives the peers' stopwatch, so all are counted alike."""

    def __init__(self, seconds: float, repeat: int, held: int, deep: bool) -> None:
        super().__init__(seconds, repeat, held)
        self.watch, self._action_repeat = PeersStopwatch(seconds, deep), repeat

    def update(self, values: dict[str, Any], force: bool = False) -> None:
        super().update(values, force)
        self.watch.tell(values["frames"] // self._action_repeat, values["updates"])

    def done(self) -> bool:
        return super().done() and bool(self.watch.result)


def main() -> None:
    args = arguments(__doc__ or "", burn_in=40, actors=0, threads=0, auto=0)
    config = preset(
        "paper",
        **{
            "env.id": "pong",
            "network.torso": "impala_deep" if args.deep else "impala_shallow",
            "network.hidden": HIDDEN,
            "network.lstm": LSTM,
            "sequence.burn_in": args.burn_in,
            "sequence.length": LENGTH,
            "sequence.batch": BATCH,
            "sequence.reuse": REUSE,
            "runtime.kind": "process",
            "runtime.num_envs": NUM_ENVS,
            "runtime.num_actors": args.actors,
            "runtime.learner_threads": args.threads,
            # the peers' own, or what `dicerl train` takes on this machine
            "runtime.precision": "auto" if args.auto else "float32",
        },
    )
    spec = env_spec(config)
    machine = plan(config, spec)
    config = precision.resolved(config, spec, machine.runtime, machine.device)
    if args.show:
        print(build_model(config, spec).network, file=sys.stderr)
    clock = Clock(args.seconds, spec.action_repeat, machine.capacity * LENGTH, args.deep)
    whole(config, spec, machine, args.seconds, clock)
    differs = (
        f"DiCE: V, Q and policy losses, V-Trace and ReTrace; burn-in {args.burn_in}; environments"
        " in C++ (ale-py)"
    )
    report(
        {
            **clock.watch.result,
            "differs": differs,
            "settings": {
                "actors": machine.num_actors,
                "learner threads": machine.learner_threads,
                "torso in": config.runtime.precision,
            },
        }
    )


if __name__ == "__main__":
    main()
