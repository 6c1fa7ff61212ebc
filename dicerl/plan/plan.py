"""``dicerl plan`` as a value: forecast, memory, network, and every assumption behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

from dicerl.config import Config, validate
from dicerl.envs import env_spec
from dicerl.errors import ConfigError, nearest
from dicerl.plan import gpu
from dicerl.plan.costs import COMPRESSED, RAY, Books, Costs, Wire, measure, of_file, pipe
from dicerl.plan.machines import Layout, Machines, layout, with_actors
from dicerl.plan.model import MB, Load, forecast, load_of
from dicerl.plan.simulate import Simulated, measure_books, simulate
from dicerl.plan.words import limits, who_waits
from dicerl.runtime.device import SLACK, training_bytes
from dicerl.runtime.setup import build_model

GAMES, SEEDS = 57, 3
PROCESS = 300 * 2**20  # bytes of a process that does nothing yet: Python and torch
SENSITIVITY = (0.1, 0.4)  # other fractions of a GPU's peak


class Planner:
    """Plans of one run on any machines. Costs are measured when they are first needed, once for
    each size of actors; ``update_ms`` is what an update takes on one GPU, if that is known.
    """

    def __init__(
        self,
        config: Config,
        seconds: float,
        say: Callable[[str], None] = lambda line: None,
        costs_file: str | None = None,
        gpu_name: str = "V100",
        update_ms: float | None = None,
    ) -> None:
        if gpu_name not in gpu.PEAK:
            known = ", ".join(gpu.PEAK)
            raise ConfigError(
                "gpu",
                gpu_name,
                f"it can be {known}{nearest(gpu_name, gpu.PEAK)}; for any other give --update-ms",
            )
        self.config, self.spec = validate(config), env_spec(config)
        self.model = build_model(self.config, self.spec)
        self._seconds, self._say, self._file = seconds, say, costs_file
        self._gpu, self._update_ms = gpu_name, update_ms
        self._known: dict[Any, tuple[Costs, dict[str, Any], list[str]]] = {}

    @property
    def parameters(self) -> int:
        return self.model.flat.vector.numel()

    @cached_property
    def flops(self) -> int:
        """Of an update."""
        return gpu.update_flops(self.config, self.spec)

    @cached_property
    def _training_bytes(self) -> int:
        return training_bytes(self.config, self.spec)

    @cached_property
    def _pipe(self) -> Wire:
        return pipe()

    @cached_property
    def books(self) -> Books:
        """The supervisor's own costs, measured here."""
        self._say("the supervisor …")
        one = layout(self.config.replace(**{"runtime.kind": "process"}), self.spec, Machines(2))
        guess = Books(1e-4, 1e-6, 1e-5, 1e-4)
        costs = Costs(1e-3, 1e-3, 0.0)
        load = load_of(self.config, self.spec, one, costs, guess, self._pipe, self.parameters)
        return measure_books(self.config, self.spec, self.model, load)

    def costs(self, found: Layout) -> tuple[Costs, dict[str, Any], list[str]]:
        """Those of a layout, the machine they were measured on, and what they assume."""
        if self._file is not None:
            return of_file(self._file, self.config, found)
        # of these the seconds of a core depend; more threads than here are taken as those here
        key = found.runtime == "serial", found.envs_per_actor, found.on_gpu or found.threads
        if key not in self._known:
            self._known[key] = measure(self.config, self.spec, found, self._seconds, self._say)
        return self._known[key]

    def gpu_update(self, found: Layout, fraction: float = gpu.FRACTION) -> float:
        """Seconds of an update on the layout's GPUs, which share its batch; 0 on the CPU."""
        if not found.on_gpu:
            return 0.0
        if self._update_ms is not None:
            return self._update_ms / 1e3 / found.learners
        return gpu.update_seconds(self.flops, self._gpu, fraction) / found.learners

    def load(self, found: Layout) -> Load:
        """What a run with this layout asks for."""
        return load_of(
            self.config,
            self.spec,
            found,
            self.costs(found)[0],
            self.books,
            RAY if found.runtime == "ray" else self._pipe,
            self.parameters,
            self.gpu_update(found),
        )

    def plan(self, machines: Machines) -> dict[str, Any]:
        """All that is known of a run on these machines, as a JSON value."""
        found = layout(self.config, self.spec, machines)
        load = self.load(found)
        expected = forecast(load)
        rate, repeat = expected.steps_per_s, self.spec.action_repeat
        hours = self.config.frames / (rate * repeat) / 3600
        inward, outward = load.network(rate)
        costs, machine, _ = self.costs(found)
        return {
            "env": self.spec.name,
            "preset": self.config.preset,
            "runtime": found.runtime,
            "machines": asdict(machines),
            "num_actors": found.num_actors,
            "envs_per_actor": found.envs_per_actor,
            "num_learners": found.learners,
            "learner_threads": found.threads,
            "device": self._gpu if found.on_gpu else "cpu",
            "steps_per_s": round(rate, 1),
            "frames_per_s": round(rate * repeat, 1),
            "limit": expected.limit,
            "busy": {name: round(part, 4) for name, part in expected.busy.items()},
            "who_waits": who_waits(load, expected),
            "learner_steps_per_s": round(expected.learner_steps_per_s, 1),
            "actor_steps_per_s": round(expected.actor_steps_per_s, 1),
            "saturating_actors": expected.saturating_actors,
            "network_mb_per_s": {"in": round(inward / MB, 2), "out": round(outward / MB, 2)},
            "memory_bytes": self.memory(load),
            "hours": round(hours, 2),
            "suite_days": round(hours * GAMES * SEEDS / 24, 2),
            "costs": asdict(costs) | {"gpu_update": load.gpu_update} | asdict(self.books),
            "measured_on": machine,
            "assumptions": self.assumptions(found, load),
        }

    def memory(self, load: Load) -> dict[str, int]:
        """Bytes on each kind of machine."""
        found = load.layout
        actor = max(PROCESS, int(load.costs.actor_bytes))
        training, batch = self._training_bytes, self.config.sequence.batch
        learner = PROCESS + (2 * batch * found.slot_bytes if found.on_gpu else training)
        store, supervisor = found.capacity * found.slot_bytes, PROCESS
        first = store + found.learners * learner + found.actors[0] * actor
        if found.runtime == "serial":
            return {"machine": actor + training + store}
        if found.machines.nodes == 1:
            memory = {"machine": first + supervisor}
        else:
            memory = {
                "learner_machine": first,
                "other_machine": max(found.actors[1:]) * actor,
                "head": supervisor,
            }
        if found.on_gpu:
            memory["gpu"] = int(SLACK * training) // found.learners
        return memory

    def assumptions(self, found: Layout, load: Load) -> list[str]:
        """Everything that was not measured for this very plan."""
        costs, machine, lines = self.costs(found)
        where = f"{machine.get('cpu')} ({machine.get('cores')} cores)"
        told = f"from {self._file}" if self._file else f"measured here in {self._seconds:g} s"
        lines = [
            f"a core is as fast as one of {where}, where an agent step of an actor with"
            f" {found.envs_per_actor} environments takes {1e6 * costs.step:.0f} µs ({told})",
            *lines,
        ]
        if found.on_gpu and self._update_ms is not None:
            lines.append(f"an update takes {self._update_ms:g} ms on one GPU (given)")
        elif found.on_gpu:
            lines.append(self._about_gpu(found, load))
        else:
            lines.append(f"an update takes {1e3 * costs.update:.1f} ms of a core ({told})")
        if found.on_gpu and found.learners < found.machines.gpus:
            lines.append(
                f"{found.machines.gpus - found.learners} GPU(s) are not used: a learner has one"
                " (--runtime.num-learners)"
            )
        lines.append(
            f"an episode has {costs.episode_steps:,.0f} agent steps, as in untrained play (where"
            " none ended: all that were played); longer ones cost the supervisor less"
        )
        books = self.books
        if found.runtime != "serial":
            lines.append(
                "the supervisor was measured here: a message takes it"
                f" {1e6 * (books.message + books.tick):.0f} µs and {1e9 * books.child:.0f} ns for"
                f" each child, an episode {1e6 * books.episode:.0f} µs"
            )
        if found.runtime == "ray":
            lines.append(
                f"a call of Ray takes {1e3 * RAY.call:g} ms of a core at either end, and"
                f" {1e3 * RAY.megabyte:g} ms for each MB it carries (Ray 2.60, two cores of an AMD"
                " EPYC)"
            )
        if found.machines.nodes > 1:
            lines.append(
                f"every machine has a link of {found.machines.gbits:g} Gbit/s; compressed frames"
                f" take {COMPRESSED:.0%} (measured: 1 to 6 % in four games), parameters go once to"
                " each machine; the head is one more machine"
            )
        lines.append(
            "evaluations, checkpoints and the start are not counted; every game is as fast as this"
        )
        return lines

    def _about_gpu(self, found: Layout, load: Load) -> str:
        others = []
        for fraction in SENSITIVITY:
            other = replace(load, gpu_update=self.gpu_update(found, fraction))
            others.append(f"{forecast(other).steps_per_s:,.0f}")
        return (
            f"ASSUMED, NOT MEASURED: an update takes {1e3 * load.gpu_update:.0f} ms on"
            f" {found.learners} {self._gpu}: {self.flops / 1e12:.3g} TFLOP (counted) at"
            f" {gpu.FRACTION:g} of the {gpu.PEAK[self._gpu]:g} TFLOP/s in float32 that NVIDIA"
            f" states; at {SENSITIVITY[0]:g} or {SENSITIVITY[1]:g} of them:"
            f" {' or '.join(others)} agent steps/s. --update-ms gives a measured one"
        )

    # --- fleets

    def fleet(self, machines: Machines, counts: Sequence[int]) -> dict[str, Any]:
        """Simulations of the plan, and of fleets of so many actors: with its learner, and with one
        that takes no time, which shows what else would break.
        """
        base = layout(self.config, self.spec, machines)
        if base.runtime == "serial":
            raise ConfigError(
                "runtime.kind",
                "serial",
                "one process has no supervisor to simulate; use --runtime process or ray",
            )
        self._say(f"simulating the plan's {base.num_actors} actors …")
        load = self.load(base)
        rows = []
        for count in counts:
            self._say(f"simulating {count:,} actors …")
            larger = with_actors(base, self.config, self.spec, count)
            wire = RAY if larger.runtime == "ray" else load.wire
            each = replace(load, layout=larger, wire=wire)
            free = replace(each, gpu_update=1e-9, costs=replace(load.costs, read=0.0))
            rows.append(
                {
                    "actors": count,
                    "machines": larger.machines.nodes,
                    "environments": larger.num_envs,
                    "memory_bytes": larger.capacity * larger.slot_bytes,
                    "model_steps_per_s": round(forecast(each).steps_per_s, 1),
                    **self._simulated(each),
                    "free_learner": self._simulated(free)
                    | {"model_steps_per_s": round(forecast(free).steps_per_s, 1)},
                }
            )
        return {
            "plan": {
                "model_steps_per_s": round(forecast(load).steps_per_s, 1),
                **self._simulated(load),
            },
            "fleets": rows,
            "limits": limits(replace(load, wire=RAY)),
        }

    def _simulated(self, load: Load) -> dict[str, Any]:
        found: Simulated = simulate(self.config, self.spec, self.model, load)
        values = asdict(found)
        del values["actors"], values["machines"]
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in values.items()
        }
