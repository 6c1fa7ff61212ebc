"""An agent as one file for other runtimes: ONNX, or torch.export's archive.

    observation, [state,] numbers of the family -> log_probs, value, advantage[, next_state]

The file holds all that the policy needs: the weights, the statistics of its inputs, A's scale. The
number N of observations is free. docs/agents.md lists the tensors.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dicerl.agent.agent import Agent
from dicerl.api import find_checkpoint, load_agent
from dicerl.core.family import NUMBERS
from dicerl.envs import MakeEnv, action_names
from dicerl.errors import ConfigError, DicerlError, require_folder
from dicerl.evaluate.evaluate import find
from dicerl.export.about import about
from dicerl.records.files import is_inside

SUFFIXES = {"onnx": ".onnx", "torch_export": ".pt2"}
PACKAGES = ("onnx", "onnxscript", "onnxruntime")  # of ONNX: the extra `export`
EXACT = 1e-4  # a file whose numbers differ more from the agent's is not kept
BATCHES = (1, 3, 17)  # sizes it is tried with
METADATA = "dicerl.json"  # in torch.export's archive; ONNX has a property for each entry

Tensors = dict[str, Tensor]
Program = torch.export.ExportedProgram
Loaded = Callable[[Tensors], Tensors]  # a written file, loaded again


class Policy(nn.Module):
    """One step of an agent, by the names of its tensors."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.model = agent.model
        self.network = agent.model.network
        self.numbers = NUMBERS[agent.config.behaviour.family]
        self.recurrent = self.network.lstm is not None
        # float32 everywhere: a runtime need not know bfloat16
        self.network.in_bfloat16 = False
        for tensor in (*self.network.parameters(), *self.network.buffers()):
            tensor.data = tensor.data.clone()  # views of one vector (agent/weights.py) until now

    def forward(self, inputs: Tensors) -> Tensors:
        """[N, ...] each, the state [2, N, H]; likewise the results."""
        observation = inputs["observation"]
        n = observation.shape[0]
        nothing = observation.new_zeros(n, dtype=torch.float32)
        log_pi, out = self.model.log_pi(
            observation,
            inputs["state"] if self.recurrent else observation.new_zeros(2, n, 0),
            {name: inputs[name] for name in self.numbers},
            inputs.get("last_action", nothing),
            inputs.get("last_reward", nothing),
            inputs.get("action_mask"),
        )
        results = {"log_probs": log_pi, "value": out.value[0], "advantage": out.advantage[0]}
        return {**results, "next_state": out.state} if self.recurrent else results

    def examples(self, n: int, seed: int = 0) -> Tensors:
        """Inputs for N environments, at random."""
        rng, spec, config = np.random.default_rng(seed), self.model.spec, self.model.config
        seen: np.ndarray = rng.normal(size=(n, *spec.observation_shape))
        if spec.observation_dtype.kind != "f":  # an image
            seen = rng.integers(2 if spec.observation_dtype == np.bool_ else 256, size=seen.shape)
        inputs = {"observation": torch.from_numpy(seen.astype(spec.observation_dtype))}
        if self.recurrent:
            state = rng.uniform(-1, 1, (2, n, config.network.lstm))
            inputs["state"] = torch.from_numpy(state.astype(np.float32))
        for name in self.numbers:
            largest = 10.0 if name.startswith("inv_temperature") else 1.0
            inputs[name] = torch.from_numpy(rng.uniform(0, largest, n).astype(np.float32))
        if config.network.last_action_reward:
            inputs["last_action"] = torch.from_numpy(rng.integers(-1, spec.num_actions, n))
            inputs["last_reward"] = torch.from_numpy(rng.normal(size=n).astype(np.float32))
        if spec.masked:
            mask = rng.random((n, spec.num_actions)) < 0.5
            mask[np.arange(n), rng.integers(spec.num_actions, size=n)] = True  # one is allowed
            inputs["action_mask"] = torch.from_numpy(mask)
        return inputs


def export(
    path: str | Path,
    make_env: MakeEnv | None = None,
    *,
    onnx: str | Path | None = None,
    torch_export: str | Path | None = None,
    checkpoint: str | None = None,
    quiet: bool = True,
    trust: bool = False,
) -> dict[str, Any]:
    """Write the agent of ``path``, a run, a package or a checkpoint, to a file ``onnx``, a file
    ``torch_export``, or both; "" is RUN/exports/<updates>.onnx (.pt2).

    Each file is loaded again and compared with the agent before it gets its name. Returns what is
    known of the agent, with the ``files`` and the largest ``difference`` of each.
    """
    wanted = {"onnx": onnx, "torch_export": torch_export}
    given = {kind: file for kind, file in wanted.items() if file is not None}
    if not given:
        raise DicerlError("nothing to export to; name onnx, torch_export or both")
    for kind, file in given.items():
        check(kind, file)
    run, folder = find(path, checkpoint, quiet)
    agent = load_agent(folder, make_env, trust=trust)
    found, _ = find_checkpoint(folder)
    policy = Policy(agent).eval()
    described = {
        **about(run, found, agent.network.state_dict()),
        **tensors_of(policy),
        "actions": action_names(agent.config, make_env),
        "environment_actions": [
            np.asarray(action).tolist()
            for action in agent.spec.environment_actions(np.arange(agent.spec.num_actions))
        ],
        "value_scale": agent.model.value_scale(),
    }
    program = traced(policy)
    result = {**described, "files": {}, "difference": {}}
    for kind, file in given.items():
        target = Path(file) if file else run.directory / "exports" / (folder.name + SUFFIXES[kind])
        if not file:
            if not is_inside(target.parent, run.directory):
                raise DicerlError(f"{target.parent} is a link out of the run's directory")
            target.parent.mkdir(exist_ok=True)
        write, load = WRITERS[kind]
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as place, _silence():
            new = Path(place) / f"new{SUFFIXES[kind]}"  # torch takes no name of any bytes
            write(program, described, new)
            result["difference"][kind] = difference(policy, load(new))
            try:
                new.replace(target)
            except OSError as error:
                raise ConfigError(
                    kind, str(file), f"it cannot be written: {error.strerror}"
                ) from None
        result["files"][kind] = str(target)
    return result


def check(kind: str, file: str | Path) -> None:
    """Refuse what can be refused before anything is loaded."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if kind == "onnx" and missing:
        raise DicerlError(
            f"--onnx needs {missing[0]}, which is not installed: pip install 'dicerl[export]'"
        )
    if file and Path(file).suffix != SUFFIXES[kind]:
        raise ConfigError(kind, str(file), f"its name must end in {SUFFIXES[kind]}")
    if file:
        require_folder(kind, Path(file))


def tensors_of(policy: Policy) -> dict[str, Any]:
    """What goes in and comes out: {"inputs": {"observation": ["float32", ["N", 4]], ...}, ...}"""
    inputs = policy.examples(2)
    with torch.no_grad():
        results = policy(inputs)

    def described(tensors: Tensors) -> dict[str, Any]:
        return {
            name: [str(x.dtype).removeprefix("torch."), _free(name, x)]
            for name, x in tensors.items()
        }

    return {"inputs": described(inputs), "outputs": described(results)}


def _free(name: str, x: Tensor) -> list[Any]:
    """A tensor's shape, with "N" where its size is free."""
    axis = _axis(name)
    return ["N" if i == axis else size for i, size in enumerate(x.shape)]


def _axis(name: str) -> int:
    return 1 if name in ("state", "next_state") else 0


def traced(policy: Policy) -> Program:
    """The policy as a graph, for any N, without the machine's paths."""
    inputs = policy.examples(3)  # a size of 1 would be taken for a constant
    n = torch.export.Dim("N", min=1)
    shapes = ({name: {_axis(name): n} for name in inputs},)
    with torch.no_grad(), _silence(), _explained():
        program = torch.export.export(policy, (inputs,), dynamic_shapes=shapes, strict=False)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names the files of this installation
    return program


def difference(policy: Policy, load: Loaded) -> float:
    """The largest difference between a file's results and the policy's own, in units of the largest
    number where that is above 1. It must be small: who deploys a file should not be the one to find
    an exporter's mistake.
    """
    apart = []
    for n in BATCHES:
        inputs = policy.examples(n, seed=n)
        with torch.no_grad():
            expected, found = policy(inputs), load(inputs)
        for name, x in expected.items():
            # log 0 of a masked action must be that in both, or their difference is not finite
            same = found[name] == x
            scale = x.masked_fill(same, 0.0).abs().max().clamp_min(1.0)
            apart.append((found[name] - x).masked_fill(same, 0.0).abs().max() / scale)
    largest = float(torch.stack(apart).max())
    if not largest < EXACT:  # nor is nan
        raise DicerlError(
            f"the exported file differs from the agent by {largest:g}, more than {EXACT:g}; it is"
            " not kept. Try the torch version of constraints.txt"
        )
    return largest


def _write_onnx(program: Program, described: dict[str, Any], file: Path) -> None:
    inputs, outputs = described["inputs"], described["outputs"]
    with _explained():
        made = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=({name: {_axis(name): "N"} for name in inputs},),
        )
    assert made is not None
    model = made.model
    # how torch came to each node: as large as the graph itself
    for part in (model.graph, *model.graph):
        part.metadata_props.clear()
    for name, value in described.items():
        model.metadata_props[name] = value if isinstance(value, str) else json.dumps(value)
    made.save(str(file), external_data=False)


def _load_onnx(file: Path) -> Loaded:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Tensors) -> Tensors:
        results = session.run(names, {name: x.numpy() for name, x in inputs.items()})
        return {name: torch.from_numpy(x) for name, x in zip(names, results, strict=True)}

    return run


def _write_torch_export(program: Program, described: dict[str, Any], file: Path) -> None:
    torch.export.save(program, file, extra_files={METADATA: json.dumps(described)})


def _load_torch_export(file: Path) -> Loaded:
    loaded: Loaded = torch.export.load(file).module()
    return loaded


WRITERS = {
    "onnx": (_write_onnx, _load_onnx),
    "torch_export": (_write_torch_export, _load_torch_export),
}


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn what torch raises about a network that is no graph into one line."""
    try:
        yield
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise DicerlError(
            f"this network cannot be exported: {type(error).__name__}: {reason}"
        ) from error


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """What exporters say to their own developers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
