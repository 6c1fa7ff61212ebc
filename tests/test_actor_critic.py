"""agent/actor_critic.py: one policy for acting and training, burn-in, and A's scale."""

import numpy as np
import pytest
import torch

import probe
from dicerl.agent.actor_critic import ActorCritic
from dicerl.config.presets import preset
from dicerl.core import policy
from dicerl.core.family import NUMBERS
from dicerl.envs.base import EnvSpec
from probe import observations, step_by_step

ACTIONS, FEATURES, ENVS = probe.ACTIONS, 5, 3
BURN_IN, LENGTH, BEFORE = 4, 6, 3  # BEFORE: steps of the stream before the window begins

KINDS = {
    "boltzmann": {},
    "conditioned": {"behaviour.family": "conditioned"},
    "epsilon": {"behaviour.family": "epsilon"},
    "mixture": {"behaviour.family": "mixture"},
    "trainable": {"behaviour.source": "trainable", "behaviour.inv_temperature": 3.0},
}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    torch.set_num_threads(1)


def make(**changes):
    """A model whose A differs from action to action by about 1."""
    config = preset(
        "debug",
        **{
            "network.hidden": 12,
            "network.lstm": 7,
            "sequence.burn_in": BURN_IN,
            "sequence.length": LENGTH,
            **changes,
        },
    )
    model = ActorCritic(config, EnvSpec("test", (FEATURES,), np.dtype(np.float32), ACTIONS))
    with torch.no_grad():
        model.network.advantage_head.weight.mul_(5.0)
        model.network.advantage_scale.fill_(0.4)
    return model


def draw(model, rng, count):
    """Behaviours of episodes.    [count, numbers]"""
    names = NUMBERS[model.config.behaviour.family]
    columns = [rng.uniform(0.1, 5.0 if n.startswith("inv") else 0.9, count) for n in names]
    return np.stack(columns, 1).astype(np.float32)


# --- step and window ------------------------------------------------------------------------------

# (step, environment) that are reset steps: before the window, in burn-in, after it, and two in turn
RESETS = ((1, 0), (4, 1), (8, 2), (10, 2), (12, 0), (12, 1))


def act(model, rng):
    """A stream of ENVS environments through ``step``: (log pi of every step after burn-in
    [LENGTH + 1, ENVS, ACTIONS], the window that an actor records of it).
    """
    steps = BEFORE + BURN_IN + LENGTH + 1
    names = NUMBERS[model.config.behaviour.family]
    state, behaviour = model.initial_state(ENVS), draw(model, rng, ENVS)
    last_action, last_reward = np.full(ENVS, -1), np.zeros(ENVS, np.float32)
    rows, log_pi, before = [], [], None
    for t in range(steps):
        if t == BEFORE:
            before = state.transpose(0, 1).clone(), last_action.copy(), last_reward.copy()
        observation = rng.normal(size=(ENVS, FEATURES)).astype(np.float32)
        behaviour = model.present(behaviour)
        step = model.step(observation, state, last_action, last_reward, behaviour)
        action, reward = rng.integers(ACTIONS, size=ENVS), rng.normal(size=ENVS).astype(np.float32)
        ends = np.array([(t, b) in RESETS for b in range(ENVS)])
        log_pi.append(step.log_pi)
        rows.append(
            {
                "observation": observation,
                "action": action,
                "reward": reward,
                "valid": ~ends,
                "scale": np.full(ENVS, step.scale, np.float32),
                **{name: behaviour[:, i].copy() for i, name in enumerate(names)},
            }
        )
        state = step.state.clone()
        state[:, ends] = 0.0
        behaviour = np.where(ends[:, None], draw(model, rng, ENVS), behaviour)
        last_action, last_reward = np.where(ends, -1, action), np.where(ends, 0, reward)
        last_reward = last_reward.astype(np.float32)
    window = {n: np.stack([row[n] for row in rows[BEFORE:]]) for n in rows[0]}
    window |= {"last_action": before[1], "last_reward": before[2]}
    return np.stack(log_pi[BEFORE + BURN_IN :]), probe.tensors(window) | {"state": before[0]}


@pytest.mark.parametrize("lstm", [0, 7])
@pytest.mark.parametrize("last", [False, True], ids=["", "last"])
@pytest.mark.parametrize("scale", ["raw", "normalised"])
@pytest.mark.parametrize("kind", KINDS)
def test_acting_and_training_have_the_same_log_probabilities(kind, scale, last, lstm):
    """The same weights, the same stream: step by step as an actor sees it, with episodes that begin
    before the window, in burn-in and after it; and all of the window at once.
    """
    model = make(
        **KINDS[kind],
        **{
            "behaviour.scale": scale,
            "network.last_action_reward": last,
            "network.lstm": lstm,
            "env.reward_shape": "log",
        },
    )
    acted, batch = act(model, np.random.default_rng(0))
    with torch.no_grad():
        window = model.window(batch)
        trained = policy.log_probs(window.advantage, *window.policy).numpy()
    np.testing.assert_allclose(trained, acted, rtol=1e-5, atol=1e-5)
    assert acted.std() > 0.2
    # the policy is not the same wherever it looks
    assert np.abs(acted - acted[:1]).max() > 0.1


@pytest.mark.parametrize(
    "spoilt", ["observation", "valid", "inv_temperature", "scale", "state", "last_action", "reward"]
)
def test_whatever_the_window_is_told_matters(spoilt):
    """The test above can fail."""
    model = make(
        **KINDS["conditioned"],
        **{"behaviour.scale": "normalised", "network.last_action_reward": True},
    )
    acted, batch = act(model, np.random.default_rng(0))
    x = batch[spoilt]
    batch[spoilt] = {"valid": torch.ones_like(x), "last_action": (x + 2) % (ACTIONS + 1) - 1}.get(
        spoilt, 1.5 * x + 0.5 if x.is_floating_point() else x
    )
    with torch.no_grad():
        window = model.window(batch)
        trained = policy.log_probs(window.advantage, *window.policy).numpy()
    assert np.abs(trained - acted).max() > 1e-3


# --- a step ---------------------------------------------------------------------------------------


def one_step(model, count=64, change=lambda behaviour: behaviour):
    """(the step, the network's own output from the same inputs, the behaviour it was given)."""
    rng = np.random.default_rng(1)
    observation = rng.normal(size=(count, FEATURES)).astype(np.float32)
    state = torch.from_numpy(rng.normal(size=(2, count, model.config.network.lstm))).float()
    behaviour = change(draw(model, rng, count))
    nothing = np.full(count, -1), np.zeros(count, np.float32)
    step = model.step(observation, state, *nothing, behaviour)
    with torch.no_grad():
        out = model.network.unroll(torch.from_numpy(observation)[None], state, None)
    return step, out, behaviour


def test_a_step_tells_the_value_the_best_action_and_the_next_state():
    step, out, _ = one_step(make())
    assert step.value().shape == step.greedy().shape == (64,)
    np.testing.assert_array_equal(step.value(), out.value[0].numpy())
    np.testing.assert_array_equal(step.greedy(), out.advantage[0].argmax(-1).numpy())
    assert set(step.greedy()) == set(range(ACTIONS))
    assert torch.equal(step.state, out.state)
    assert step.state.shape == (2, 64, 7)
    np.testing.assert_array_equal(step.log_pi.argmax(1), step.greedy())  # every 1/tau is above 0


@pytest.mark.parametrize(("scale", "unit"), [("raw", 1.0), ("normalised", 0.4)])
def test_a_step_tells_the_unit_in_which_a_was_measured(scale, unit):
    step, out, behaviour = one_step(make(**{"behaviour.scale": scale}))
    assert step.scale == pytest.approx(unit)
    logits = out.advantage[0].double() * torch.from_numpy(behaviour).double() / unit
    expected = torch.log_softmax(logits, -1)
    np.testing.assert_allclose(step.log_pi, expected.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("present", [False, True])
def test_a_step_acts_as_given_and_a_trainable_tau_has_its_present_value(present):
    model = make(**KINDS["trainable"])
    with torch.no_grad():
        model.network.log_inv_temperature.fill_(np.log(7.0))
    step, out, inv = one_step(model, change=model.present if present else lambda given: given)
    assert np.allclose(inv, 7.0, rtol=1e-6) == present
    expected = torch.log_softmax(out.advantage[0] * torch.from_numpy(inv), -1)
    np.testing.assert_allclose(step.log_pi, expected.numpy(), rtol=1e-4, atol=1e-4)
    drawn = model.draw([(0.0, 1.0)], np.random.default_rng(0), 4)  # to evaluate: its own, too
    np.testing.assert_allclose(drawn, np.full((4, 1), 7.0), rtol=1e-6)


# --- burn-in --------------------------------------------------------------------------------------


def test_no_gradient_flows_through_burn_in():
    learner, batch = probe.learner_and_batch()
    data = probe.tensors(batch)
    data["observation"].requires_grad_()
    data["state"].requires_grad_()
    out = learner.model.window(data)
    assert out.value.shape == (7, 3)  # the trained steps and the bootstrap
    (out.value.sum() + out.advantage.square().sum()).backward()
    gradient = data["observation"].grad.abs().sum(-1)
    assert not gradient[:4].any()
    assert gradient[4:].all()
    assert data["state"].grad is None


def test_burn_in_warms_the_state_up():
    """The trained part starts from the state that burn-in reaches, and what stands in burn-in
    matters.
    """
    learner, batch = probe.learner_and_batch()
    data = probe.tensors(batch)
    first = ~torch.cat([torch.ones(1, 3, dtype=torch.bool), data["valid"][:-1]])
    with torch.no_grad():
        value, advantage, _ = step_by_step(
            learner.network, data["observation"], data["state"].transpose(0, 1), first
        )
        out = learner.model.window(data)
        torch.testing.assert_close(out.value, value[4:], rtol=0, atol=1e-6)
        torch.testing.assert_close(out.advantage, advantage[4:], rtol=0, atol=1e-6)
        data["observation"][3] += 1.0
        assert not torch.equal(learner.model.window(data).value, out.value)


# --- the unit of A --------------------------------------------------------------------------------


@pytest.mark.parametrize("last_action_reward", [False, True])
def test_the_scale_of_a_starts_from_the_fresh_network(last_action_reward):
    model = make(**{"network.last_action_reward": last_action_reward})
    network, observation = model.network, observations((5,), "float32", 16)
    model.calibrate(observation.numpy())
    nothing = (
        {"last_action": torch.full((1, 16), -1), "last_reward": torch.zeros(1, 16)}
        if last_action_reward
        else {}
    )
    with torch.no_grad():
        spread = (
            network.unroll(observation[None], network.initial_state(16), None, **nothing)
            .advantage.std(-1, correction=0)
            .mean()
        )
    torch.testing.assert_close(network.advantage_scale, spread)


def test_the_running_scale_of_a_follows_its_deviation_over_actions():
    learner, batch = probe.learner_and_batch(**{"behaviour.scale": "normalised"})
    learner.network.advantage_scale.fill_(5.0)
    with torch.no_grad():
        head = learner.model.window(probe.tensors(batch)).advantage[:-1]
    spread = float(head.std(-1, correction=0)[torch.from_numpy(batch["valid"][BURN_IN:-1])].mean())
    learner.update(batch)
    assert float(learner.network.advantage_scale) == pytest.approx(
        5.0 + 0.01 * (spread - 5.0), rel=1e-5
    )
    raw, batch = probe.learner_and_batch()
    raw.update(batch)
    assert float(raw.network.advantage_scale) == 1.0


@pytest.mark.parametrize("unit", ["fixed", "returns"])
def test_v_in_the_units_of_the_return(unit):
    """What the scale makes of the reward the network sees is the reward itself."""
    model = make(**{"env.reward_shape": "none", "env.reward_unit": unit, "env.reward_scale": 0.25})
    reward = torch.tensor([3.0, -7.0])
    assert torch.allclose(model.shaped(reward) * model.value_scale(), reward)
    if unit == "returns":
        model.network.return_size.copy_(torch.tensor([400.0, 5.0]))
        assert model.value_scale() == pytest.approx(20.0 / 0.25)
        assert torch.allclose(model.shaped(reward) * model.value_scale(), reward)
    assert make(**{"env.reward_shape": "log"}).value_scale() is None
