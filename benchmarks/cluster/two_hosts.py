"""What crosses the network between two hosts that train pong, and what a cut of 10 s does; results
go to benchmarks/results/cluster.json. Learner and driver on one host, actors on the other
(hosts.py: network namespaces of this machine). Needs root and iproute2.

    python benchmarks/cluster/two_hosts.py                      all, 6 minutes and more
    python benchmarks/cluster/two_hosts.py laptop --cut 0       one setting, nothing is cut
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import hosts

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from learn import RESULTS, commit

from dicerl.config.presets import preset
from dicerl.envs import env_spec
from dicerl.parts.sequence import schema, window_bytes, window_length
from dicerl.runtime.machine import hardware

BURN_IN = {"sequence.burn_in": 40, "sequence.length": 80, "network.lstm": 256}
# fewer, longer windows in a batch: the same learner keeps up
SETTINGS: dict[str, dict[str, Any]] = {
    "laptop": {},
    "burn-in 40 + 80, LSTM": {
        **BURN_IN,
        "sequence.batch": 4,
        "collector.replay": 0.0,
        "runtime.push_every": 25,  # the paper's
        "runtime.pull_every": 64,
    },
}
COMMON = {
    "runtime.kind": "ray",
    "runtime.num_actors": 2,
    "runtime.learner_threads": 2,  # all CPUs of the learner's node, so that actors go elsewhere
    "ray.cpus_per_actor": 0.5,
    "evaluation.every": 0,
    "log_every": 1,
    "frames": 100_000_000,  # it is stopped
    "tensorboard": False,
}
STARTS = 600.0  # seconds until it must have trained
WARM = 20  # updates before anything is measured
BACK = 300.0  # seconds after the cut in which it must train again
ENDS = 60.0  # seconds for the last checkpoint


class Training:
    """A run on host ``a``, whose actors are on ``b``."""

    def __init__(
        self, a: hosts.Host, options: list[str], folder: Path, environment: dict[str, str]
    ) -> None:
        self.directory, self._log = folder / "run", folder / "train.log"
        words = [str(Path(sys.executable).parent / "dicerl"), "train", "pong", *options]
        self.process = a.start(
            [*words, "--run-dir", str(self.directory), "--quiet"], self._log, **environment
        )

    def lines(self) -> list[dict[str, Any]]:
        """The whole lines of its metrics."""
        path = self.directory / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def last(self) -> dict[str, Any]:
        """Its newest train line."""
        trained = [line for line in self.lines() if line["kind"] == "train"]
        return trained[-1] if trained else {"updates": 0, "agent_steps": 0}

    def until(self, updates: int, seconds: float) -> None:
        """Wait until it has made so many updates."""
        end = time.monotonic() + seconds
        while self.last()["updates"] < updates:
            self.require()
            if time.monotonic() > end:
                raise SystemExit(f"no {updates} updates in {seconds:.0f} s: {self.said()}")
            time.sleep(0.2)

    def require(self) -> None:
        """Refuse that it has ended."""
        if self.process.poll() is not None:
            raise SystemExit(f"the run ended: {self.said()}")

    def said(self) -> str:
        """The end of what it printed."""
        return self._log.read_text()[-1500:]

    def stop(self) -> int:
        """Ctrl-C; its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(ENDS)


def stacked_bytes(config: Any) -> float:
    """Bytes of an agent step where every window is sent whole, with stacked frames."""
    spec = env_spec(config)
    fields, length = schema(config, spec), window_length(config)
    stack = math.prod(spec.observation_shape) * spec.observation_dtype.itemsize * length
    rest = {name: f for name, f in fields.items() if name not in ("observation", "history")}
    return (stack + window_bytes(rest, length)) / config.sequence.length


def crossed(a: hosts.Host, b: hosts.Host, run: Training, seconds: float) -> dict[str, Any]:
    """Bytes on the wire for each agent step, over some time."""
    steps, sent, back = run.last()["agent_steps"], b.bytes_sent(), a.bytes_sent()
    updates = run.last()["updates"]
    time.sleep(seconds)
    run.require()
    last = run.last()
    taken = last["agent_steps"] - steps
    return {
        "seconds": seconds,
        "agent_steps": taken,
        "updates": last["updates"] - updates,
        "bytes_from_actors_per_step": round((b.bytes_sent() - sent) / taken),
        "bytes_to_actors_per_step": round((a.bytes_sent() - back) / taken),
        "policy_lag": last["policy_lag"],
    }


def cut(b: hosts.Host, run: Training, seconds: float) -> dict[str, Any]:
    """Cut the link; what became of the run."""
    known, began = len(run.lines()), time.time()
    b.link(up=False)
    time.sleep(seconds)
    b.link(up=True)
    joined = time.time()
    run.until(run.last()["updates"] + 10, BACK)
    time.sleep(20)  # whoever was given up is replaced by then
    run.require()
    # lines are written a second late; only actors tell of steps, and only over the link
    trained = [x for x in run.lines() if x["kind"] == "train"]
    before = [x for x in trained if x["time"] < began][-1]
    during = [x for x in trained if x["time"] < joined][-1]
    back = next(x for x in trained if x["agent_steps"] > during["agent_steps"])
    return {
        "seconds": seconds,
        "updates_before": before["updates"],
        "updates_when_joined": during["updates"],
        "updates_20_s_later": trained[-1]["updates"],
        "hears_of_steps_again_after_s": round(back["time"] - joined, 1),
        "events": [
            {"event": x["event"], "reason": x.get("reason")}
            for x in run.lines()[known:]
            if x["kind"] == "event"
        ],
        "lost_sequences": run.last().get("lost_sequences", 0),
    }


def measure(name: str, seconds: float, cut_seconds: float) -> dict[str, Any]:
    config = preset("laptop", **{"env.id": "pong"}).replace(**SETTINGS[name])
    changed = {**SETTINGS[name], **COMMON}
    options = ["--preset", "laptop"]
    for field, value in changed.items():
        options += [f"--{field.replace('_', '-')}", str(value).lower()]
    with tempfile.TemporaryDirectory() as text, hosts.two_hosts() as (a, b):
        folder = Path(text)
        log = folder / "ray.log"
        # The head takes no children while there are other nodes, so the learner's host has a second
        # one; its CPUs are the learner's.
        with hosts.ray_cluster(a, [(a, 2), (b, 1)], log) as environment:
            address = ["--ray.address", f"{a.address}:{hosts.PORT}"]
            run = Training(a, [*options, *address], folder, environment)
            run.until(WARM, STARTS)
            found = {"setting": name, **crossed(a, b, run, seconds)}
            if cut_seconds:
                found["cut"] = cut(b, run, cut_seconds)
            found["exit_code_after_ctrl_c"] = run.stop()
    stacked = stacked_bytes(config)
    return {
        **found,
        "stacked_bytes_per_step": round(stacked),
        "share_of_stacked": round(found["bytes_from_actors_per_step"] / stacked, 3),
        "command": " ".join(["dicerl train pong", *options, "--ray.address 10.77.0.1:6379"]),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
    }


def what(result: dict[str, Any]) -> tuple[str, float]:
    """What was measured: a newer result of the same takes its place."""
    return result["setting"], result.get("cut", {"seconds": 0.0})["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("setting", nargs="*", choices=[*SETTINGS, []], help="which (default: all)")
    parser.add_argument("--seconds", type=float, default=40.0, help="of counting bytes")
    parser.add_argument("--cut", type=float, default=10.0, help="seconds without the link")
    args = parser.parse_args()
    path = RESULTS / "cluster.json"
    for name in args.setting or SETTINGS:
        result = measure(name, args.seconds, args.cut)
        print(json.dumps(result, indent=1), flush=True)
        known = json.loads(path.read_text()) if path.exists() else []
        kept = [r for r in known if what(r) != what(result)]
        path.write_text(json.dumps([*kept, result], indent=1) + "\n")


if __name__ == "__main__":
    main()
