"""From the environments to the learner, through both runtimes (docs/paper.md 2.2, 2.5): no step is
lost, doubled or reordered, and what the learner receives for a step (state, log-probability,
temperature, scale, version) is what the actor did.
"""

import json
import math
import os
import time
import typing
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import probe
import reference as slow
from dicerl.agent.actor_critic import ActorCritic
from dicerl.api import train
from dicerl.config.presets import preset
from dicerl.core.family import NUMBERS
from dicerl.core.policy import log_probs
from dicerl.envs import env_spec
from dicerl.parts.learner import Learner
from dicerl.parts.sequence import Store
from dicerl.records import checkpoint
from dicerl.records.metrics import read_lines
from dicerl.runtime.setup import plan

# seconds of CPU time, but whole runs: on a crowded machine they take their time
pytestmark = pytest.mark.timeout(900)

# 5 windows a round in batches of 4: rounds and batches never align
BURN_IN, LENGTH, BATCH, REUSE, ENVS = 4, 6, 4, 2, 5

# A large learning rate: each version acts differently from the one before.
COMMON = {
    "tensorboard": False,
    "frames": 900,
    "evaluation.every": 0,
    "runtime.num_envs": ENVS,
    "runtime.push_every": 2,
    "runtime.pull_every": 3,
    "sequence.burn_in": BURN_IN,
    "sequence.length": LENGTH,
    "sequence.batch": BATCH,
    "sequence.reuse": REUSE,
    "network.hidden": 16,
    "network.lstm": 8,
    "network.normalise": "statistics",
    "network.statistics_steps": 256,
    "optimizer.learning_rate": 2e-3,
    "optimizer.warmup": 0.0,
    "runtime.learner_threads": 1,
    "runtime.num_learners": 1,
}
# All temperatures alike: which ones the bandits come to like depends on the actors' timing, and
# among cold ones nearly every step is certain.
CURIOUS = {"bandit.ucb_scale": 1000.0}
RUNS = {
    # Checkpoints restart the environments twice in mid-run.
    "serial": {"runtime.kind": "serial", "behaviour.scale": "raw", "checkpoint.every": 300},
    "serial-normalised": {
        "runtime.kind": "serial",
        "behaviour.scale": "normalised",
        "checkpoint.every": 0,
        "frames": 500,
    },
    # Two actors with 2 and 3 environments; one slot more than a batch, so that they wait all the
    # time.
    "process": {
        "runtime.kind": "process",
        "behaviour.scale": "normalised",
        "checkpoint.every": 0,
        "runtime.num_actors": 2,
        "sequence.capacity": BATCH + 1,
        **CURIOUS,
    },
}


def record(folder, players=0, make_env=None, **changes):
    """Train and read back everything the learner received."""
    config = preset("debug", **COMMON).replace(run_dir=str(folder / "run"), **changes)
    recorder = probe.Recorder(folder / "batches", players)
    recorder.directory.mkdir()
    make_env = make_env or probe.MakeTraced(recorder.directory)
    run = train(config, make_env, quiet=True, on_batch=recorder)
    batches = probe.load_batches(recorder.directory)
    streams = probe.collect(batches)
    return SimpleNamespace(
        config=config,
        directory=run.directory,
        summary=run.summary,
        batches=batches,
        streams=streams,
        make_env=make_env,
        parameters=probe.load_parameters(recorder.directory),
        path=checkpoint.newest(run.directory)[0],
        burn_in=config.sequence.burn_in,
        length=config.sequence.length,
    )


@pytest.fixture(scope="module", params=RUNS)
def run(request, tmp_path_factory):
    changes = RUNS[request.param]
    players = 3 if changes["runtime.kind"] == "process" else 0  # this process and two actors
    result = record(tmp_path_factory.mktemp(request.param), players, **changes)
    result.serial = changes["runtime.kind"] == "serial"
    return result


@pytest.fixture(scope="module")
def rows(run):
    """Each stream as one long array of steps."""
    assert_consecutive(run.streams)
    return {key: probe.rows(windows, run.burn_in) for key, windows in run.streams.items()}


@pytest.fixture(scope="module")
def replays(run, rows):
    networks = probe.Networks(run.config, run.make_env, run.parameters)
    return {key: probe.replay(stream, networks) for key, stream in rows.items()}


def assert_consecutive(streams):
    for key, windows in streams.items():
        assert sorted(windows) == list(range(len(windows))), (
            f"stream {key} has windows {sorted(windows)}"
        )


def pending_windows(run):
    """What waited in the serial collector at the end, from the last checkpoint: (fields, uses so
    far).
    """
    uses = json.loads((run.path / "state.json").read_text())["serial"]["uses"]
    if not uses:
        return []
    sequences = {n: t.numpy() for n, t in checkpoint.read_tensors(run.path, "sequences").items()}
    return list(zip(probe.split(sequences), uses, strict=True))


# --- windows --------------------------------------------------------------------------------------


def test_the_run_is_not_trivial(run):
    """Every environment gave many windows, and several versions acted."""
    assert run.summary["complete"]
    assert {env for _, env in run.streams} == set(range(ENVS))
    assert sum(map(len, run.streams.values())) >= 70
    assert len({v for batch in run.batches for v in np.unique(batch["version"])}) > 8
    if run.serial and run.config.checkpoint.every:
        assert {incarnation for incarnation, _ in run.streams} == {0, 1, 2}


def test_batches_are_whole_and_in_order(run):
    assert [int(b["updates"]) for b in run.batches] == list(range(run.summary["updates"]))
    for batch in run.batches:
        assert batch["valid"].shape == (BURN_IN + LENGTH + 1, BATCH)
        assert batch["state"].shape == (BATCH, 2, run.config.network.lstm)


def test_windows_of_a_stream_follow_each_other_from_zero(run):
    assert_consecutive(run.streams)
    for windows in run.streams.values():
        first_uses = [windows[k].updates[0] for k in range(len(windows))]
        assert first_uses == sorted(first_uses)  # in order


def test_each_sequence_is_trained_reuse_times_in_different_batches(run):
    unfinished = 0
    for key, windows in run.streams.items():
        for number, window in windows.items():
            assert len(set(window.updates)) == len(window.updates), (
                f"{key} {number} stands twice in one batch"
            )
            assert len(window.updates) <= REUSE
            unfinished += len(window.updates) < REUSE
    assert unfinished <= BATCH - 1
    assert sum(
        len(w.updates) for windows in run.streams.values() for w in windows.values()
    ) == BATCH * len(run.batches)


def test_what_waits_at_the_end_is_less_than_a_batch(run):
    """Serial, exactly: all steps taken stand in windows that were trained or wait. Process: within
    what the actors had not yet sent.
    """
    trained = sum(
        int(w.fields["valid"][BURN_IN:-1].sum())
        for windows in run.streams.values()
        for w in windows.values()
    )
    if not run.serial:
        unsent = ENVS * 2 * LENGTH + (BATCH - 1) * LENGTH
        assert run.summary["agent_steps"] - unsent <= trained <= run.summary["agent_steps"]
        return
    pending = pending_windows(run)
    assert len(pending) <= BATCH - 1
    for fields, used in pending:
        incarnation, env, number = fields["stream"].tolist()
        seen = run.streams[incarnation, env].get(number)
        assert used == (len(seen.updates) if seen else 0)
        trained += 0 if seen else int(fields["valid"][BURN_IN:-1].sum())
    assert trained == run.summary["agent_steps"]


def test_the_first_window_is_padded_with_invalid_steps(run):
    for windows in run.streams.values():
        first = windows[0].fields
        assert not first["valid"][:BURN_IN].any()
        assert not first["observation"][:BURN_IN].any()
        assert first["valid"][BURN_IN]  # an episode's first step
        assert first["last_action"] == -1
        assert not first["state"].any()


def test_burn_in_is_the_end_of_the_window_before(run):
    for windows in run.streams.values():
        for k in range(1, len(windows)):
            before, here = windows[k - 1].fields, windows[k].fields
            for name in probe.PER_STEP:
                np.testing.assert_array_equal(
                    here[name][:BURN_IN], before[name][LENGTH : LENGTH + BURN_IN], err_msg=name
                )


def test_the_bootstrap_step_is_the_next_window_s_first(run):
    for windows in run.streams.values():
        for k in range(1, len(windows)):
            for name in set(probe.PER_STEP) - {"reward", "discount"}:  # known only after the step
                np.testing.assert_array_equal(
                    windows[k - 1].fields[name][-1], windows[k].fields[name][BURN_IN], err_msg=name
                )


# --- content --------------------------------------------------------------------------------------


def test_every_step_is_what_the_environment_gave(run, rows):
    """Observations, rewards, discount 0 at a termination and gamma at a truncation, valid 0 on the
    reset step alone.
    """
    gamma = run.config.loss.discount
    kinds = Counter()
    for key, stream in rows.items():
        expected = probe.expected_stream(stream["observation"][0, 0], stream["action"], gamma)
        for name in ("observation", "valid"):
            np.testing.assert_array_equal(stream[name], expected[name], err_msg=f"{name} of {key}")
        for name in ("reward", "discount"):
            np.testing.assert_array_equal(
                stream[name][:-1], expected[name][:-1], err_msg=f"{name} of {key}"
            )
        kinds.update(
            {
                "reset": int((~stream["valid"]).sum()),
                "terminated": int((stream["discount"][:-1] == 0).sum()),
            }
        )
    assert kinds["reset"] > 1.3 * kinds["terminated"] > 10  # both kinds of end occurred


def test_every_environment_has_its_own_stream(rows):
    identities = [stream["observation"][0, 0] for stream in rows.values()]
    assert len(set(identities)) == len(identities)


def test_an_episode_keeps_its_temperature(rows):
    drawn = set()
    for stream in rows.values():
        for episode in np.unique(stream["observation"][:, 1]):
            inv = np.unique(stream["inv_temperature"][stream["observation"][:, 1] == episode])
            assert len(inv) == 1
            drawn.add(float(inv[0]))
    assert len(drawn) > 30
    assert 0.0 <= min(drawn) < 1.0
    assert 20.0 < max(drawn) <= 50.0


def test_episodes_are_reported_once_with_their_raw_return(run, rows):
    reported = Counter(
        (e["length"], e["return"], e["inv_temperature"])
        for e in read_lines(run.directory / "metrics.jsonl")
        if e["kind"] == "episode"
    )
    seen = Counter()
    for stream in rows.values():
        for t in np.flatnonzero(~stream["valid"]):
            length = int(stream["observation"][t, 2])
            # metrics keep six digits
            seen[
                length, length * (length + 1) / 2, float(f"{stream['inv_temperature'][t]:.6g}")
            ] += 1
    assert seen <= reported
    # More were reported than trained only where windows were not trained, or the run ended between
    # a last step and its reset step.
    assert reported.total() - seen.total() <= (ENVS + BATCH) * LENGTH
    assert reported.total() == run.summary["episodes"]


# --- what the actor did ---------------------------------------------------------------------------


def test_versions_are_pushed_ones_and_never_go_back(run, rows):
    for stream in rows.values():
        assert (np.diff(stream["version"]) >= 0).all()
    pushed = {v for v in run.parameters if v % run.config.runtime.push_every == 0}
    # a checkpoint pushes too
    restarts = {int(windows[0].fields["version"][BURN_IN]) for windows in run.streams.values()}
    for windows in run.streams.values():
        for window in windows.values():
            assert set(window.fields["version"][BURN_IN:].tolist()) <= pushed | restarts
            assert window.fields["version"].max() <= window.updates[0]


def test_actors_pull_every_pull_every_steps(run, rows):
    """A version stays for a multiple of pull_every steps, whatever is pushed meanwhile."""
    stays = Counter()
    for key, stream in rows.items():
        changes = np.flatnonzero(np.diff(stream["version"])) + 1
        if key[0] == 0:  # a restart pulls out of turn
            assert not (changes % run.config.runtime.pull_every).any()
        stays.update(np.diff(changes).tolist())
    assert stays


def test_stored_states_match_a_replay_of_the_stream(run, replays):
    checked = 0
    for key, windows in run.streams.items():
        for k, window in windows.items():
            start = k * LENGTH - BURN_IN
            expected = (
                replays[key].state[start] if start >= 0 else np.zeros_like(replays[key].state[0])
            )
            np.testing.assert_allclose(
                window.fields["state"],
                expected,
                rtol=0,
                atol=1e-5,
                err_msg=f"stream {key}, window {k}",
            )
            checked += start >= 0 and bool(np.abs(expected).max() > 0.01)
    assert checked > 40


def test_stored_last_action_and_reward_precede_the_window(run, rows):
    for key, windows in run.streams.items():
        for k in range(1, len(windows)):
            before = k * LENGTH - BURN_IN - 1
            assert windows[k].fields["last_action"] == (
                rows[key]["action"][before] if rows[key]["valid"][before] else -1
            )
            assert windows[k].fields["last_reward"] == (
                rows[key]["reward"][before] if rows[key]["valid"][before] else 0.0
            )


def test_log_probs_are_those_of_the_version_that_acted(run, rows, replays):
    spread = []
    for key, stream in rows.items():
        scale = (
            replays[key].scale
            if run.config.behaviour.scale == "normalised"
            else np.ones(len(stream["scale"]))
        )
        np.testing.assert_allclose(stream["scale"], scale, rtol=1e-6)
        inv = torch.from_numpy((stream["inv_temperature"] / scale).astype(np.float64))
        expected = log_probs(
            torch.from_numpy(replays[key].advantage.astype(np.float64)), inv
        ).numpy()
        taken = expected[np.arange(len(expected)), stream["action"]]
        np.testing.assert_allclose(
            stream["log_prob"], taken, rtol=1e-4, atol=1e-4, err_msg=f"stream {key}"
        )
        spread.append(stream["log_prob"])
    assert np.concatenate(spread).std() > 0.2  # not all uniform


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
        **{"frames": 350, "runtime.kind": "serial", "checkpoint.every": 150, **FAMILIES[name]},
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
    "serial": {"runtime.kind": "serial", "checkpoint.every": 300},
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
    assert machine.capacity == BATCH + ENVS + KEPT + BATCH
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
