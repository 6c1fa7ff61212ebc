"""Slow twins of ``dicerl.core``: every equation as explicit sums and products, in float64, as the
paper prints it.

Nothing here is shared with the package: no recursion, no vectorisation, no helper. The discount is
per step, so gamma^k is written as the product gamma_t ... gamma_{t+k-1}, and a reset step (valid =
0) has rho = c = 0.
"""

from __future__ import annotations

import math

import numpy as np


def softmax(advantage: list[float], inv_temperature: float) -> list[float]:
    """pi_tau(a) = exp(A(a) / tau) / sum_b exp(A(b) / tau), for one state; shifted by the maximum,
    which cancels.
    """
    top = max(a * inv_temperature for a in advantage)
    unnormalised = [math.exp(a * inv_temperature - top) for a in advantage]
    return [u / sum(unnormalised) for u in unnormalised]


def entropy(advantage: list[float], inv_temperature: float) -> float:
    """H = -sum_a pi log pi, with 0 log 0 = 0."""
    return -sum(p * math.log(p) for p in softmax(advantage, inv_temperature) if p > 0)


def greedy(advantage: list[float]) -> list[float]:
    """The limit tau -> 0+: equal maxima share."""
    best = [a == max(advantage) for a in advantage]
    return [b / sum(best) for b in best]


def mixture(
    advantage: list[float], inv_temperature: list[float], weight: list[float]
) -> list[float]:
    """pi(a) = sum_k w_k pi_{tau_k}(a); 1/tau = infinity is greedy."""
    components = [
        greedy(advantage) if math.isinf(inv) else softmax(advantage, inv) for inv in inv_temperature
    ]
    return [
        sum(w * pi[a] for w, pi in zip(weight, components, strict=True))
        for a in range(len(advantage))
    ]


def mixture_surrogate_gradient(
    advantage: list[float], inv_temperature: list[float], action: int, weight: list[float]
) -> list[float]:
    """sum_k r_k (1[a = b] - pi_k(b)), r_k = w_k pi_k(a) / pi(a): each component's printed policy
    gradient, by its share in the action.
    """
    whole = mixture(advantage, inv_temperature, weight)
    result = [0.0] * len(advantage)
    for inv, w in zip(inv_temperature, weight, strict=True):
        pi = greedy(advantage) if math.isinf(inv) else softmax(advantage, inv)
        share = w * pi[action] / whole[action]
        for b in range(len(advantage)):
            result[b] += share * ((b == action) - pi[b])
    return result


def masked_mixture(
    advantage: list[float], inv_temperature: list[float], weight: list[float], mask: list[bool]
) -> list[float]:
    """pi(a) = sum_k w_k m(a) exp(A(a) / tau_k) / sum_b m(b) exp(A(b) / tau_k); for 1/tau = infinity
    the best allowed actions share.
    """
    result = [0.0] * len(advantage)
    for inv, w in zip(inv_temperature, weight, strict=True):
        top = max(a for a, m in zip(advantage, mask, strict=True) if m)
        terms = []
        for a, m in zip(advantage, mask, strict=True):
            if not m:
                terms.append(0.0)
            elif math.isinf(inv):
                terms.append(float(a == top))
            else:
                terms.append(math.exp(inv * (a - top)))
        for action, term in enumerate(terms):
            result[action] += w * term / sum(terms)
    return result


def casa(value: float, advantage: list[float], pi: list[float]) -> list[float]:
    """Q(a) = A(a) - sum_b pi(b) A(b) + V, for one state."""
    mean = sum(p * a for p, a in zip(pi, advantage, strict=True))
    return [a - mean + value for a in advantage]


def casa_slope(
    advantage: list[float], inv_temperature: float, action: int, stop_pi: bool
) -> list[float]:
    """dQ(action)/dA(b) of the casa critic at pi_tau: 1[a = b] - pi(b), and what flows through pi
    where it is not stopped: d pi(c)/dA(b) = pi(c) (1[c = b] - pi(b)) / tau.
    """
    pi = softmax(advantage, inv_temperature)
    slope = []
    for b in range(len(advantage)):
        through_pi = sum(
            pi[c] * ((c == b) - pi[b]) * inv_temperature * advantage[c]
            for c in range(len(advantage))
        )
        slope.append((b == action) - pi[b] - (0.0 if stop_pi else through_pi))
    return slope


def clipped(log_ratio: float, valid: bool, bar: float) -> float:
    """min(pi / mu, bar); 0 on a reset step."""
    if not valid:
        return 0.0
    return bar if log_ratio >= math.log(bar) else math.exp(log_ratio)


def product(array: np.ndarray, first: int, last: int, b: int) -> float:
    """array_[first:last], both ends included as the paper writes it; 1 where last < first."""
    result = 1.0
    for i in range(first, last + 1):
        result *= float(array[i, b])
    return result


def clipped_all(log_ratio: np.ndarray, valid: np.ndarray, bar: float) -> np.ndarray:
    steps, batch = log_ratio.shape
    return np.array(
        [
            [clipped(float(log_ratio[t, b]), bool(valid[t, b]), bar) for b in range(batch)]
            for t in range(steps)
        ]
    )


def vtrace(value, next_value, reward, discount, log_ratio, valid, *, rho_bar=1.05, c_bar=1.05):
    """vs_t = V_t + sum_k gamma^k c_[t:t+k-1] rho_{t+k} (r_{t+k} + gamma V_{t+k+1} - V_{t+k});
    adv_t = r_t + gamma vs_{t+1} - V_t.

    Returns (vs, adv).
    """
    vs = _v_sum(value, value, next_value, reward, discount, log_ratio, valid, rho_bar, c_bar)
    return vs, _advantage(vs, value, next_value, reward, discount)


def drtrace(value, next_value, q, reward, discount, log_ratio, valid, *, rho_bar=1.05, c_bar=1.05):
    """vs_t = V_t + sum_k gamma^k c_[t:t+k-1] rho_{t+k} (r_{t+k} + gamma V_{t+k+1} - Q_{t+k}), qs_t
    = Q_t + sum_k gamma^k c_[t+1:t+k-1] rho~_{t,k} (r_{t+k} + gamma V_{t+k+1} - Q_{t+k}), rho~_{t,0}
    = 1, else rho_{t+k}.

    Returns (vs, qs, adv).
    """
    steps, batch = value.shape
    rho, c = clipped_all(log_ratio, valid, rho_bar), clipped_all(log_ratio, valid, c_bar)
    qs = np.zeros((steps, batch))
    for b in range(batch):
        for t in range(steps):
            qs[t, b] = q[t, b]
            for k in range(steps - t):
                delta = reward[t + k, b] + discount[t + k, b] * next_value[t + k, b] - q[t + k, b]
                rho_tilde = 1.0 if k == 0 else rho[t + k, b]
                qs[t, b] += (
                    product(discount, t, t + k - 1, b)
                    * product(c, t + 1, t + k - 1, b)
                    * rho_tilde
                    * delta
                )
    vs = _v_sum(value, q, next_value, reward, discount, log_ratio, valid, rho_bar, c_bar)
    return vs, qs, _advantage(vs, value, next_value, reward, discount)


def retrace(q, next_q, reward, discount, log_ratio, valid, *, c_bar=1.05):
    """qs_t = Q_t + sum_k gamma^k c_[t+1:t+k] (r_{t+k} + gamma Q_{t+k+1} - Q_{t+k})."""
    steps, batch = q.shape
    c = clipped_all(log_ratio, valid, c_bar)
    qs = np.zeros((steps, batch))
    for b in range(batch):
        for t in range(steps):
            qs[t, b] = q[t, b]
            for k in range(steps - t):
                delta = reward[t + k, b] + discount[t + k, b] * next_q[t + k, b] - q[t + k, b]
                qs[t, b] += product(discount, t, t + k - 1, b) * product(c, t + 1, t + k, b) * delta
    return qs


def qtrace(q, next_q, reward, discount, log_ratio, valid, *, rho_bar=1.05, c_bar=1.05):
    """no_drtrace: qs_t = Q_t + sum_k gamma^k c_[t+1:t+k-1] rho~_{t,k} (r_{t+k} + gamma Q_{t+k+1} -
    Q_{t+k}), rho~_{t,0} = 1, else rho_{t+k}.
    """
    steps, batch = q.shape
    rho, c = clipped_all(log_ratio, valid, rho_bar), clipped_all(log_ratio, valid, c_bar)
    qs = np.zeros((steps, batch))
    for b in range(batch):
        for t in range(steps):
            qs[t, b] = q[t, b]
            for k in range(steps - t):
                delta = reward[t + k, b] + discount[t + k, b] * next_q[t + k, b] - q[t + k, b]
                rho_tilde = 1.0 if k == 0 else rho[t + k, b]
                qs[t, b] += (
                    product(discount, t, t + k - 1, b)
                    * product(c, t + 1, t + k - 1, b)
                    * rho_tilde
                    * delta
                )
    return qs


def _v_sum(value, baseline, next_value, reward, discount, log_ratio, valid, rho_bar, c_bar):
    """The sum that V-Trace (baseline V) and DR-Trace (baseline Q) share."""
    steps, batch = value.shape
    rho, c = clipped_all(log_ratio, valid, rho_bar), clipped_all(log_ratio, valid, c_bar)
    vs = np.zeros((steps, batch))
    for b in range(batch):
        for t in range(steps):
            vs[t, b] = value[t, b]
            for k in range(steps - t):
                delta = (
                    reward[t + k, b]
                    + discount[t + k, b] * next_value[t + k, b]
                    - baseline[t + k, b]
                )
                vs[t, b] += (
                    product(discount, t, t + k - 1, b)
                    * product(c, t, t + k - 1, b)
                    * rho[t + k, b]
                    * delta
                )
    return vs


def _advantage(vs, value, next_value, reward, discount):
    """adv_t = r_t + gamma_t vs_{t+1} - V_t, with vs_T = V_T at the window's end."""
    steps, batch = value.shape
    advantage = np.zeros((steps, batch))
    for b in range(batch):
        for t in range(steps):
            following = vs[t + 1, b] if t + 1 < steps else next_value[t, b]
            advantage[t, b] = reward[t, b] + discount[t, b] * following - value[t, b]
    return advantage


class SlowBandit:
    """One bandit, tile by tile."""

    def __init__(
        self,
        left: float,
        right: float,
        num_tiles: int,
        width: int,
        learning_rate: float,
        ucb_scale: float = 1.0,
    ) -> None:
        self.left, self.right, self.num_tiles = left, right, num_tiles
        self.width, self.learning_rate, self.ucb_scale = width, learning_rate, ucb_scale
        self.weights = [0.0] * num_tiles
        self.counts = [0] * num_tiles

    def tile(self, x: float) -> int:
        """The tile whose lower border is the last at or below x; beyond either end, the
        end's tile.
        """
        found = 0
        for i in range(self.num_tiles):
            if x >= self.left + (self.right - self.left) * i / self.num_tiles:
                found = i
        return found

    def window(self, i: int) -> list[int]:
        return [j for j in range(i - self.width, i + self.width + 1) if 0 <= j < self.num_tiles]

    def value(self, i: int) -> float:
        """eq. bandit_eval"""
        return sum(self.weights[j] for j in self.window(i)) / len(self.window(i))

    def values(self) -> list[float]:
        return [self.value(i) for i in range(self.num_tiles)]

    def scores(self) -> list[float]:
        """eq. bandit_score"""
        values = self.values()
        mean = sum(values) / len(values)
        std = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
        result = []
        for i, v in enumerate(values):
            exploitation = 0.0 if std <= 1e-12 * max(1.0, abs(mean)) else (v - mean) / std
            result.append(
                exploitation
                + self.ucb_scale * math.sqrt(math.log(1 + sum(self.counts)) / (1 + self.counts[i]))
            )
        return result

    def update(self, x: float, g: float) -> None:
        """eq. bandit_update"""
        i = self.tile(x)
        before = self.value(i)
        for j in self.window(i):
            self.weights[j] += self.learning_rate * (g - before)
        self.counts[i] += 1


def inclusion_probabilities(scores: list[float], d: int) -> list[float]:
    """P(tile among d draws without replacement from softmax(scores)): the sum over all ordered
    draws.
    """
    weights = [math.exp(s) for s in scores]
    included = [0.0] * len(scores)

    def draw(chosen: tuple[int, ...], probability: float) -> None:
        if len(chosen) == d:
            for i in chosen:
                included[i] += probability
            return
        left = sum(w for i, w in enumerate(weights) if i not in chosen)
        for i, w in enumerate(weights):
            if i not in chosen:
                draw((*chosen, i), probability * w / left)

    draw((), 1.0)
    return included
