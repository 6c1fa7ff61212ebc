"""The Learner: batch -> network -> core.targets -> core.losses -> AdamW."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.optim.adamw import adamw

from dicerl.agent.networks import Network, Output
from dicerl.agent.weights import Weights, view
from dicerl.config import Config, seeding
from dicerl.core import critic, family, losses, policy, targets
from dicerl.core.reward import shape_reward
from dicerl.errors import ConfigError, DicerlError
from dicerl.parts.sequence import Arrays, schema

Scaling = tuple[float | Tensor, float | Tensor]  # alpha and beta, each for all sequences or [B]

SCALE_RATE = 0.01  # of the running deviation of A over actions
SCALE_FLOOR = 1e-6


def total_updates(config: Config, action_repeat: int) -> int:
    """Updates of the whole run: every step is trained ``reuse`` times in batches of B * T steps,
    without those replayed.
    """
    s = config.sequence
    return max(
        1,
        math.ceil(
            config.frames / action_repeat * s.reuse / ((s.batch - config.replayed) * s.length)
        ),
    )


def schedule(config: Config, updates: float, total: int) -> tuple[float, float]:
    """(learning rate, weight decay): linear warm-up, then both linear to 0 over the run
    (SPEC 6).
    """
    o = config.optimizer
    warmup = o.warmup * total if o.warmup < 1 else o.warmup
    left = max(0.0, 1.0 - updates / total)
    rate = o.learning_rate * min(1.0, (updates + 1) / warmup if warmup > 0 else 1.0)
    if updates >= warmup:
        rate = o.learning_rate * max(0.0, (total - updates) / max(1.0, total - warmup))
    return rate, o.weight_decay * left


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            "runtime.device", name, f"it cannot be used here: {str(error).splitlines()[0]}"
        ) from None
    return device


class Learner:
    """``threads`` share the sequences of a batch. On a CPU that fills cores better than threads
    inside each operation, most of which are too small to share (docs/architecture.md).

    Learners of several processes may train one set of ``weights``, each on batches of its own. Each
    starts an update with the weights as they are then; while it computes, the others apply theirs,
    so its gradient is about as many updates late as there are other learners. ``publish`` gets the
    vector of the network and the number of updates behind it, every ``runtime.push_every`` updates.
    """

    def __init__(
        self,
        config: Config,
        network: Network,
        total: int,
        device: torch.device | str = "cpu",
        threads: int = 1,
        weights: Weights | None = None,
        publish: Callable[[Tensor, int], None] | None = None,
    ) -> None:
        self.config, self.total = config, total
        self.threads = min(threads, config.sequence.batch)
        self._pool = (
            ThreadPoolExecutor(self.threads, initializer=torch.set_num_threads, initargs=(1,))
            if self.threads > 1
            else None
        )
        self._per_step = {
            name for name, field in schema(config, network.spec).items() if field.per_step
        }
        self.device = torch.device(device)
        self.network = network.to(self.device)
        self.weights = (weights or Weights(network.flat, network.layout, network.num_trained)).on(
            self.device
        )
        self._publish = publish
        self._fetched = -1  # updates behind the network's own weights
        self.fetch()
        self._trained = list(self.network.parameters())
        self.gradient = torch.zeros(network.num_trained, device=self.device)
        # of each parameter
        self._slopes = [
            view(self.gradient, network.layout, name) for name, _ in self.network.named_parameters()
        ]
        self._parameters = family.PARAMETERS[config.behaviour.family]
        # (mean, largest) of every batch since the last diagnostics
        self.lags: list[tuple[float, float]] = []

    @property
    def updates(self) -> int:
        return self.weights.updates

    def update(
        self, batch: Arrays, diagnose: bool = False, number: int | None = None
    ) -> dict[str, float] | None:
        """One step of AdamW on a batch [L, B, ...]; the diagnostics where asked for.

        ``number`` tells batches apart that several learners train at the same time; it is the
        number of updates where it is not given.
        """
        self.fetch()
        scaling = self._scaling(
            self.config.sequence.batch, self.updates if number is None else number
        )
        trained = batch["valid"][self.config.sequence.burn_in : -1]
        steps = int(np.count_nonzero(trained))
        if steps:
            lag = self.updates - batch["version"][self.config.sequence.burn_in : -1][trained]
            self.lags.append((float(lag.mean()), float(lag.max())))
        data = {
            n: torch.from_numpy(a).to(self.device, non_blocking=True)
            for n, a in batch.items()
            if n not in ("stream", "created")
        }
        out, loss, parts = self._gradients(data, scaling)
        norm = torch.linalg.vector_norm(self.gradient)
        self.gradient.mul_((self.config.optimizer.clip_norm / (norm + 1e-6)).clamp_max(1.0))
        with self.weights.turn:
            rate, decay, update = self._apply(out, parts["valid"], steps)
        result = None
        if diagnose:
            result = self._diagnostics(batch, out, loss, parts, norm) | {
                "learning_rate": rate,
                "weight_decay": decay,
            }
            if not math.isfinite(result["loss"]):
                raise DicerlError(
                    f"the loss became {result['loss']} at update {update}; try a smaller"
                    " optimizer.learning_rate"
                )
        return result

    @torch.no_grad()
    def _apply(self, out: Output, valid: Tensor, steps: int) -> tuple[float, float, int]:
        """The gradient to the weights: (learning rate, weight decay, updates before this one)."""
        # Reset steps are no data: progress is counted in whole batches of valid steps, so the
        # schedules end with the run.
        full = self.config.sequence.batch * self.config.sequence.length
        o, w = self.config.optimizer, self.weights
        update = w.updates
        rate, decay = schedule(self.config, w.steps_trained / full, self.total)
        adamw(
            [w.flat[: len(self.gradient)]],
            [self.gradient],
            [w.moments[0]],
            [w.moments[1]],
            [],
            [w.adam_steps],
            fused=True,
            amsgrad=False,
            maximize=False,
            beta1=o.beta1,
            beta2=o.beta2,
            lr=rate,
            weight_decay=decay,
            eps=o.eps,
        )
        if self.network.log_inv_temperature is not None:
            most = abs(math.log(self.config.bandit.max_inv_temperature))
            w["log_inv_temperature"].clamp_(min=-most, max=most)
        if self.config.behaviour.scale == "normalised":
            spread = losses.masked_mean(out.advantage.detach()[:-1].std(-1, correction=0), valid)
            w["advantage_scale"].lerp_(spread, SCALE_RATE).clamp_(min=SCALE_FLOOR)
        w.updates, w.steps_trained = update + 1, w.steps_trained + steps
        if w.updates % self.config.runtime.push_every == 0:
            self.publish()
        return rate, decay, update

    @torch.no_grad()
    def fetch(self) -> None:
        """The weights as they are now into the network, where they are not its own."""
        if self.weights.flat is not self.network.flat and self._fetched != self.updates:
            with self.weights.turn:
                self.network.flat.copy_(self.weights.flat)
                self._fetched = self.updates

    def publish(self) -> None:
        """The weights as they are now; to be called by who has the turn, or nobody else."""
        if self._publish is not None:
            self._publish(self.weights.flat.detach().cpu(), self.updates)

    def _gradients(
        self, data: dict[str, Tensor], scaling: Scaling
    ) -> tuple[Output, losses.Losses, dict[str, Tensor]]:
        """The gradient of the batch's loss; every loss is a mean over valid steps, so that of a
        batch is its shards' weighted by their number of valid steps.
        """
        if self._pool is None:
            out = self.forward(data)
            loss, parts = self.loss(out, data, scaling)
            torch._foreach_copy_(self._slopes, self._slopes_of(loss.total))
            return out, loss, parts
        batch = data["valid"].shape[1]
        valid = data["valid"][self.config.sequence.burn_in : -1]
        total = valid.sum().clamp_min(1)

        def work(
            columns: slice,
        ) -> tuple[Output, losses.Losses, dict[str, Tensor], tuple[Tensor, ...]]:
            share = {
                n: x[:, columns] if n in self._per_step else x[columns] for n, x in data.items()
            }
            out = self.forward(share)
            loss, parts = self.loss(out, share, _columns_of(scaling, columns))
            weight = valid[:, columns].sum() / total
            return (
                out,
                losses.Losses(*(weight * term for term in loss)),
                parts,
                self._slopes_of(weight * loss.total),
            )

        borders = [batch * i // self.threads for i in range(self.threads + 1)]
        outs, terms, every_part, gradients = zip(
            *self._pool.map(work, (slice(a, b) for a, b in pairwise(borders))), strict=True
        )
        torch._foreach_copy_(self._slopes, gradients[0])
        for each in gradients[1:]:
            torch._foreach_add_(self._slopes, each)
        out = Output(
            *(torch.cat([x.detach() for x in field], 1) for field in zip(*outs, strict=True))
        )
        joined = {
            n: torch.cat([p[n] for p in every_part], -1 if n in ("alpha", "beta") else 1)
            for n in every_part[0]
        }
        return (
            out,
            losses.Losses(*(sum(each[1:], each[0]) for each in zip(*terms, strict=True))),
            joined,
        )

    def _slopes_of(self, loss: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss, self._trained, materialize_grads=True)

    def _shape(self, reward: Tensor) -> Tensor:
        return shape_reward(reward, self.config.env.reward_shape, self.config.env.reward_scale)

    def forward(self, data: dict[str, Tensor]) -> Output:
        """Burn-in from the stored state without gradient, then the T + 1 steps of the window's
        trained part.
        """
        start = self.config.sequence.burn_in
        # the stored state of step 0 is right already
        first = ~torch.cat([torch.ones_like(data["valid"][:1]), data["valid"][:-1]])
        extra: dict[str, Tensor] = {}
        if self.config.network.last_action_reward:
            action = torch.where(data["valid"], data["action"], -1)
            reward = torch.where(data["valid"], data["reward"], 0.0)
            extra["last_action"] = torch.cat([data["last_action"][None], action[:-1]])
            shaped = torch.cat([data["last_reward"][None], reward[:-1]])
            extra["last_reward"] = self._shape(shaped)
        if self.network.conditioned:
            extra["inv_temperature"] = data["inv_temperature"]
        state = data["state"].transpose(0, 1)
        if start and self.network.lstm is not None:
            with torch.no_grad():
                state = self.network.unroll(
                    data["observation"][:start],
                    state,
                    first[:start],
                    **{k: v[:start] for k, v in extra.items()},
                ).state
        return self.network.unroll(
            data["observation"][start:],
            state,
            first[start:],
            **{k: v[start:] for k, v in extra.items()},
        )

    def loss(
        self, out: Output, data: dict[str, Tensor], scaling: Scaling | None = None
    ) -> tuple[losses.Losses, dict[str, Tensor]]:
        """Targets and losses of the T trained steps; also what the diagnostics look at. ``scaling``
        is this update's where not given.
        """
        cfg, start = self.config.loss, self.config.sequence.burn_in
        step = {n: data[n][start:-1] for n in ("reward", "discount", "valid", "log_prob")}  # [T, B]
        action = data["action"][start:]  # [T + 1, B]
        valid = step["valid"]
        reward = self._shape(step["reward"])
        value, advantage = out.value, out.advantage
        inv, weight = self._policy(
            {name: data[name][start:] for name in self._parameters}, data["scale"][start:]
        )
        # [T + 1, B, A]
        log_pi = policy.log_probs(advantage if not cfg.stop_pi else advantage.detach(), inv, weight)
        every_q = (
            critic.dueling(value, advantage)
            if cfg.critic == "dueling"
            else critic.casa(value, advantage, log_pi.exp(), stop_pi=cfg.stop_pi, stop_v=cfg.stop_v)
        )
        log_pi = log_pi.detach()
        log_ratio = policy.gather(log_pi, action)[:-1] - step["log_prob"]
        q = policy.gather(every_q, action)
        v_target, q_target, target_advantage = self._targets(
            value.detach(),
            q.detach(),
            every_q.detach(),
            log_pi,
            reward,
            step["discount"],
            log_ratio,
            valid,
        )
        rho = targets.clipped_ratio(log_ratio, valid, cfg.rho_bar)
        head, acting = advantage[:-1], (inv[:-1], None if weight is None else weight[:-1])
        policy_loss = losses.policy_loss(
            head, acting[0].detach(), action[:-1], rho, target_advantage, acting[1]
        )
        if self.network.log_inv_temperature is not None:
            policy_loss = policy_loss + losses.temperature_loss(
                self.network.log_inv_temperature,
                head,
                acting[0].detach(),
                action[:-1],
                rho,
                target_advantage,
            )
        auxiliary = None
        if cfg.auxiliary:
            foretold, guessed = self.network.dynamics(out, action[:-1])
            auxiliary = losses.forward_dynamics_loss(
                foretold, out.features[1:]
            ) + losses.inverse_dynamics_loss(guessed, action[:-1])
        alpha, beta = scaling or self._scaling(self.config.sequence.batch, self.updates)
        loss = losses.weighted_sum(
            losses.value_loss(value[:-1], v_target),
            losses.q_loss(q[:-1], q_target),
            policy_loss,
            (
                losses.entropy_bonus(head, acting[0], cfg.entropy_scale, acting[1])
                if cfg.entropy
                else None
            ),
            valid,
            xi=cfg.value,
            alpha=alpha,
            beta=beta,
            entropy_coefficient=cfg.entropy,
            auxiliary=auxiliary,
            auxiliary_coefficient=cfg.auxiliary,
        )
        parts = {
            "log_ratio": log_ratio,
            "valid": valid,
            "log_pi": log_pi[:-1],
            "target_advantage": target_advantage,
            "value_target": v_target,
            "q_target": q_target,
        }
        if cfg.scaling == "random":
            parts |= {"alpha": torch.as_tensor(alpha), "beta": torch.as_tensor(beta)}
        return loss, parts

    def _policy(self, parameters: dict[str, Tensor], scale: Tensor) -> tuple[Tensor, Tensor | None]:
        """The target policy: of the family that acted, with the same parameters; a trainable tau as
        it is now.
        """
        if self.network.log_inv_temperature is not None:
            parameters = {
                "inv_temperature": self.network.log_inv_temperature.exp().expand_as(scale)
            }
        return family.components(self.config.behaviour.family, parameters, scale)

    def _targets(
        self,
        value: Tensor,
        q: Tensor,
        every_q: Tensor,
        log_pi: Tensor,
        reward: Tensor,
        discount: Tensor,
        log_ratio: Tensor,
        valid: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(vs, qs, advantage) of the T trained steps from V, Q and pi of T + 1."""
        cfg = self.config.loss
        common = (reward, discount, log_ratio, valid)
        rho_bar, c_bar = cfg.rho_bar, cfg.c_bar
        if cfg.estimator == "drtrace":
            both = targets.drtrace(
                value[:-1], value[1:], q[:-1], *common, rho_bar=rho_bar, c_bar=c_bar
            )
            return both.value, both.q, both.advantage
        next_q = (
            (log_pi.exp() * every_q).sum(-1)[1:] if cfg.retrace_bootstrap == "expected" else q[1:]
        )
        v = targets.vtrace(value[:-1], value[1:], *common, rho_bar=rho_bar, c_bar=c_bar)
        if cfg.estimator == "vtrace+qtrace":
            q_trace = targets.qtrace(q[:-1], next_q, *common, rho_bar=rho_bar, c_bar=c_bar)
        else:
            q_trace = targets.retrace(q[:-1], next_q, *common, c_bar=c_bar)
        return v.value, q_trace.q, v.advantage

    def _scaling(self, batch: int, number: int) -> Scaling:
        """alpha and beta: fixed, or drawn anew for every sequence of every batch.    -> [B] each"""
        cfg = self.config.loss
        if cfg.scaling == "fixed":
            return cfg.q, cfg.policy
        rng = np.random.default_rng(seeding.stream(self.config.seed, "scaling", number))
        drawn = torch.from_numpy(rng.random((2, batch), np.float32)).to(self.device)
        return 2 * cfg.q * drawn[0], 2 * cfg.policy * drawn[1]

    def _diagnostics(
        self,
        batch: Arrays,
        out: Output,
        loss: losses.Losses,
        parts: dict[str, Tensor],
        norm: Tensor,
    ) -> dict[str, float]:
        cfg, start = self.config.loss, self.config.sequence.burn_in
        valid = parts["valid"]
        if not valid.any():
            return {"loss": loss.total.item()}
        ratio = parts["log_ratio"].clamp(-20, 20).exp()[valid]
        value, head = out.value[:-1][valid], out.advantage[:-1][valid]
        features = out.features[:-1][valid]
        entropy = -(parts["log_pi"].exp() * parts["log_pi"].clamp_min(-1e4)).sum(-1)[valid]
        error = (parts["value_target"] - out.value[:-1])[valid]
        numbers = {
            "loss": loss.total,
            "loss_value": loss.value,
            "loss_q": loss.q,
            "loss_policy": loss.policy,
            "entropy_bonus": loss.entropy,
            "gradient_norm": norm,
            "ratio_mean": ratio.mean(),
            "ratio_max": ratio.max(),
            "ratio_std": ratio.std(correction=0),
            "rho_clipped": (ratio > cfg.rho_bar).float().mean(),
            "c_clipped": (ratio > cfg.c_bar).float().mean(),
            "entropy": entropy.mean(),
            "value_mean": value.mean(),
            "value_std": value.std(correction=0),
            "advantage_std": head.std(-1, correction=0).mean(),
            "advantage_scale": self.weights["advantage_scale"],
            "target_advantage_std": parts["target_advantage"][valid].std(correction=0),
            "value_explained": (
                1
                - error.var(correction=0)
                / parts["value_target"][valid].var(correction=0).clamp_min(1e-12)
            ),
            # the same for every step of the batch
            "dead_units": (features.amax(0) == features.amin(0)).float().mean(),
            "feature_spread": features.std(0, correction=0).mean(),
        }
        if cfg.auxiliary:
            numbers["loss_auxiliary"] = loss.auxiliary
        for name in ("alpha", "beta"):
            if name in parts:  # the coefficients of each sequence
                numbers |= {
                    f"{name}_mean": parts[name].mean(),
                    f"{name}_std": parts[name].std(correction=0),
                }
        if self.network.log_inv_temperature is not None:
            numbers |= {
                "trainable_inv_temperature": self.weights["log_inv_temperature"].detach().exp(),
                "trainable_gradient": view(
                    self.gradient, self.network.layout, "log_inv_temperature"
                ),
            }
        names = list(numbers)
        result = dict(
            zip(
                names,
                torch.stack([numbers[n].float().reshape(()) for n in names]).tolist(),
                strict=True,
            )
        )
        mask = batch["valid"][start:-1]
        lags, self.lags = self.lags, []
        drawn = {name: batch[name][start:-1][mask] for name in self._parameters}
        return result | {
            "policy_lag": sum(mean for mean, _ in lags) / max(1, len(lags)),
            "policy_lag_max": max((most for _, most in lags), default=0.0),
            "sequence_age": float(time.time() - batch["created"].mean()),
            "valid_fraction": float(mask.mean()),
            **{f"{name}_mean": float(x.mean()) if x.size else 0.0 for name, x in drawn.items()},
        }


def _columns_of(scaling: Scaling, columns: slice) -> Scaling:
    alpha, beta = (x if isinstance(x, float) else x[columns] for x in scaling)
    return alpha, beta


@torch.no_grad()
def calibrate_scale(network: Network, observations: np.ndarray) -> None:
    """Start A's running deviation from what the fresh network gives on some observations [N,
    ...].
    """
    spread = network.unroll(
        torch.from_numpy(observations)[None], network.initial_state(len(observations)), None
    ).advantage
    network.advantage_scale.fill_(max(float(spread.std(-1, correction=0).mean()), SCALE_FLOOR))
