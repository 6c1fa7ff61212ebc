"""Spikes of the gradient's norm: values far outside their running quartiles.

Quartiles q1, q2, q3 of the norm's logarithm x follow it with a step for each update:

    q_p <- q_p + step * (p - [x < q_p])        at rest where a share p of x lies below q_p
    spike:  x > q3 + FAR * (q3 - q1)           Tukey's fence for what is far out

Where x is normally distributed that is 4.7 standard deviations above the mean.
"""

from __future__ import annotations

import math

QUARTILES = (0.25, 0.5, 0.75)
FAR = 3.0
RATE = 0.01  # of the steps, in units of x's usual distance from its median, after the beginning
SETTLED = 100  # updates before any is called a spike


class Spikes:
    """Finds spikes among the norms that ``add`` is given; ``found`` counts them until ``take``."""

    def __init__(self) -> None:
        self.count = self.found = 0
        self.quartiles = [0.0, 0.0, 0.0]
        self._distance = 0.0  # of x from the median, a running mean

    def add(self, norm: float) -> None:
        """Look at the norm of one update; one that is not finite or 0 says nothing."""
        if not 0.0 < norm < math.inf:
            return
        x, q = math.log(norm), self.quartiles
        self.count += 1
        if self.count == 1:
            q[:] = x, x, x
        self.found += self.count > SETTLED and x > q[2] + FAR * (q[2] - q[0])
        rate = max(1.0 / self.count, RATE)
        self._distance += rate * (abs(x - q[1]) - self._distance)
        step = 2.0 * math.sqrt(rate * RATE) * self._distance
        for i, p in enumerate(QUARTILES):
            q[i] += step * (p - (x < q[i]))

    def take(self) -> dict[str, float]:
        """The fields of a train line; spikes are counted from here on anew."""
        found, self.found = self.found, 0
        return {
            "gradient_spikes": float(found),
            "gradient_norm_median": math.exp(self.quartiles[1]),
        }

    def state(self) -> list[float]:
        """What ``restore`` takes."""
        return [self.count, self.found, self._distance, *self.quartiles]

    def restore(self, state: list[float]) -> None:
        count, found, self._distance, *self.quartiles = state
        self.count, self.found = int(count), int(found)
