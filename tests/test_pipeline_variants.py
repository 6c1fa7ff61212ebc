"""From the environments to the learner with several learners, with every policy family, with replay
and with special settings (docs/paper.md 2.2, 2.7).
"""

import json
import math
import os
import time
import typing
from collections import Counter

import numpy as np
import pytest
import torch

import probe
import reference as slow
from dicerl.agent.actor_critic import ActorCritic
from dicerl.api import train
from dicerl.config.presets import preset
from dicerl.core.family import NUMBERS
from dicerl.envs import env_spec
from dicerl.parts.learner import Learner
from dicerl.parts.sequence import Store
from dicerl.records import checkpoint
from dicerl.records.metrics import read_lines
from dicerl.runtime.setup import plan
from recorded import BATCH, BURN_IN, COMMON, CURIOUS, ENVS, REUSE, RUNS, assert_consecutive, record

# seconds of CPU time, but whole runs: on a crowded machine they take their time
pytestmark = pytest.mark.timeout(900)


# --- several learners -----------------------------------------------------------------------------


def test_learners_share_sequences_and_weights(tmp_path):
    """Two processes: each sequence is trained ``reuse`` times by whichever of them, and one
    checkpoint holds what both did.
    """
    noted = tmp_path / "batches"
    noted.mkdir()

    def note(learner, batch):
        with (noted / str(os.getpid())).open("a") as file:
            file.write(
                json.dumps({"streams": batch["stream"].tolist(), "updates": learner.updates}) + "\n"
            )
        end = time.monotonic() + probe.WAIT
        while len(list(noted.iterdir())) < 2 and time.monotonic() < end:
            time.sleep(0.02)  # until the other has come up
        time.sleep(0.02)  # as long as a real update: neither learner trains all of it alone

    changes = RUNS["process"] | {
        "runtime.num_learners": 2,
        "sequence.capacity": 3 * BATCH,
        "checkpoint.every": 300,
    }
    config = preset("debug", **COMMON).replace(run_dir=str(tmp_path / "run"), **changes)
    run = train(config, probe.MakeTraced(tmp_path), quiet=True, on_batch=note)
    learners = [
        [json.loads(line) for line in path.read_text().splitlines()] for path in noted.iterdir()
    ]
    assert len(learners) == 2
    assert min(map(len, learners)) > 10
    assert sum(map(len, learners)) == run.summary["updates"]
    for batches in learners:
        updates = [batch["updates"] for batch in batches]
        assert updates == sorted(set(updates))  # each sees the other's go by
    uses = Counter(
        tuple(stream) for batches in learners for batch in batches for stream in batch["streams"]
    )
    assert max(uses.values()) == REUSE
    assert sum(used < REUSE for used in uses.values()) < BATCH  # what was left was no batch
    for path in checkpoint.checkpoints_of(run.directory):
        state = json.loads((path / "state.json").read_text())
        assert state["updates"] == int(path.name)
        steps = checkpoint.read_tensors(path, "optimizer")["value_head.weight/step"]
        assert steps.item() == int(path.name)  # every update of both is in it


# --- other families (docs/paper.md 2.7) -----------------------------------------------------------

FAMILIES = {
    "epsilon": {"behaviour.family": "epsilon", "behaviour.scale": "normalised"},
    "mixture": {"behaviour.family": "mixture", "behaviour.scale": "normalised"},
    "conditioned": {"behaviour.family": "conditioned"},
    # One version for the whole run must not do: tau changes under way.
    "trainable": {
        "behaviour.source": "trainable",
        "behaviour.inv_temperature": 5.0,
        "loss.critic": "casa",
        "optimizer.learning_rate": 2e-2,
    },
}


def policy_of(config, stream, t, scale):
    """(1/tau of each component, weights) that the stream says acted at step t."""
    if config.behaviour.family == "epsilon":
        return [0.0, math.inf], [stream["epsilon"][t], 1 - stream["epsilon"][t]]
    if config.behaviour.family == "mixture":
        inv = [stream[f"inv_temperature_{end}"][t] / scale for end in ("low", "high")]
        return inv, [stream["weight_low"][t], 1 - stream["weight_low"][t]]
    return [stream["inv_temperature"][t] / scale], [1.0]


def assert_behaviour(run):
    """Stored log-probabilities are those of the recorded behaviour at the recorded version; an
    episode keeps its behaviour.
    """
    networks = probe.Networks(run.config, run.make_env, run.parameters)
    names = NUMBERS[run.config.behaviour.family]
    drawn, spread, versions = set(), [], set()
    assert_consecutive(run.streams)
    for key, windows in run.streams.items():
        stream = probe.rows(windows, run.burn_in)
        replayed = probe.replay(stream, networks)
        scale = (
            replayed.scale
            if run.config.behaviour.scale == "normalised"
            else np.ones(len(stream["scale"]))
        )
        np.testing.assert_allclose(stream["scale"], scale, rtol=1e-6)
        for t, action in enumerate(stream["action"]):
            pi = slow.mixture(
                replayed.advantage[t].astype(np.float64).tolist(),
                *policy_of(run.config, stream, t, scale[t]),
            )
            assert stream["log_prob"][t] == pytest.approx(
                math.log(pi[action]), rel=1e-3, abs=1e-3
            ), f"{key} {t}"
        spread.append(stream["log_prob"])
        versions.update(stream["version"].tolist())
        # tau is the network's own, as old as its version
        if run.config.behaviour.source == "trainable":
            np.testing.assert_allclose(stream["inv_temperature"], replayed.trained, rtol=1e-5)
            drawn.update(stream["inv_temperature"].tolist())
            continue
        for episode in np.unique(stream["observation"][:, 1]):
            here = stream["observation"][:, 1] == episode
            assert all(len(np.unique(stream[name][here])) == 1 for name in names), (
                f"{key}, episode {episode}"
            )
            drawn.add(tuple(float(stream[name][here][0]) for name in names))
    assert len(drawn) > 8
    assert len(versions) > 5
    assert np.concatenate(spread).std() > 0.2
    if run.config.behaviour.family == "mixture":
        assert all(low <= high for low, high, _ in drawn)
    return drawn


@pytest.mark.parametrize("name", FAMILIES)
def test_log_probs_of_every_family_are_those_of_the_version_that_acted(tmp_path, name):
    run = record(
        tmp_path,
        **{
            "frames": 350,
            "runtime.kind": "serial",
            "checkpoint.every": 150,
            "checkpoint.exact": True,
            **FAMILIES[name],
        },
    )
    drawn = assert_behaviour(run)
    episodes = [e for e in read_lines(run.directory / "metrics.jsonl") if e["kind"] == "episode"]
    assert len(episodes) > 20
    names = NUMBERS[run.config.behaviour.family]
    if name != "trainable":  # each reported episode carries the behaviour it had
        reported = {tuple(e[n] for n in names) for e in episodes}
        rounded = {tuple(float(f"{x:.6g}") for x in behaviour) for behaviour in drawn}
        assert len(reported & rounded) >= 0.8 * len(reported)


@pytest.mark.parametrize("name", FAMILIES)
def test_learner_and_actor_agree_for_every_family(tmp_path, name):
    """Parameters never change hands: on-policy, so every ratio is 1."""
    run = record(
        tmp_path,
        make_env=probe.Small,
        **{
            "frames": 120,
            "runtime.kind": "serial",
            "runtime.push_every": 1_000_000,
            "checkpoint.every": 0,
            "network.normalise": "none",
            **FAMILIES[name],
        },
    )
    model = ActorCritic(run.config, env_spec(run.config, run.make_env))
    probe.load_flat_state(model, run.parameters[0])
    learner = Learner(model, 1000)
    for batch in run.batches:
        data = {
            n: torch.from_numpy(a)
            for n, a in batch.items()
            if n not in ("stream", "created", "updates")
        }
        with torch.no_grad():
            found = probe.loss_of(learner, data)
        assert float(found.log_ratio.abs().max()) < 1e-3
    assert np.concatenate([b["log_prob"][BURN_IN:] for b in run.batches], axis=None).std() > 0.2


# --- replay (docs/paper.md 2.7, laser) ------------------------------------------------------------

KEPT = 12
REPLAY = {
    "serial": {"runtime.kind": "serial", "checkpoint.every": 300, "checkpoint.exact": True},
    "process": {
        "runtime.kind": "process",
        "checkpoint.every": 0,
        "runtime.num_actors": 2,
        **FAMILIES["mixture"],
        **CURIOUS,
    },
}


class CountedStore(Store):
    """Remembers what was allocated."""

    made: typing.ClassVar[list] = []

    def __init__(self, fields, length, count, shared=False):
        super().__init__(fields, length, count, shared)
        CountedStore.made.append(self)


@pytest.mark.parametrize("runtime", REPLAY)
def test_uses_and_ages_with_replay_are_as_configured(tmp_path, runtime, monkeypatch):
    """A batch of 4 is 2 new sequences, each trained exactly ``reuse`` times as a new one, and 2 of
    the last 12 that had their uses.
    """
    monkeypatch.setattr(CountedStore, "made", [])
    for module in ("serial", "processes"):
        monkeypatch.setattr(f"dicerl.runtime.{module}.Store", CountedStore)
    run = record(
        tmp_path,
        3 if runtime == "process" else 0,
        **{
            "frames": 700,
            "collector.replay": 0.5,
            "collector.replay_capacity": KEPT,
            **REPLAY[runtime],
        },
    )
    assert run.summary["complete"]
    assert_consecutive(run.streams)
    new, again, finished, ages, mixed = Counter(), Counter(), [], [], 0
    for batch in run.batches:
        names = [tuple(stream) for stream in batch["stream"].tolist()]
        assert len(set(names)) == BATCH, "a sequence stands twice in a batch"
        fresh = BATCH if not again and len(finished) < 2 else BATCH // 2
        # batches are sent ahead of what was finished: the first replay tells
        if runtime == "process" and not again:
            fresh = BATCH // 2 if any(new[n] == REUSE for n in names) else BATCH
        mixed += fresh < BATCH
        for name in names[:fresh]:
            new[name] += 1
        for name in names[fresh:]:
            assert new[name] == REUSE, f"{name} was replayed before it had its own uses"
            again[name] += 1
            ages.append(len(finished) - 1 - finished.index(name))  # sequences that finished since
        finished += [name for name in names[:fresh] if new[name] == REUSE]
    assert max(new.values()) == REUSE
    assert sum(uses < REUSE for uses in new.values()) <= BATCH - 1
    assert new.total() + again.total() == BATCH * len(run.batches)
    machine = plan(run.config, env_spec(run.config, run.make_env))
    # once the first have had their uses, half of every batch
    assert mixed >= len(run.batches) - machine.capacity // BATCH - 2
    # Ages reach through the whole of what is kept and no further; in the process runtime a batch
    # may have been sent a little earlier.
    slack = 0 if runtime == "serial" else 2 * BATCH
    assert KEPT - 4 <= max(ages) <= KEPT - 1 + slack
    if runtime == "serial":
        assert min(ages) == 0
        assert np.mean(ages) == pytest.approx((KEPT - 1) / 2, abs=1.0)
    lines = [
        line for line in read_lines(run.directory / "metrics.jsonl") if line["kind"] == "train"
    ]
    assert max(line["kept_sequences"] for line in lines) <= KEPT + (
        0 if runtime == "serial" else BATCH
    )
    assert lines[-1]["replayed_fraction"] == pytest.approx(
        again.total() / (again.total() + new.total()), abs=0.05
    )
    assert lines[-1]["reuse_served"] == pytest.approx(REUSE, abs=0.3)
    # One store, of the size that was stated before the run, for the whole run.
    own = max(BATCH // 2 + ENVS // machine.num_actors, ENVS)  # half of a batch is new
    assert machine.capacity == own + KEPT + BATCH
    assert [sum(a.nbytes for a in store.arrays.values()) for store in CountedStore.made] == [
        machine.store_bytes
    ]
    if runtime == "process":
        assert_behaviour(run)


# --- special settings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lstm", "burn_in", "scale"),
    [(8, 4, "raw"), (8, 0, "raw"), (0, 0, "raw"), (8, 4, "normalised")],
)
def test_learner_and_actor_agree_with_last_action_and_reward(tmp_path, lstm, burn_in, scale):
    """Parameters never change hands: the learner's forward of each window must give the actor's
    log-probabilities, ratio 1.
    """
    run = record(
        tmp_path,
        make_env=probe.Small,
        **{
            "frames": 200,
            "runtime.kind": "serial",
            "runtime.push_every": 1_000_000,
            "checkpoint.every": 0,
            "network.normalise": "none",
            "network.lstm": lstm,
            "sequence.burn_in": burn_in,
            "behaviour.scale": scale,
            "network.last_action_reward": True,
        },
    )
    model = ActorCritic(run.config, env_spec(run.config, run.make_env))
    probe.load_flat_state(model, run.parameters[0])
    learner = Learner(model, 1000)
    spread = []
    for batch in run.batches:
        assert not batch["version"].any()
        data = {
            n: torch.from_numpy(a)
            for n, a in batch.items()
            if n in (*probe.PER_STEP, "state", "last_action", "last_reward")
        }
        with torch.no_grad():
            found = probe.loss_of(learner, data)
        assert float(found.log_ratio.abs().max()) < 1e-4
        spread.append(batch["log_prob"][burn_in:])
    assert np.concatenate(spread, axis=None).std() > 0.2


def test_a_small_collector_loses_nothing_in_the_serial_runtime(tmp_path):
    """The collector holds fewer sequences than one round of all environments: sent windows must
    still all be trained.
    """
    run = record(
        tmp_path,
        **{
            "frames": 200,
            "runtime.kind": "serial",
            "checkpoint.every": 0,
            "sequence.capacity": BATCH,
        },
    )
    assert {env for _, env in run.streams} == set(range(ENVS))
    assert_consecutive(run.streams)
    for stream in (probe.rows(windows, BURN_IN) for windows in run.streams.values()):
        expected = probe.expected_stream(
            stream["observation"][0, 0], stream["action"], run.config.loss.discount
        )
        np.testing.assert_array_equal(stream["observation"], expected["observation"])


@pytest.mark.parametrize("burn_in", [3, 5, 7])
def test_burn_in_may_be_as_long_as_the_sequence_or_longer(tmp_path, burn_in):
    """A window then starts one, two or three windows back."""
    run = record(
        tmp_path,
        **{
            "frames": 100,
            "runtime.kind": "serial",
            "checkpoint.every": 0,
            "sequence.burn_in": burn_in,
            "sequence.length": 3,
        },
    )
    networks = probe.Networks(run.config, run.make_env, run.parameters)
    for windows in run.streams.values():
        stream = probe.rows(windows, burn_in)
        states = probe.replay(stream, networks).state
        expected = probe.expected_stream(
            stream["observation"][0, 0], stream["action"], run.config.loss.discount
        )
        np.testing.assert_array_equal(stream["observation"], expected["observation"])
        for k, window in windows.items():
            start = k * 3 - burn_in
            assert window.fields["valid"][: max(0, -start)].sum() == 0
            here = max(0, start)
            np.testing.assert_array_equal(
                window.fields["observation"][here - start : burn_in],
                stream["observation"][here : k * 3],
            )
            state = states[start] if start >= 0 else np.zeros_like(states[0])
            np.testing.assert_allclose(
                window.fields["state"], state, rtol=0, atol=1e-5, err_msg=f"window {k}"
            )
