"""An LSTM whose state is reset to zero where episodes start, in one pass over all steps.

    i, f, o = sigmoid(.), g = tanh(.) of W_ih x_t + b_ih + W_hh h_{t-1} + b_hh
    c_t = f c_{t-1} + i g,    h_t = o tanh(c_t)
    h_{t-1} = c_{t-1} = 0 where an episode starts at t

torch's fused LSTM has no resets; called once for each stretch between two resets, it packs its
weights each time, and short episodes cut a window into many stretches. Here a reset is a
multiplication by 0 between two steps. What does not depend on the previous step is computed for all
steps at once: the product with W_ih, the derivatives of the gates, and the gradient of W_hh.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Steps(torch.autograd.Function):
    """The recurrent part of the LSTM, with its own gradient.

    (W_ih x + biases [T, B, 4H], W_hh [4H, H], h [B, H], c [B, H], keep [T, B, 1], starts)
    -> h_t [T, B, H], the last c [B, H]. ``keep`` is 0 where an episode starts, else 1; ``starts``
    are the steps with such a 0.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        h: Tensor,
        c: Tensor,
        keep: Tensor,
        starts: frozenset[int],
    ) -> tuple[Tensor, Tensor]:
        steps, batch, size = inputs.shape[0], inputs.shape[1], weight.shape[1]
        gates = torch.empty_like(inputs)  # i, f, g, o
        split = gates.view(steps, batch, 4, size)
        hidden, cells = inputs.new_empty(steps, batch, size), inputs.new_empty(steps, batch, size)
        first_h, first_c, weight_t = h, c, weight.t()
        rows = zip(
            inputs.unbind(),
            gates.unbind(),
            split[:, :, :2].unbind(),
            *(split[:, :, k].unbind() for k in range(4)),
            hidden.unbind(),
            cells.unbind(),
            strict=True,
        )
        for t, (x, all_gates, i_and_f, i, f, g, o, next_h, next_c) in enumerate(rows):
            if t in starts:
                h, c = h * keep[t], c * keep[t]
            torch.addmm(x, h, weight_t, out=all_gates)
            i_and_f.sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, c, out=next_c).addcmul_(i, g)
            torch.mul(o, next_c.tanh(), out=next_h)
            h, c = next_h, next_c
        ctx.save_for_backward(weight, split, hidden, cells, first_h, first_c, keep)
        ctx.starts = starts
        return hidden, c.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_h: Tensor, grad_c: Tensor) -> tuple[Tensor | None, ...]:
        weight, split, hidden, cells, first_h, first_c, keep = ctx.saved_tensors
        steps, batch, _, size = split.shape
        i, f, g, o = split.unbind(2)
        before_c = torch.cat([first_c[None], cells[:-1]])
        before_h = torch.cat([first_h[None], hidden[:-1]])
        if ctx.starts:
            before_c, before_h = before_c * keep, before_h * keep
        squashed = cells.tanh()
        to_c = o * (1 - squashed.square())  # dh_t / dc_t
        # dc_t / d(i, f, g before their nonlinearity)
        by_c = torch.stack([g * i * (1 - i), before_c * f * (1 - f), i * (1 - g.square())], 2)
        by_h = squashed * o * (1 - o)  # dh_t / d(o before its nonlinearity)
        grads = torch.empty_like(split)  # of the gates before their nonlinearity
        dh, dc = grad_h.new_zeros(batch, size), grad_c.clone()
        rows = zip(
            *(
                reversed(x.unbind())
                for x in (grad_h, to_c, by_c, by_h, f, grads, grads[:, :, :3], grads[:, :, 3])
            ),
            strict=True,
        )
        for back, (dy, dh_dc, dc_dg, dh_do, forget, d_gates, d_ifg, d_o) in enumerate(rows):
            dh = dh.add_(dy)
            dc.addcmul_(dh, dh_dc)
            torch.mul(dc.unsqueeze(1), dc_dg, out=d_ifg)
            torch.mul(dh, dh_do, out=d_o)
            dh = torch.mm(d_gates.view(batch, 4 * size), weight)
            dc.mul_(forget)
            t = steps - 1 - back
            if t in ctx.starts:
                dh.mul_(keep[t])
                dc.mul_(keep[t])
        flat = grads.view(steps * batch, 4 * size)
        return (
            grads.view(steps, batch, 4 * size),
            flat.t() @ before_h.view(steps * batch, size),
            dh,
            dc,
            None,
            None,
        )


def unroll(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    first: Tensor,
    module: torch.nn.LSTM,
    starts: frozenset[int] | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run ``module`` over x [T, B, F] from (h, c), [B, H] each, reset to zero where ``first``
    [T, B]; return h_t [T, B, H] and the last (h, c).

    ``starts`` are the steps with a reset, where the caller knows them: to look them up in ``first``
    the host would wait for a GPU.
    """
    weight_ih, weight_hh, bias_ih, bias_hh = module.all_weights[0]
    if starts is None:
        starts = frozenset(torch.nonzero(first.any(1)).flatten().tolist())
    keep = (~first).to(x.dtype).unsqueeze(-1)
    inputs = torch.nn.functional.linear(x, weight_ih, bias_ih + bias_hh)
    steps: Any = _Steps.apply
    hidden, c = steps(inputs, weight_hh, h, c, keep, starts)
    return hidden, (hidden[-1], c)
