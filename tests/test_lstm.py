"""lstm.py: the same as one cell a step with its state set to zero where an episode starts; values
and every gradient.
"""

import pytest
import torch

from dicerl.agent import lstm


def by_hand(x, h, c, first, module):
    outputs = []
    for t in range(len(x)):
        keep = (~first[t]).to(x.dtype)[:, None]
        h, c = torch.lstm_cell(x[t], (h * keep, c * keep), *module.all_weights[0])
        outputs.append(h)
    return torch.stack(outputs), (h, c)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(("steps", "batch", "size"), [(1, 1, 1), (7, 3, 5), (20, 8, 6)])
def test_values_and_gradients_are_those_of_a_cell_a_step(steps, batch, size, rate):
    torch.manual_seed(steps + int(10 * rate))
    module = torch.nn.LSTM(4, size, dtype=torch.float64)
    first = torch.rand(steps, batch) < rate
    given = [
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((steps, batch, 4), (batch, size), (batch, size))
    ]
    results = []
    for function in (lstm.unroll, by_hand):
        y, (h, c) = function(*given, first, module)
        weights = torch.randn(
            steps + 2, batch, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
        )
        total = (weights * torch.cat([y, h[None], c[None]])).sum()
        results.append((y, h, c, *torch.autograd.grad(total, [*given, *module.parameters()])))
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain)


def test_nothing_crosses_an_episodes_start():
    torch.manual_seed(0)
    module = torch.nn.LSTM(3, 4)
    x = torch.randn(6, 2, 3, requires_grad=True)
    first = torch.zeros(6, 2, dtype=torch.bool)
    first[3, 0] = True
    y, _ = lstm.unroll(x, torch.randn(2, 4), torch.randn(2, 4), first, module)
    gradient = torch.autograd.grad(y[3:].sum(), x)[0]
    assert not gradient[:3, 0].any()
    assert gradient[:3, 1].any()
