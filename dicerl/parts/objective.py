"""The objective: batch -> V, A, pi -> targets -> losses. The paper's update on one screen.

    pi_tau = softmax(A / tau)                                  core/policy.py
    Q      = V + A                                             core/critic.py
    ratio  = pi_tau(a_t|s_t) / mu(a_t|s_t)                     both at the episode's own tau
    vs, qs, adv = V-Trace and ReTrace (or DR-Trace)            core/targets.py
    loss   = xi L_V + alpha L_Q + beta L_pi [- entropy bonus] [+ auxiliary]    core/losses.py

docs/paper.md has every equation with its function and its tests.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dicerl.agent.actor_critic import ActorCritic, PolicyWindow
from dicerl.config import Config, seeding
from dicerl.config.config import LossConfig
from dicerl.core import critic, losses, policy, targets


class Scaling(NamedTuple):
    """The weights of L_Q and L_pi: each one number, or [B] with one for each sequence."""

    alpha: float | Tensor
    beta: float | Tensor


class Targets(NamedTuple):
    """The targets of V and Q, and the advantage of the policy gradient."""

    value: Tensor  # [T, B] vs_t
    q: Tensor  # [T, B] qs_t
    advantage: Tensor  # [T, B]


class Objective(NamedTuple):
    """The losses of a batch, and what they were computed from."""

    losses: losses.Losses
    window: PolicyWindow  # T + 1 steps
    targets: Targets
    log_pi: Tensor  # [T, B, A]
    log_ratio: Tensor  # [T, B]
    valid: Tensor  # [T, B]


def objective(
    model: ActorCritic,
    batch: dict[str, Tensor],
    scaling: Scaling,
    starts: frozenset[int] | None = None,
) -> Objective:
    """The objective of a batch of windows [L, B, ...]; the update is the gradient of its
    ``losses.total``. ``starts`` as in ``ActorCritic.window``.
    """
    cfg, start = model.config.loss, model.config.sequence.burn_in
    log_mu, discount, valid = (batch[n][start:-1] for n in ("log_prob", "discount", "valid"))
    reward = model.shaped(batch["reward"][start:-1])  # [T, B], as those above
    actions = batch["action"][start:]  # [T + 1, B]: the last step only bootstraps

    window = model.window(batch, starts)
    value, advantage, inv, weight = window.value, window.advantage, *window.policy
    mask = window.mask
    log_pi = policy.log_probs(advantage.detach() if cfg.stop_pi else advantage, inv, weight, mask)
    every_q = _critic(cfg, value, advantage, log_pi)  # [T + 1, B, A], as log_pi
    log_pi, q = log_pi.detach(), policy.gather(every_q, actions)
    log_ratio = policy.gather(log_pi, actions)[:-1] - log_mu

    target = trace(cfg, window.value, q, every_q, log_pi, reward, discount, log_ratio, valid)
    rho = targets.clipped_ratio(log_ratio, valid, cfg.rho_bar)

    # From here on only the T trained steps.
    value, advantage, q, action = value[:-1], advantage[:-1], q[:-1], actions[:-1]
    inv, weight = inv[:-1], None if weight is None else weight[:-1]
    mask = None if mask is None else mask[:-1]
    policy_loss = losses.policy_loss(
        advantage, inv.detach(), action, rho, target.advantage, weight, mask, log_pi[:-1]
    )
    log_tau = model.network.log_inv_temperature
    if log_tau is not None:
        policy_loss = policy_loss + losses.temperature_loss(
            log_tau, advantage, inv.detach(), action, rho, target.advantage, mask
        )
    auxiliary = _auxiliary(model, window, action) if cfg.auxiliary else None
    value_loss, q_loss = losses.value_loss(value, target.value), losses.q_loss(q, target.q)
    bonus = None
    if cfg.entropy:
        bonus = losses.entropy_bonus(advantage, inv, cfg.entropy_scale, weight, mask)
    loss = losses.weighted_sum(
        value_loss,
        q_loss,
        policy_loss,
        bonus,
        valid,
        xi=cfg.value,
        alpha=scaling.alpha,
        beta=scaling.beta,
        entropy_coefficient=cfg.entropy,
        auxiliary=auxiliary,
        auxiliary_coefficient=cfg.auxiliary,
    )
    return Objective(loss, window, target, log_pi[:-1], log_ratio, valid)


def _critic(cfg: LossConfig, value: Tensor, advantage: Tensor, log_pi: Tensor) -> Tensor:
    """Q of every action by ``loss.critic``.    [..., A]"""
    if cfg.critic == "dueling":
        return critic.dueling(value, advantage)
    return critic.casa(value, advantage, log_pi.exp(), stop_pi=cfg.stop_pi, stop_v=cfg.stop_v)


@torch.no_grad()
def trace(
    cfg: LossConfig,
    value: Tensor,
    q: Tensor,
    every_q: Tensor,
    log_pi: Tensor,
    reward: Tensor,
    discount: Tensor,
    log_ratio: Tensor,
    valid: Tensor,
) -> Targets:
    """The targets of the T trained steps by ``loss.estimator``: ``value``, ``q``, ``every_q`` and
    ``log_pi`` have T + 1 steps, the rest T. ``q`` is of the actions taken, ``every_q`` of all.
    """
    common = (reward, discount, log_ratio, valid)
    rho_bar, c_bar = cfg.rho_bar, cfg.c_bar
    if cfg.estimator == "drtrace":
        both = targets.drtrace(value[:-1], value[1:], q[:-1], *common, rho_bar=rho_bar, c_bar=c_bar)
        return Targets(both.value, both.q, both.advantage)
    v, next_q = (value[:-1], value[1:]), q[1:]
    if cfg.retrace_bootstrap == "expected":
        next_q = (log_pi.exp() * every_q).sum(-1)[1:]
    if cfg.estimator == "vtrace+qtrace":
        of_v = targets.vtrace(*v, *common, rho_bar=rho_bar, c_bar=c_bar)
        of_q = targets.qtrace(q[:-1], next_q, *common, rho_bar=rho_bar, c_bar=c_bar)
    else:
        of_v, of_q = targets.vtrace_and_retrace(
            *v, q[:-1], next_q, *common, rho_bar=rho_bar, c_bar=c_bar
        )
    return Targets(of_v.value, of_q.q, of_v.advantage)


def _auxiliary(model: ActorCritic, window: PolicyWindow, action: Tensor) -> Tensor:
    """CASA's forward- and inverse-dynamics losses.    [T, B]"""
    predicted, guessed = model.network.dynamics(window.hidden, window.features, action)
    forward = losses.forward_dynamics_loss(predicted, window.features[1:])
    return forward + losses.inverse_dynamics_loss(guessed, action)


def draw_scaling(config: Config, number: int, device: torch.device) -> Scaling:
    """alpha and beta of batch ``number``: fixed, or drawn for every sequence of every batch (the
    ablation ``random_scaling``).
    """
    cfg = config.loss
    if cfg.scaling == "fixed":
        return Scaling(cfg.q, cfg.policy)
    rng = np.random.default_rng(seeding.stream(config.seed, "scaling", number))
    drawn = torch.from_numpy(rng.random((2, config.sequence.batch), np.float32)).to(device)
    return Scaling(2 * cfg.q * drawn[0], 2 * cfg.policy * drawn[1])
