"""From the environments to the learner, through every runtime (docs/paper.md 2.2, 2.5): no step is
lost, doubled or reordered, and what the learner receives for a step (state, log-probability,
temperature, scale, version) is what the actor did.
"""

import json
from collections import Counter

import numpy as np
import pytest
import torch

import probe
from dicerl.core.policy import log_probs
from dicerl.records import checkpoint
from dicerl.records.metrics import read_lines
from recorded import BATCH, BURN_IN, ENVS, LENGTH, REUSE, RUNS, assert_consecutive, record

# seconds of CPU time, but whole runs: on a crowded machine they take their time
pytestmark = pytest.mark.timeout(900)


# several learners on a cluster: also in test_ray.py and test_replicas.py
SLOW = ("ray-together",)
PARAMS = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in RUNS]


@pytest.fixture(scope="module", params=PARAMS)
def run(request, tmp_path_factory):
    changes = RUNS[request.param]
    # this process and two actors
    players = 0 if changes["runtime.kind"] == "serial" else 3
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
