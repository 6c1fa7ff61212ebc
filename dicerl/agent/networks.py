"""The network: torso, LSTM with resets and burn-in, heads V and A, and what single variants add.

    observation [, x] -> torso -> [LSTM] -> V(s), A(s, .)

Statistics that are part of the agent (input mean and deviation, A's running deviation) are buffers:
they are versioned, pushed and saved with the parameters.
"""

from __future__ import annotations

import contextlib
import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dicerl.agent import lstm, own_torso
from dicerl.agent.torsos import CONVOLUTIONS, LARGE, SMALLEST_IMAGE, Encoders, image_shape
from dicerl.config import Config
from dicerl.core.policy import combined
from dicerl.envs.base import EnvSpec
from dicerl.errors import ConfigError


class Output(NamedTuple):
    """The network's output for T steps of B sequences."""

    value: Tensor  # [T, B]
    advantage: Tensor  # [T, B, A]
    features: Tensor  # [T, B, F] of the torso
    hidden: Tensor  # [T, B, H] what the heads see
    state: Tensor  # [2, B, H]


# cos(pi k x), k = 1..8: inputs of a conditioned network for x = log(1 + 1/tau), scaled to [0, 1]
COSINES = 8
PART = 16  # images that are normalised at a time
# Images that go through a torso at a time, as bytes of its float input: 46 stacks of four frames,
# whose activations stay in the cache from layer to layer.
CACHED = 5 << 20


class Network(nn.Module):
    """Torso, LSTM, the heads V and A, and what single variants add."""

    advantage_scale: Tensor  # A's running deviation over actions
    return_size: Tensor | None  # [2] running mean square of returns, and batches behind it
    input_inv_deviation: Tensor
    input_offset: Tensor

    def __init__(self, whole: Config, spec: EnvSpec) -> None:
        super().__init__()
        config = whole.network
        self.config, self.spec = config, spec
        self.conditioned = whole.behaviour.family == "conditioned"
        cosines = COSINES if self.conditioned else 0
        # beyond this x the cosines would repeat their values
        self.max_x = math.log1p(whole.bandit.max_inv_temperature)
        self.num_actions = spec.num_actions
        self.in_bfloat16 = whole.precision == "bfloat16"
        self.gradient_in_parts = False
        torso = self.torso_name = self._choose_torso()
        self.normalise = config.normalise
        if self.normalise == "auto":
            self.normalise = "scale" if spec.observation_dtype == np.uint8 else "none"
        self.input_range = 255.0 if spec.observation_dtype == np.uint8 else 1.0
        activation = nn.Tanh if config.activation == "tanh" else nn.ReLU
        self.convolutions: nn.Module | None = None  # or the user's own torso
        self.own_torso = own_torso.is_own(torso)
        if self.own_torso:
            shape = self.image_shape if spec.is_image else spec.observation_shape
            self.convolutions, size = own_torso.build(torso, shape)
        elif torso == "mlp":
            size = math.prod(spec.observation_shape)
            if spec.images and config.torso != "mlp":
                encoders = self.convolutions = Encoders(spec)
                size = encoders.size
        else:
            if not spec.is_image or min(self.image_shape[1:]) < SMALLEST_IMAGE[torso]:
                raise ConfigError(
                    "network.torso",
                    torso,
                    f"it takes images from {SMALLEST_IMAGE[torso]} pixels a side; "
                    f"{spec.name} observes {spec.observation_shape}",
                )
            activation = nn.ReLU
            self.convolutions = CONVOLUTIONS[torso](self.image_shape[0])
            with torch.no_grad():
                size = self.convolutions(torch.zeros(1, *self.image_shape)).numel()
        widths = config.hidden
        if isinstance(widths, int):
            widths = (widths,) * (2 if torso == "mlp" else 1)
        if self.own_torso and not cosines:
            widths = ()  # its output are the features
        features = widths[-1] if widths else size
        dense: list[nn.Module] = []
        for before, width in pairwise((size + cosines, *widths)):
            dense += [nn.Linear(before, width), activation()]
        if config.layer_norm and widths:
            dense.insert(-1, nn.LayerNorm(features))
        self.dense = nn.Sequential(*dense)
        self.lstm_input = features + (self.num_actions + 1 if config.last_action_reward else 0)
        self.lstm = nn.LSTM(self.lstm_input, config.lstm) if config.lstm else None
        width = (
            config.lstm + self.lstm_input
            if config.lstm and config.skip
            else config.lstm or self.lstm_input
        )
        self.value_head = nn.Linear(width, 1)
        self.advantage_head = nn.Linear(width, sum(spec.branches) or self.num_actions)
        shape = self.image_shape if spec.is_image else spec.observation_shape
        if self.normalise == "statistics":
            # (x - mean) / deviation as x * inv_deviation + offset: one pass over the batch
            self.register_buffer("input_inv_deviation", torch.ones(1, *shape))
            self.register_buffer("input_offset", torch.zeros(1, *shape))
        self.register_buffer("advantage_scale", torch.ones(()))
        # a buffer only where it is used, so that other checkpoints stay as they are
        unit = torch.zeros(2) if whole.env.reward_unit == "returns" else None
        self.register_buffer("return_size", unit)
        self.forward_model = self.inverse_model = None
        if whole.loss.auxiliary:
            self.forward_model = nn.Sequential(
                nn.Linear(width + self.num_actions, features),
                nn.ReLU(),
                nn.Linear(features, features),
            )
            self.inverse_model = nn.Sequential(
                nn.Linear(2 * features, features), nn.ReLU(), nn.Linear(features, self.num_actions)
            )
        self.log_inv_temperature = None  # trainable: log(1/tau)
        if whole.behaviour.source == "trainable":
            self.log_inv_temperature = nn.Parameter(
                torch.tensor(math.log(whole.behaviour.inv_temperature))
            )
        if config.initialisation == "orthogonal":
            self._orthogonal()
        if self.lstm is not None:
            with torch.no_grad():  # remember by default: gates i, f, g, o
                bias = self.lstm.all_weights[0][2]  # W_ih, W_hh, b_ih, b_hh
                bias[config.lstm : 2 * config.lstm] = config.forget_bias

    def _choose_torso(self) -> str:
        """The torso that is named, or by observation where that is ``auto`` or ``light``."""
        large = {"auto": "impala_deep", "light": "impala_shallow"}.get(self.config.torso)
        if large is None:
            return self.config.torso
        if not self.spec.is_image:
            return "mlp"
        return large if min(self.image_shape[1:]) >= LARGE else "minatar"

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the observation."""
        return image_shape(self.spec)

    def _orthogonal(self) -> None:
        own = set(self.convolutions.modules()) if self.own_torso and self.convolutions else set()
        for module in self.modules():
            if module not in own and isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(module.weight, math.sqrt(2))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.orthogonal_(self.value_head.weight, 1.0)
        nn.init.orthogonal_(self.advantage_head.weight, 0.01)

    def inputs(self, observation: Tensor) -> Tensor:
        """Observations [N, ...] with the network's axes, [N, C, H, W] (channels last in memory) or
        [N, F]; neither float nor normalised yet.
        """
        if not self.spec.is_image:
            return observation
        x = observation
        if len(self.spec.observation_shape) == 2:
            x = x.unsqueeze(1)
        elif self.spec.channels_last:
            x = x.permute(0, 3, 1, 2)
        if torch.compiler.is_compiling():  # an exported graph says what, its runtime how
            return x
        if not x.is_contiguous(memory_format=torch.channels_last):
            # The axes are moved while elements are still bytes, a quarter of the traffic, and plane
            # by plane, twice as fast as contiguous().
            x = torch.stack(x.unbind(1), -1).permute(0, 3, 1, 2)
        return x

    def allow_gradient_in_parts(self) -> None:
        """From now on the torso's gradient is the sum of those of parts of a batch, where that is
        faster: not for a small torso in bfloat16, whose layers fit into the cache as they are. It
        is the same gradient, rounded otherwise; serial runs keep to one sum, as in every version.
        """
        self.gradient_in_parts = not self.in_bfloat16 or self.torso_name == "impala_deep"

    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """Inputs as they go through the convolutions: on a CPU, images in parts that fit into the
        cache (measured: docs/architecture.md). The user's own torso sees whole batches, which it
        may look at as such.
        """
        whole = x.device.type != "cpu" or torch.compiler.is_compiling() or self.own_torso
        if whole or not self.spec.is_image:
            return (x,)
        if torch.is_grad_enabled() and not self.gradient_in_parts:
            return (x,)
        parts: tuple[Tensor, ...] = x.split(max(1, CACHED // (4 * math.prod(self.image_shape))))
        return parts

    def _normalised(self, x: Tensor) -> Tensor:
        """Inputs as float, normalised."""
        if self.normalise == "none":
            return x.to(torch.float32)
        # an exported graph has no parts: their number depends on the batch
        whole = x.device.type != "cpu" or x.requires_grad or torch.compiler.is_compiling()
        if not self.spec.is_image or whole:
            return self._normalise(x.to(torch.float32))
        # A part that fits into the cache goes through all of it at once: 6 instead of 10.5 ms for
        # 336 stacks of four frames.
        out = torch.empty_like(x, dtype=torch.bfloat16 if self.in_bfloat16 else torch.float32)
        own = torch.empty_like(x[:PART], dtype=torch.float32) if self.in_bfloat16 else None
        for part, given in zip(out.split(PART), x.split(PART), strict=True):
            full = part if own is None else own[: len(part)]
            self._normalise(full.copy_(given), full)
            if own is not None:
                part.copy_(full)
        return out

    def _normalise(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        if self.normalise == "scale":
            return torch.mul(x, 1.0 / self.input_range, out=out)
        clip = self.config.statistics_clip
        x = torch.addcmul(self.input_offset, x, self.input_inv_deviation, out=out)
        return x.clamp_(-clip, clip)

    def _precision(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        if self.in_bfloat16:
            # Each part casts the weights itself: the gradients of one cast that all shared would be
            # added up in bfloat16.
            return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
        return contextlib.nullcontext()  # a disabled autocast takes 4.5 us a call

    def torso(self, observation: Tensor, inv_temperature: Tensor | None = None) -> Tensor:
        """The features [N, F] of observations [N, ...]; a conditioned network also needs
        ``inv_temperature`` [N].
        """
        x = self.inputs(observation)
        with self._precision(x.device):
            if self.convolutions is None:
                x = self._normalised(x)
            else:
                found = [self.convolutions(self._normalised(part)) for part in self._parts(x)]
                x = torch.cat(found) if len(found) > 1 else found[0]
            x = x.flatten(1)
            if self.conditioned:
                assert inv_temperature is not None
                angle = torch.log1p(inv_temperature).mul(math.pi / self.max_x).unsqueeze(-1)
                waves = torch.cos(angle * torch.arange(1, COSINES + 1, device=x.device))
                x = torch.cat([x, waves.to(x.dtype)], -1)
            features: Tensor = self.dense(x)
        return features.to(torch.float32)

    def initial_state(self, batch: int, device: torch.device | str | None = None) -> Tensor:
        """The recurrent state (h, c) at an episode's start: zeros.    [2, batch, H]"""
        return torch.zeros(2, batch, self.config.lstm, device=device or self.advantage_scale.device)

    def unroll(
        self,
        observation: Tensor,
        state: Tensor,
        first: Tensor | None,
        last_action: Tensor | None = None,
        last_reward: Tensor | None = None,
        inv_temperature: Tensor | None = None,
        starts: frozenset[int] | None = None,
    ) -> Output:
        """Run observations [T, B, ...] from ``state`` [2, B, H]; where ``first`` [T, B] an episode
        starts and the state is reset to zero.

        ``last_action`` [T, B] is -1 where there was none; ``inv_temperature`` [T, B] is an input of
        a conditioned network; ``starts`` as in ``lstm.unroll``.
        """
        steps, batch = observation.shape[:2]
        condition = None
        if self.conditioned:
            condition = (
                observation.new_zeros(steps * batch, dtype=torch.float32)
                if inv_temperature is None
                else inv_temperature.flatten()
            )
        features = self.torso(observation.flatten(0, 1), condition).unflatten(0, (steps, batch))
        x = features
        if self.config.last_action_reward:
            if last_action is None or last_reward is None:  # as at an episode's start
                last = x.new_zeros(steps, batch, self.num_actions + 1)
            else:
                one_hot = nn.functional.one_hot(last_action + 1, self.num_actions + 1)[..., 1:].to(
                    x.dtype
                )
                last = torch.cat([one_hot, last_reward.unsqueeze(-1)], -1)
            x = torch.cat([x, last], -1)
        if self.lstm is not None:
            y, state = self._lstm(x, state, first, starts)
            x = torch.cat([y, x], -1) if self.config.skip else y
        advantage = combined(self.advantage_head(x), self.spec.branches)
        return Output(self.value_head(x).squeeze(-1), advantage, features, x, state)

    def dynamics(self, hidden: Tensor, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the torso's features at t + 1 from h_t and a_t, and the logits of a_t from the
        features at t and t + 1.    [T + 1, B, H], [T + 1, B, F], [T, B] -> [T, B, F], [T, B, A]
        """
        assert self.forward_model is not None
        assert self.inverse_model is not None
        taken = nn.functional.one_hot(action, self.num_actions).to(hidden.dtype)
        predicted = self.forward_model(torch.cat([hidden[:-1], taken], -1))
        return predicted, self.inverse_model(torch.cat([features[:-1], features[1:]], -1))

    def _lstm(
        self, x: Tensor, state: Tensor, first: Tensor | None, starts: frozenset[int] | None
    ) -> tuple[Tensor, Tensor]:
        """Run torch's fused LSTM if no episode starts, our own if there are resets. A single step
        without gradient uses a plain cell: oneDNN packs its weights in every call, which is several
        times the work of one step.
        """
        assert self.lstm is not None
        resets = first is not None and bool(first.any() if starts is None else starts)
        h, c = state
        if x.shape[0] == 1 and not torch.is_grad_enabled():
            if resets:
                h, c = state * (~first[0]).to(x.dtype)[:, None]  # type: ignore[index]
            h, c = torch.lstm_cell(x[0], (h, c), *self.lstm.all_weights[0])
            y = h[None]
        elif resets:
            y, (h, c) = lstm.unroll(x, h, c, first, self.lstm, starts)  # type: ignore[arg-type]
        else:
            y, (h, c) = self.lstm(x, (h[None].contiguous(), c[None].contiguous()))
            h, c = h[0], c[0]
        return y, torch.stack([h, c])

    @torch.no_grad()
    def set_statistics(self, mean: Tensor, deviation: Tensor) -> None:
        """Set the per-element mean and deviation of the inputs, in the observation's own units and
        axes.
        """
        floor = self.config.statistics_floor * self.input_range
        spread = self.inputs(deviation.unsqueeze(0)).to(torch.float32) + floor
        self.input_inv_deviation.copy_(1.0 / spread)
        self.input_offset.copy_(-self.inputs(mean.unsqueeze(0)).to(torch.float32) / spread)

    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())
