"""learner.py: the schedule, the loss of a batch by hand, what must not matter, and the
diagnostics.
"""

import math
import time

import numpy as np
import pytest
import torch

import probe
import reference as slow
from dicerl.config.presets import preset
from dicerl.core import losses
from dicerl.core.reward import shape_reward
from dicerl.errors import DicerlError
from dicerl.parts.learner import Learner
from dicerl.parts.objective import draw_scaling
from dicerl.parts.optimizer import schedule, total_updates

BURN_IN = 4


@pytest.fixture(autouse=True)
def _single_threaded():
    torch.set_num_threads(1)


# --- schedule -------------------------------------------------------------------------------------


def test_the_paper_s_run_has_19532_updates():
    """50M agent steps, each trained twice, in batches of 64 * 80."""
    assert (
        total_updates(preset("paper"), action_repeat=4)
        == math.ceil(50_000_000 * 2 / (64 * 80))
        == 19_532
    )
    assert total_updates(preset("paper", frames=1), action_repeat=4) == 1


def test_with_replay_a_run_has_more_updates_for_the_same_frames():
    """Half of each batch is new: each step is still trained ``reuse`` times as a new one."""
    assert total_updates(preset("paper", "laser"), action_repeat=4) == math.ceil(
        50_000_000 * 2 / (32 * 80)
    )


def rates(total, **changes):
    config = preset(
        "paper", **{"optimizer.learning_rate": 8.0, "optimizer.weight_decay": 2.0, **changes}
    )
    return np.array([schedule(config, u, total) for u in range(total + 3)])


@pytest.mark.parametrize("warmup", [4.0, 0.2])  # updates, or a fraction of 20
def test_warm_up_rises_linearly_then_the_rate_falls_linearly_to_0(warmup):
    rate = rates(20, **{"optimizer.warmup": warmup})[:, 0]
    np.testing.assert_allclose(rate[:4], [2.0, 4.0, 6.0, 8.0])
    np.testing.assert_allclose(rate[4:21], np.linspace(8.0, 0.0, 17))
    np.testing.assert_allclose(rate[20:], 0.0)


def test_without_warm_up_the_first_rate_is_the_peak():
    np.testing.assert_allclose(
        rates(10, **{"optimizer.warmup": 0.0})[:11, 0], np.linspace(8.0, 0.0, 11)
    )


def test_a_run_shorter_than_its_warm_up_only_rises():
    rate = rates(5, **{"optimizer.warmup": 10.0})[:, 0]
    np.testing.assert_allclose(rate[:5], [0.8, 1.6, 2.4, 3.2, 4.0])


@pytest.mark.parametrize("warmup", [0.0, 4.0, 100.0])
def test_weight_decay_falls_linearly_to_0(warmup):
    decay = rates(20, **{"optimizer.warmup": warmup})[:, 1]
    np.testing.assert_allclose(decay[:21], np.linspace(2.0, 0.0, 21))
    np.testing.assert_allclose(decay[20:], 0.0)


def test_an_update_is_as_far_in_the_schedule_as_its_valid_steps():
    """Reset steps are no data: progress is counted in batches of valid steps, so that the rates
    reach 0 with the last step.
    """
    learner, batch = probe.learner_and_batch(**{"optimizer.warmup": 2.0})
    fraction = batch["valid"][BURN_IN:-1].mean()
    assert 0.8 < fraction < 1.0
    o, trained = learner.config.optimizer, learner.weights.num_trained
    twin = torch.nn.Parameter(probe.flat_state(learner.model)[:trained])
    torchs = torch.optim.AdamW([twin], betas=(o.beta1, o.beta2), eps=o.eps)
    for update in range(6):
        told = learner.update(batch, diagnose=True)
        expected = schedule(learner.config, update * fraction, learner.optimizer.total)
        assert (told["learning_rate"], told["weight_decay"]) == pytest.approx(expected)
        torchs.param_groups[0]["lr"], torchs.param_groups[0]["weight_decay"] = expected
        twin.grad = learner.gradient.clone()
        torchs.step()
        torch.testing.assert_close(
            probe.flat_state(learner.model)[:trained], twin.detach(), rtol=1e-5, atol=1e-7
        )
        assert learner.updates == update + 1


def test_at_the_end_of_the_run_nothing_moves():
    learner, batch = probe.learner_and_batch()
    learner.update(batch)
    learner.weights.steps_trained = learner.optimizer.total * batch["valid"][BURN_IN:-1].size
    before = probe.flat_state(learner.model)
    learner.update(batch)
    assert torch.equal(probe.flat_state(learner.model), before)


# --- the loss -------------------------------------------------------------------------------------


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
    """The loss of a batch from the slow references (tests/reference.py), in float64: what each step
    adds, by its equation.
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


CASA = {"loss.critic": "casa", "loss.estimator": "drtrace"}


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


# --- where the gradient goes (SPEC 7) -------------------------------------------------------------

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
    """grad Q = (1 - pi) grad A, so L_Q and L_pi move A along the same direction, step by step (SPEC
    9.1).
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
    told = learner.update(batch, diagnose=True)
    assert told["trainable_gradient"] == pytest.approx(grad.item(), rel=1e-4)
    assert told["trainable_inv_temperature"] != pytest.approx(3.0, rel=1e-6)  # it was trained


def test_a_trainable_tau_moves_where_the_policy_gradient_points_and_stays_in_the_search_range():
    changes = CASA | {
        "behaviour.source": "trainable",
        "behaviour.inv_temperature": 2.0,
        "optimizer.learning_rate": 0.5,
        "optimizer.warmup": 0.0,
        "optimizer.weight_decay": 0.0,
    }
    for sign in (1, -1):
        learner, batch = probe.learner_and_batch(**changes)
        for _ in range(25):
            best = learner.model.window(probe.tensors(batch)).advantage.argmax(-1).numpy()
            batch["action"][BURN_IN:] = best
            batch["reward"][...] = sign * 5.0  # what is best at present pays, or costs
            learner.update(batch)
            assert 1 / 50 * 0.999 <= learner.network.log_inv_temperature.exp().item() <= 50 * 1.001
        assert (learner.network.log_inv_temperature.item() > math.log(2.0)) is (sign > 0)


def test_auxiliary_losses_by_hand():
    """Forward: the next features from what the heads see and the action; inverse: the action from
    two consecutive features.
    """
    learner, batch = probe.learner_and_batch(**CASA, **{"loss.auxiliary": 0.1})
    plain, _ = probe.learner_and_batch(**CASA)
    data = probe.tensors(batch)
    found = probe.loss_of(learner, data)
    out, loss = found.window, found.losses
    terms = []
    for t, b in found.valid.nonzero().tolist():
        taken = torch.zeros(probe.ACTIONS)
        taken[batch["action"][BURN_IN + t, b]] = 1.0
        foretold = learner.network.forward_model(torch.cat([out.hidden[t, b], taken]))
        logits = learner.network.inverse_model(
            torch.cat([out.features[t, b], out.features[t + 1, b]])
        )
        forward = 0.5 * (foretold - out.features[t + 1, b]).square().mean()
        terms.append(
            forward.item()
            - math.log(slow.softmax(logits.tolist(), 1.0)[batch["action"][BURN_IN + t, b]])
        )
    assert loss.auxiliary.item() == pytest.approx(np.mean(terms), rel=1e-5)
    assert loss.total.item() == pytest.approx(
        plain_total(plain, learner, data) + 0.1 * np.mean(terms), rel=1e-5
    )
    loss.total.backward()
    for name, p in learner.network.named_parameters():
        assert p.grad.any() if "model" in name else p.grad is not None, name
    assert learner.update(batch, diagnose=True)["loss_auxiliary"] == pytest.approx(
        np.mean(terms), rel=1e-4
    )


def plain_total(plain, learner, data):
    """The loss of the same weights without the auxiliary heads."""
    plain.network.load_state_dict(
        {n: t for n, t in learner.network.state_dict().items() if "model" not in n}
    )
    return probe.loss_of(plain, data).losses.total.item()


def test_the_target_of_forward_dynamics_is_stopped():
    """Features of the bootstrap step are only a target there: the forward loss alone gives them no
    gradient, the inverse loss does.
    """
    learner, batch = probe.learner_and_batch(
        **CASA, **{"loss.auxiliary": 1.0, "network.lstm": 0, "sequence.burn_in": 4}
    )
    data = probe.tensors(batch)
    out = learner.model.window(data)
    foretold, guessed = learner.network.dynamics(
        out.hidden, out.features, data["action"][BURN_IN:-1]
    )
    for term, reaches in (
        (losses.forward_dynamics_loss(foretold, out.features[1:]), False),
        (losses.inverse_dynamics_loss(guessed, data["action"][BURN_IN:-1]), True),
    ):
        (grad,) = torch.autograd.grad(term.sum(), out.features, retain_graph=True)
        assert bool(grad[-1].any()) is reaches


# --- random_scaling (SPEC 7) ----------------------------------------------------------------------


def test_random_scaling_weighs_each_sequence_by_its_own_draw():
    learner, batch = probe.learner_and_batch(
        **CASA, **{"loss.scaling": "random", "loss.value": 0.0}
    )
    data = probe.tensors(batch)
    found = probe.loss_of(learner, data)
    out, loss = found.window, found.losses
    fixed = {"loss.value": 0.0, "loss.q": 1.0, "loss.policy": 0.0}
    q = torch.autograd.grad(loss.total, out.advantage)[0]
    alone = []
    for changes in (fixed, fixed | {"loss.q": 0.0, "loss.policy": 1.0}):
        one, _ = probe.learner_and_batch(**CASA, **changes)
        there = probe.loss_of(one, data)
        alone.append(torch.autograd.grad(there.losses.total, there.window.advantage)[0])
    alpha, beta = draw_scaling(learner.config, learner.updates, learner.device)
    expected = alpha[None, :, None] * alone[0] + beta[None, :, None] * alone[1]
    torch.testing.assert_close(q, expected, rtol=1e-4, atol=1e-6)
    assert alpha.shape == beta.shape == (found.valid.shape[1],)
    assert not torch.allclose(alpha, beta)


def test_random_scaling_draws_from_0_to_twice_the_paper_s_value_anew_in_every_update():
    """U[0, 20]: mean 10, deviation 20/sqrt(12) = 5.77; the same for the same (seed, update)."""
    config = preset("debug", **{"loss.scaling": "random", "sequence.batch": 64})

    def draw(number, seed=0):
        return torch.stack(draw_scaling(config.replace(seed=seed), number, torch.device("cpu")))

    drawn = []
    for update in range(300):
        drawn.append(draw(update).numpy())
        assert not np.array_equal(draw(update, seed=1), drawn[-1])
    drawn = np.array(drawn)  # [updates, 2, B]
    assert len(np.unique(drawn)) > 0.99 * drawn.size
    assert 0.0 <= drawn.min() < 0.1
    assert 19.9 < drawn.max() <= 20.0
    for coefficient in (drawn[:, 0], drawn[:, 1]):
        assert coefficient.mean() == pytest.approx(10.0, abs=0.2)
        assert coefficient.std() == pytest.approx(20 / math.sqrt(12), abs=0.1)
    assert abs(np.corrcoef(drawn[:, 0].ravel(), drawn[:, 1].ravel())[0, 1]) < 0.03
    np.testing.assert_array_equal(draw(7), drawn[7])


def gradients(learner, batch):
    data = probe.tensors({n: a for n, a in batch.items() if n not in ("stream", "created")})
    learner.network.zero_grad(set_to_none=True)
    probe.loss_of(learner, data).losses.total.backward()
    return {n: p.grad.clone() for n, p in learner.network.named_parameters()}


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


# --- what must not matter -------------------------------------------------------------------------


def spoil(batch, step, sequence, names, seed):
    rng = np.random.default_rng(seed)
    for name in names:
        old = batch[name][step, sequence].copy()
        if name == "action":
            batch[name][step, sequence] = (old + 1) % probe.ACTIONS
        elif name == "observation":
            batch[name][step, sequence] = 3 * rng.normal(size=old.shape)
        else:
            batch[name][step, sequence] = {
                "reward": 1e6,
                "discount": 0.5,
                "log_prob": -80.0,
                "inv_temperature": 40.0,
                "version": 99,
            }[name]
        assert not np.array_equal(batch[name][step, sequence], old)


EVERYTHING = (
    "observation",
    "action",
    "reward",
    "discount",
    "log_prob",
    "inv_temperature",
    "version",
)
# After a truncation the final observation and the action there are the bootstrap's.
AFTER_TRUNCATION = ("reward", "discount", "log_prob", "version")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"network.last_action_reward": True},
        {"loss.entropy": 1.0},
        {"loss.retrace_bootstrap": "expected"},
        {"network.lstm": 0},
        CASA | {"loss.auxiliary": 0.1},
        CASA | {"loss.stop_pi": False, "loss.stop_v": False},
        {"behaviour.family": "conditioned"},
    ],
    ids=str,
)
def test_reset_steps_add_nothing_to_the_gradient(changes):
    learner, batch = probe.learner_and_batch(**changes)
    before = gradients(learner, batch)
    for step, sequence, terminated in probe.ENDS:
        # the final observation is what forward dynamics foretells
        seen = not terminated or "loss.auxiliary" in changes
        spoil(batch, step, sequence, AFTER_TRUNCATION if seen else EVERYTHING, seed=step)
    after = gradients(learner, batch)
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=1e-5, atol=1e-7, msg=name)


def test_padding_adds_nothing_to_the_gradient():
    learner, batch = probe.learner_and_batch(**{"network.last_action_reward": True})
    batch["valid"][: BURN_IN + 1, 2] = False  # the padding and, for good measure, one step more
    before = gradients(learner, batch)
    for step in range(BURN_IN + 1):
        spoil(batch, step, 2, EVERYTHING, seed=step)
    batch["state"][2] += 5.0
    batch["last_action"][2], batch["last_reward"][2] = 0, 100.0
    after = gradients(learner, batch)
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=1e-5, atol=1e-7, msg=name)


def test_steps_that_are_valid_do_matter():
    """The two tests above can fail."""
    for name in ("observation", "action", "reward", "log_prob", "inv_temperature", "discount"):
        learner, batch = probe.learner_and_batch()
        before = gradients(learner, batch)
        spoil(batch, 5, 2, (name,), seed=0)
        after = gradients(learner, batch)
        assert any(not torch.allclose(after[n], before[n], rtol=1e-3) for n in before), name


def test_a_truncation_bootstraps_and_a_termination_does_not():
    for step, sequence, terminated in probe.ENDS[1:]:
        learner, batch = probe.learner_and_batch()
        before = gradients(learner, batch)
        spoil(batch, step, sequence, ("observation",), seed=0)
        after = gradients(learner, batch)
        same = all(torch.allclose(after[n], before[n], rtol=1e-5, atol=1e-7) for n in before)
        assert same is terminated


def test_the_order_of_sequences_in_a_batch_does_not_matter():
    learner, batch = probe.learner_and_batch()
    turned = {
        n: (
            a[:, ::-1].copy()
            if a.shape[:1] == batch["valid"].shape[:1] and a.ndim > 1
            else a[::-1].copy()
        )
        for n, a in batch.items()
    }
    before, after = gradients(learner, batch), gradients(learner, turned)
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"network.lstm": 0},
        {"behaviour.scale": "normalised"},
        {"loss.entropy": 1.0},
        {"behaviour.family": "mixture"},
        {"behaviour.family": "conditioned"},
        CASA | {"loss.auxiliary": 0.1, "loss.scaling": "random", "behaviour.source": "trainable"},
    ],
    ids=str,
)
@pytest.mark.parametrize("threads", [2, 3])
def test_the_threads_of_a_learner_share_a_batch_and_change_nothing(changes, threads):
    """To float tolerance: a sum over sequences in another order. Sequences have different numbers
    of valid steps.
    """
    alone, batch = probe.learner_and_batch(**changes)
    together, _ = probe.learner_and_batch(**changes)
    together = Learner(together.model, together.optimizer.total, threads=threads)
    batch["valid"][BURN_IN + 1 : BURN_IN + 4, 1] = False
    for learner in (alone, together):
        learner.weights.updates = 10
    told, shared = alone.update(batch, diagnose=True), together.update(batch, diagnose=True)
    assert alone.gradient.any()
    torch.testing.assert_close(together.gradient, alone.gradient, rtol=1e-4, atol=1e-6)
    age = ("sequence_age",)
    assert {n: x for n, x in shared.items() if n not in age} == pytest.approx(
        {n: x for n, x in told.items() if n not in age}, rel=1e-4, abs=1e-6
    )
    torch.testing.assert_close(together.network.advantage_scale, alone.network.advantage_scale)


def test_a_shared_batch_without_a_valid_step_moves_nothing():
    learner, batch = probe.learner_and_batch(**{"optimizer.weight_decay": 0.0})
    learner = Learner(learner.model, learner.optimizer.total, threads=2)
    batch["valid"][...] = False
    before = probe.flat_state(learner.model)
    assert learner.update(batch, diagnose=True)["loss"] == 0.0
    assert torch.equal(probe.flat_state(learner.model), before)


def test_a_batch_without_a_valid_step_moves_nothing_but_the_weight_decay():
    learner, batch = probe.learner_and_batch(**{"optimizer.weight_decay": 0.0})
    batch["valid"][...] = False
    before = probe.flat_state(learner.model)
    told = learner.update(batch, diagnose=True)
    assert told["loss"] == 0.0
    assert torch.equal(probe.flat_state(learner.model), before)


# --- updates and diagnostics ----------------------------------------------------------------------

DIAGNOSTICS = {
    "loss",
    "loss_value",
    "loss_q",
    "loss_policy",
    "entropy_bonus",
    "gradient_norm",
    "ratio_mean",
    "ratio_max",
    "ratio_std",
    "rho_clipped",
    "c_clipped",
    "entropy",
    "value_mean",
    "value_std",
    "advantage_std",
    "advantage_scale",
    "policy_lag",
    "policy_lag_max",
    "sequence_age",
    "dead_units",
    "feature_spread",
    "learning_rate",
    "weight_decay",
    "valid_fraction",
    "inv_temperature_mean",
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"network.lstm": 0},
        {"behaviour.scale": "normalised"},
        {"loss.entropy": 1.0},
        CASA | {"loss.auxiliary": 0.1, "loss.scaling": "random", "behaviour.source": "trainable"},
    ],
    ids=str,
)
def test_diagnostics_are_complete_and_finite(changes):
    learner, batch = probe.learner_and_batch(**changes)
    learner.weights.updates = 10
    told = learner.update(batch, diagnose=True)
    assert set(told) >= DIAGNOSTICS
    assert all(isinstance(x, float) and math.isfinite(x) for x in told.values()), told
    assert learner.update(batch) is None


def test_diagnostics_say_what_they_are_named_after():
    learner, batch = probe.learner_and_batch(**{"loss.rho_bar": 1.3, "network.activation": "relu"})
    learner.weights.updates = 10
    batch["version"][:, 1] = 7
    batch["version"][:BURN_IN] = -100  # burn-in is not trained: it does not count
    data = probe.tensors(batch)
    with torch.no_grad():
        found = probe.loss_of(learner, data)
    out, loss = found.window, found.losses
    valid = batch["valid"][BURN_IN:-1]
    told = learner.update(batch, diagnose=True)
    ratio = found.log_ratio.exp().numpy()[valid]
    value, head = out.value[:-1].numpy()[valid], out.advantage[:-1].numpy()[valid]
    features = out.features[:-1].numpy()[valid]
    pi = found.log_pi.exp().numpy()[valid]
    lag = 10 - batch["version"][BURN_IN:-1][valid]
    expected = {
        "loss": float(loss.total),
        "loss_value": float(loss.value),
        "loss_q": float(loss.q),
        "loss_policy": float(loss.policy),
        "ratio_mean": ratio.mean(),
        "ratio_max": ratio.max(),
        "ratio_std": ratio.std(),
        "rho_clipped": (ratio > 1.3).mean(),
        "c_clipped": (ratio > 1.05).mean(),
        "entropy": -(pi * np.log(pi)).sum(-1).mean(),
        "value_mean": value.mean(),
        "value_std": value.std(),
        "advantage_std": head.std(-1).mean(),
        "advantage_scale": 1.0,
        "policy_lag": lag.mean(),
        "policy_lag_max": lag.max(),
        "dead_units": (features == features[0]).all(0).mean(),
        "feature_spread": features.std(0).mean(),
        "valid_fraction": valid.mean(),
        "inv_temperature_mean": batch["inv_temperature"][BURN_IN:-1][valid].mean(),
    }
    for name, x in expected.items():
        assert told[name] == pytest.approx(float(x), rel=1e-4, abs=1e-6), name
    assert 5.0 <= told["sequence_age"] < 60.0 + time.time() - batch["created"].mean()
    assert {round(x) for x in (told["policy_lag"], told["policy_lag_max"])} <= {3, 4, 5, 6, 7}


def test_the_policy_lag_is_measured_for_every_batch():
    """Also for those between two diagnostics (SPEC 5)."""
    learner, batch = probe.learner_and_batch()
    learner.weights.updates = 100
    for version in (90, 80, 95):
        batch["version"][...] = version
        told = learner.update(batch, diagnose=version == 95)
    assert told["policy_lag"] == pytest.approx(np.mean([100 - 90, 101 - 80, 102 - 95]))
    assert told["policy_lag_max"] == 101 - 80
    assert learner.update(batch, diagnose=True)["policy_lag_max"] == 103 - 95


def test_the_gradient_norm_is_told_before_it_is_clipped():
    learner, batch = probe.learner_and_batch(**{"optimizer.clip_norm": 1e-3})
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients(learner, batch).values()))
    assert learner.update(batch, diagnose=True)["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    clipped = float(learner.gradient.norm())
    assert clipped == pytest.approx(1e-3, rel=1e-3)


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


def test_a_loss_that_is_not_finite_is_told():
    learner, batch = probe.learner_and_batch()
    batch["reward"][6, 1] = np.inf
    with pytest.raises(DicerlError, match=r"the loss became (inf|nan) at update 0"):
        learner.update(batch, diagnose=True)
