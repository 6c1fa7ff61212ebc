"""parts/objective.py: the loss of a batch by hand, and where its gradient goes."""

import math

import numpy as np
import pytest
import torch

import probe
import reference as slow
from dicerl.core.reward import shape_reward
from probe import BURN_IN, CASA, gradients

pytestmark = pytest.mark.usefixtures("single_threaded")


def acting(learner, at, t, b):
    """(1/tau of each component, weights) of the target policy of one step."""
    kind, scale = learner.config.behaviour.family, at["scale"][t, b]
    if learner.network.log_inv_temperature is not None:
        return [math.exp(learner.network.log_inv_temperature.item()) / scale], [1.0]
    if kind == "epsilon":
        return [0.0, math.inf], [at["epsilon"][t, b], 1 - at["epsilon"][t, b]]
    if kind == "mixture":
        w = at["weight_low"][t, b]
        return [at[f"inv_temperature_{end}"][t, b] / scale for end in ("low", "high")], [w, 1 - w]
    return [at["inv_temperature"][t, b] / scale], [1.0]


def by_hand(learner, batch, out):
    """The loss of a batch from the slow references (tests/reference.py), in float64: each step's
    contribution, by its equation.
    """
    cfg = learner.config.loss
    value, head = out.value.detach().double().numpy(), out.advantage.detach().double().numpy()
    at = {
        n: a[BURN_IN:].astype(np.float64)
        for n, a in batch.items()
        if a.shape == batch["valid"].shape
    }
    action, valid = batch["action"][BURN_IN:], batch["valid"][BURN_IN:]
    steps, sequences = valid.shape[0] - 1, valid.shape[1]
    each = [(t, b) for t in range(steps + 1) for b in range(sequences)]
    policies = {(t, b): acting(learner, at, t, b) for t, b in each}
    pi = {(t, b): np.array(slow.mixture(head[t, b].tolist(), *policies[t, b])) for t, b in each}
    q, expected_q, log_ratio = np.zeros_like(value), np.zeros_like(value), np.zeros_like(value)
    for t, b in each:
        every = (
            slow.casa(value[t, b], head[t, b].tolist(), pi[t, b])
            if cfg.critic == "casa"
            else value[t, b] + head[t, b]
        )
        q[t, b], expected_q[t, b] = every[action[t, b]], sum(pi[t, b] * every)
        log_ratio[t, b] = math.log(pi[t, b][action[t, b]]) - at["log_prob"][t, b]
    reward = shape_reward(torch.from_numpy(at["reward"]), learner.config.env.reward_shape).numpy()[
        :-1
    ]
    rest = (reward, at["discount"][:-1], log_ratio[:-1], valid[:-1])
    bars = {"rho_bar": cfg.rho_bar, "c_bar": cfg.c_bar}
    next_q = {"sampled": q, "expected": expected_q}[cfg.retrace_bootstrap][1:]
    vs, adv = slow.vtrace(value[:-1], value[1:], *rest, **bars)
    if cfg.estimator == "drtrace":
        vs, qs, adv = slow.drtrace(value[:-1], value[1:], q[:-1], *rest, **bars)
    elif cfg.estimator == "vtrace+qtrace":
        qs = slow.qtrace(q[:-1], next_q, *rest, **bars)
    else:
        qs = slow.retrace(q[:-1], next_q, *rest, c_bar=cfg.c_bar)
    terms = {n: [] for n in ("value", "q", "policy", "entropy")}
    for t, b in each[: steps * sequences]:
        if not valid[t, b]:
            continue
        rho, a = slow.clipped(log_ratio[t, b], True, cfg.rho_bar), head[t, b]
        terms["value"].append(0.5 * (vs[t, b] - value[t, b]) ** 2)
        terms["q"].append(0.5 * (qs[t, b] - q[t, b]) ** 2)
        surrogate = sum(
            np.array(
                slow.mixture_surrogate_gradient(
                    a.tolist(), policies[t, b][0], action[t, b], policies[t, b][1]
                )
            )
            * a
        )
        trained = learner.network.log_inv_temperature
        terms["policy"].append(
            -rho * adv[t, b] * surrogate * (1 if trained is None else 1 + trained.item())
        )
        p = pi[t, b]
        entropy = -sum(x * math.log(x) for x in p if x > 0)
        bonus = sum(-p * (np.log(p) + entropy) * a)  # its gradient is that of tau * H
        terms["entropy"].append(
            {"plain": entropy, "tau": bonus}[cfg.entropy_scale] if cfg.entropy else 0.0
        )
    means = {n: float(np.mean(x)) for n, x in terms.items()}
    total = (
        cfg.value * means["value"]
        + cfg.q * means["q"]
        + cfg.policy * means["policy"]
        - cfg.entropy * means["entropy"]
    )
    return means | {"total": total}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss.retrace_bootstrap": "expected"},
        {"env.reward_shape": "none"},
        {"loss.entropy": 0.7},
        {"loss.entropy": 0.7, "loss.entropy_scale": "plain"},
        {"behaviour.scale": "normalised"},
        {
            "loss.rho_bar": 2.0,
            "loss.c_bar": 0.9,
            "loss.value": 0.5,
            "loss.q": 3.0,
            "loss.policy": 7.0,
        },
        CASA,
        CASA | {"loss.rho_bar": 2.0, "loss.c_bar": 0.9, "behaviour.scale": "normalised"},
        CASA | {"loss.stop_pi": False, "loss.stop_v": False},
        CASA | {"loss.estimator": "vtrace+qtrace", "loss.rho_bar": 2.0},
        {"loss.estimator": "vtrace+qtrace", "loss.retrace_bootstrap": "expected"},
        CASA | {"loss.estimator": "vtrace+retrace"},
        CASA | {"behaviour.source": "trainable", "behaviour.inv_temperature": 3.0},
        {"behaviour.family": "epsilon"},
        {"behaviour.family": "mixture", "behaviour.scale": "normalised"},
        CASA | {"behaviour.family": "mixture"},
        {"behaviour.family": "mixture", "loss.entropy": 0.7, "loss.entropy_scale": "plain"},
        {"behaviour.family": "conditioned"},
    ],
    ids=lambda c: ",".join(f"{k}={v}" for k, v in c.items()) or "paper",
)
def test_the_loss_is_the_sum_by_hand(changes):
    learner, batch = probe.learner_and_batch(**changes)
    data = probe.tensors(batch)
    found = probe.loss_of(learner, data)
    ratio = found.log_ratio.exp()
    assert (ratio > 1.05).any()
    assert (ratio < 0.9).any()
    for name, expected in by_hand(learner, batch, found.window).items():
        assert getattr(found.losses, name).item() == pytest.approx(expected, rel=2e-5, abs=1e-6), (
            name
        )


def test_the_bootstrap_changes_the_q_target_alone():
    sampled, batch = probe.learner_and_batch()
    expected, _ = probe.learner_and_batch(**{"loss.retrace_bootstrap": "expected"})
    data = probe.tensors(batch)
    a, b = (probe.loss_of(x, data) for x in (sampled, expected))
    assert a.losses.value.item() == b.losses.value.item()
    assert a.losses.policy.item() == b.losses.policy.item()
    assert a.losses.q.item() != b.losses.q.item()
    after_termination = torch.from_numpy(batch["discount"][BURN_IN:-1] == 0)
    torch.testing.assert_close(a.targets.q[after_termination], b.targets.q[after_termination])


# --- where the gradient goes (docs/paper.md 2.7) --------------------------------------------------


ONLY_Q = CASA | {"loss.value": 0.0, "loss.policy": 0.0, "loss.q": 1.0}


@pytest.mark.parametrize("stop_pi", [True, False])
@pytest.mark.parametrize("stop_v", [True, False])
def test_the_q_loss_reaches_v_and_pi_where_the_table_says(stop_pi, stop_v):
    """dL_Q/dV is (Q - qs) or nothing at all; dL_Q/dA is (Q - qs) (1 - pi), plus what flows through
    pi where that is not stopped.
    """
    learner, batch = probe.learner_and_batch(
        **ONLY_Q, **{"loss.stop_pi": stop_pi, "loss.stop_v": stop_v}
    )
    data = probe.tensors(batch)
    found = probe.loss_of(learner, data)
    out, loss = found.window, found.losses
    to_v, to_a = torch.autograd.grad(
        loss.total, (out.value, out.advantage), retain_graph=True, allow_unused=True
    )
    valid, action, inv = (
        batch["valid"][BURN_IN:],
        batch["action"][BURN_IN:],
        batch["inv_temperature"][BURN_IN:],
    )
    expected_v, expected_a = np.zeros(valid.shape), np.zeros(to_a.shape)
    for t, b in np.argwhere(valid[:-1]):
        a = out.advantage[t, b].tolist()
        q = slow.casa(out.value[t, b].item(), a, slow.softmax(a, inv[t, b]))[action[t, b]]
        expected_v[t, b] = (q - found.targets.q[t, b].item()) / valid[:-1].sum()
        expected_a[t, b] = expected_v[t, b] * np.array(
            slow.casa_slope(a, inv[t, b], action[t, b], stop_pi)
        )
    np.testing.assert_allclose(to_a.numpy(), expected_a, rtol=1e-4, atol=1e-6)
    if stop_v:
        assert to_v is None or not to_v.any()
    else:
        np.testing.assert_allclose(to_v.numpy(), expected_v, rtol=1e-4, atol=1e-6)
    loss.total.backward()
    reached = {
        n for n, p in learner.network.named_parameters() if p.grad is not None and p.grad.any()
    }
    assert ("value_head.weight" in reached) is not stop_v
    assert {"advantage_head.weight", "dense.0.weight"} <= reached


def test_the_q_loss_of_casa_pushes_a_along_the_policy_gradient():
    """grad Q = (1 - pi) grad A, so L_Q and L_pi move A along the same direction, step by step
    (docs/paper.md 1).
    """
    both = []
    for changes in (ONLY_Q, ONLY_Q | {"loss.q": 0.0, "loss.policy": 1.0}):
        learner, batch = probe.learner_and_batch(**changes)
        data = probe.tensors(batch)
        found = probe.loss_of(learner, data)
        both.append(
            torch.autograd.grad(found.losses.total, found.window.advantage)[0][:-1][
                data["valid"][BURN_IN:-1]
            ]
        )
    cosine = torch.nn.functional.cosine_similarity(*both, dim=-1)
    assert (cosine.abs() > 0.999).all()


@pytest.mark.parametrize("stop_pi", [True, False])
def test_the_q_loss_reaches_a_trainable_tau_only_through_pi(stop_pi):
    learner, batch = probe.learner_and_batch(
        **ONLY_Q, **{"loss.stop_pi": stop_pi, "behaviour.source": "trainable"}
    )
    data = probe.tensors(batch)
    (grad,) = torch.autograd.grad(
        probe.loss_of(learner, data).losses.total,
        learner.network.log_inv_temperature,
        allow_unused=True,
    )
    assert (grad is None or grad == 0) if stop_pi else abs(grad) > 1e-5


def test_the_gradient_of_a_trainable_tau_is_the_policy_gradient():
    """-beta mean(rho adv tau d log pi / d log(1/tau)), the derivative by autograd at the present
    tau, not at the recorded one.
    """
    learner, batch = probe.learner_and_batch(
        **CASA, **{"behaviour.source": "trainable", "behaviour.inv_temperature": 3.0}
    )
    batch["inv_temperature"][...] = 40.0  # of the actor that acted; the learner must not look at it
    data = probe.tensors(batch)
    found = probe.loss_of(learner, data)
    out, loss = found.window, found.losses
    (grad,) = torch.autograd.grad(loss.total, learner.network.log_inv_temperature)
    valid, action = found.valid, data["action"][BURN_IN:-1]
    p = torch.tensor(math.log(3.0), dtype=torch.float64, requires_grad=True)
    taken = torch.log_softmax(out.advantage[:-1].detach().double() * p.exp(), -1).gather(
        -1, action[..., None]
    )[..., 0]
    rho = (taken.detach() - data["log_prob"][BURN_IN:-1]).exp().clamp_max(1.05)
    objective = (rho * found.targets.advantage * taken)[valid].mean() / 3.0  # tau = 1/3
    (expected,) = torch.autograd.grad(-10.0 * objective, p)
    assert grad.item() == pytest.approx(expected.item(), rel=1e-4)
    reported = learner.update(batch, diagnose=True)
    assert reported["trainable_gradient"] == pytest.approx(grad.item(), rel=1e-4)
    assert reported["trainable_inv_temperature"] != pytest.approx(3.0, rel=1e-6)  # it was trained


def test_the_entropy_bonus_adds_its_gradient():
    """loss.entropy = 0.7 differs from 0 by the gradient of -0.7 * mean(tau * H), found by autograd
    with tau written out.
    """
    plain, batch = probe.learner_and_batch()
    with_bonus, _ = probe.learner_and_batch(**{"loss.entropy": 0.7})
    data = probe.tensors(batch)
    out = plain.model.window(data)
    inv = data["inv_temperature"][BURN_IN:-1]
    log_pi = torch.log_softmax(out.advantage[:-1] * inv.unsqueeze(-1), -1)
    bonus = (-(log_pi.exp() * log_pi).sum(-1) / inv)[data["valid"][BURN_IN:-1]].mean()
    plain.network.zero_grad(set_to_none=True)
    bonus.backward()
    added = {
        n: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for n, p in plain.network.named_parameters()
    }
    without, with_it = gradients(plain, batch), gradients(with_bonus, batch)
    assert added["advantage_head.weight"].abs().max() > 1e-4
    for name in without:
        torch.testing.assert_close(
            with_it[name], without[name] - 0.7 * added[name], rtol=1e-4, atol=1e-5, msg=name
        )


def test_targets_carry_no_gradient():
    """The gradient of L_V alone is -(vs - V) dV: the target's own dependence on V is not in it."""
    learner, batch = probe.learner_and_batch(**{"loss.q": 0.0, "loss.policy": 0.0})
    data = probe.tensors(batch)
    found = probe.loss_of(learner, data)
    out, loss = found.window, found.losses
    got = torch.autograd.grad(loss.total, out.value)[0]
    expected = (
        torch.where(found.valid, out.value[:-1] - found.targets.value, 0.0) / found.valid.sum()
    )
    torch.testing.assert_close(got[:-1], expected.detach())
    assert not got[-1].any()
