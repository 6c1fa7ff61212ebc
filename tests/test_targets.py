"""core/targets.py: V-Trace, ReTrace, DR-Trace and its ablation (docs/paper.md 2.2, 2.7) against
their printed sums and by hand. As operators they are in test_targets_operators.py.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import reference as slow
from dicerl.core import drtrace, qtrace, retrace, vtrace
from dicerl.core.targets import clipped_ratio, vtrace_and_retrace

quick = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def tensors(*arrays, dtype=torch.float64):
    return [
        torch.tensor(np.asarray(x)).to(torch.bool if np.asarray(x).dtype == bool else dtype)
        for x in arrays
    ]


@st.composite
def windows(draw):
    """V and Q of [T+1, B] (the last row is the bootstrap), then reward, discount, log ratio, valid
    of [T, B], then both bars.

    Log ratios cross both clips on either side; any step may end an episode, be truncated or be a
    reset step.
    """
    steps, batch = draw(st.integers(1, 7)), draw(st.integers(1, 2))
    real = st.floats(-5, 5, allow_subnormal=False)
    v, q = (draw(hnp.arrays(np.float64, (steps + 1, batch), elements=real)) for _ in range(2))
    reward = draw(hnp.arrays(np.float64, (steps, batch), elements=real))
    discount = draw(
        hnp.arrays(np.float64, (steps, batch), elements=st.sampled_from([0.0, 0.5, 0.997, 1.0]))
    )
    log_ratio = draw(
        hnp.arrays(
            np.float64,
            (steps, batch),
            elements=st.one_of(st.sampled_from([-1000.0, 0.0, 1000.0]), st.floats(-2, 2)),
        )
    )
    valid = draw(hnp.arrays(np.bool_, (steps, batch)))
    c_bar = draw(st.sampled_from([0.5, 1.0, 1.05]))
    return v, q, (reward, discount, log_ratio, valid), draw(st.sampled_from([1.05, 2.0])), c_bar


def close(fast, expected):
    np.testing.assert_allclose(fast.numpy(), expected, rtol=1e-9, atol=1e-9)


# --- against the printed sums ---------------------------------------------------------------------


@quick
@given(windows())
def test_vtrace_is_the_printed_sum(window):
    v, _, rest, rho_bar, c_bar = window
    fast = vtrace(*tensors(v[:-1], v[1:], *rest), rho_bar=rho_bar, c_bar=c_bar)
    vs, advantage = slow.vtrace(v[:-1], v[1:], *rest, rho_bar=rho_bar, c_bar=c_bar)
    close(fast.value, vs)
    close(fast.advantage, advantage)


@quick
@given(windows())
def test_retrace_is_the_printed_sum(window):
    """With the sampled next Q (printed) and with any other next Q (expected bootstrap: here V
    stands for E_pi Q).
    """
    v, q, rest, _, c_bar = window
    for next_q in (q[1:], v[1:]):
        close(
            retrace(*tensors(q[:-1], next_q, *rest), c_bar=c_bar).q,
            slow.retrace(q[:-1], next_q, *rest, c_bar=c_bar),
        )


@quick
@given(windows())
def test_vtrace_and_retrace_together_are_the_same_numbers(window):
    v, q, rest, rho_bar, c_bar = window
    every = tensors(v[:-1], v[1:], q[:-1], q[1:], *rest)
    of_v, of_q = vtrace_and_retrace(*every, rho_bar=rho_bar, c_bar=c_bar)
    alone = vtrace(*every[:2], *every[4:], rho_bar=rho_bar, c_bar=c_bar)
    assert torch.equal(of_v.value, alone.value)
    assert torch.equal(of_v.advantage, alone.advantage)
    assert torch.equal(of_q.q, retrace(*every[2:], c_bar=c_bar).q)


@quick
@given(windows())
def test_drtrace_is_the_printed_sums(window):
    v, q, rest, rho_bar, c_bar = window
    fast = drtrace(*tensors(v[:-1], v[1:], q[:-1], *rest), rho_bar=rho_bar, c_bar=c_bar)
    vs, qs, advantage = slow.drtrace(v[:-1], v[1:], q[:-1], *rest, rho_bar=rho_bar, c_bar=c_bar)
    close(fast.value, vs)
    close(fast.q, qs)
    close(fast.advantage, advantage)


@quick
@given(windows())
def test_drtrace_q_is_r_plus_gamma_vs_of_the_next_step(window):
    """qs_t = r_t + gamma_t vs_{t+1}, vs_T = V_T (follows from the two sums; docs/paper.md 2.2)."""
    v, q, rest, rho_bar, c_bar = window
    fast = drtrace(*tensors(v[:-1], v[1:], q[:-1], *rest), rho_bar=rho_bar, c_bar=c_bar)
    following = np.concatenate([fast.value.numpy()[1:], v[-1:]])
    close(fast.q, rest[0] + rest[1] * following)


@quick
@given(windows())
def test_qtrace_is_the_printed_sum(window):
    """no_drtrace, with the sampled next Q (printed) and with any other (expected bootstrap)."""
    v, q, rest, rho_bar, c_bar = window
    for next_q in (q[1:], v[1:]):
        fast = qtrace(*tensors(q[:-1], next_q, *rest), rho_bar=rho_bar, c_bar=c_bar)
        close(fast.q, slow.qtrace(q[:-1], next_q, *rest, rho_bar=rho_bar, c_bar=c_bar))


def test_qtrace_is_drtrace_with_q_in_the_place_of_v():
    """DR-Trace told that V is Q gives it too. With equal bars, as in the paper, rho_{t+k} closes
    the product of c: then it is ReTrace.
    """
    _, q, rest = random_window(5)
    args = tensors(q[:-1], q[1:], *rest)
    for rho_bar in (1.05, 1.5):
        out = qtrace(*args, rho_bar=rho_bar).q
        assert torch.allclose(
            out,
            drtrace(args[0], args[1], args[0], *args[2:], rho_bar=rho_bar).q,
            rtol=0,
            atol=1e-12,
        )
        assert torch.allclose(out, retrace(*args).q, rtol=0, atol=1e-12) is (rho_bar == 1.05)


def test_drtrace_with_q_equal_v_is_vtrace():
    v, _, rest = random_window(4)
    args = tensors(v[:-1], v[1:], *rest)
    dr, vt = drtrace(args[0], args[1], args[0], *args[2:]), vtrace(*args)
    assert torch.allclose(dr.value, vt.value)
    assert torch.allclose(dr.advantage, vt.advantage)


def random_window(seed, steps=80, batch=8, gamma=0.997):
    """A window of the paper's length with ends, truncations, reset steps and ratios on both sides
    of the bars.
    """
    rng = np.random.default_rng(seed)
    v, q = rng.normal(size=(2, steps + 1, batch))
    ended = rng.random((steps, batch)) < 0.05
    terminated = ended & (rng.random((steps, batch)) < 0.5)
    valid = ~np.concatenate([np.zeros((1, batch), bool), ended[:-1]])
    log_ratio = rng.normal(size=(steps, batch))
    assert (log_ratio > math.log(1.05)).any()
    assert (log_ratio < math.log(0.95)).any()
    return (
        v,
        q,
        (rng.normal(size=(steps, batch)), np.where(terminated, 0.0, gamma), log_ratio, valid),
    )


def test_float32_windows_of_the_paper_length_agree_with_the_printed_sums():
    v, q, rest = random_window(0, batch=2)
    single = {"dtype": torch.float32}
    dr = drtrace(*tensors(v[:-1], v[1:], q[:-1], *rest, **single))
    for fast, expected in zip(dr, slow.drtrace(v[:-1], v[1:], q[:-1], *rest), strict=True):
        assert fast.dtype == torch.float32
        np.testing.assert_allclose(fast.numpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        retrace(*tensors(q[:-1], q[1:], *rest, **single)).q.numpy(),
        slow.retrace(q[:-1], q[1:], *rest),
        rtol=1e-4,
        atol=1e-4,
    )


def test_windows_of_the_paper_length_agree_with_the_printed_sums_to_1e_9():
    """Float64: 80 steps, with terminations, truncations and reset steps in mid-window and ratios on
    both sides of the bars.
    """
    v, q, rest = random_window(6, batch=3)
    _, discount, log_ratio, valid = rest
    assert (discount == 0).any()
    assert ((discount[:-1] > 0) & ~valid[1:]).any()  # a truncation: gamma kept, then a reset step
    assert (np.exp(log_ratio) > 1.05).any()
    dr = drtrace(*tensors(v[:-1], v[1:], q[:-1], *rest))
    for fast, expected in zip(dr, slow.drtrace(v[:-1], v[1:], q[:-1], *rest), strict=True):
        close(fast, expected)
    close(qtrace(*tensors(q[:-1], q[1:], *rest)).q, slow.qtrace(q[:-1], q[1:], *rest))


def test_valid_may_be_given_as_numbers():
    v, _, rest = random_window(1)
    args = tensors(v[:-1], v[1:], *rest)
    assert torch.equal(vtrace(*args).value, vtrace(*args[:-1], args[-1].double()).value)


# --- by hand --------------------------------------------------------------------------------------

# Five steps of one environment, on-policy, gamma = 1/2. Step 1 is the last of an episode; step 2
# shows its final observation (V = 100) and is the reset step; steps 3 and 4 belong to the next
# episode and bootstrap from V_5 = 16.
HAND_VALUE = np.array([[7.0], [-3.0], [100.0], [5.0], [9.0], [16.0]])
# the reset step's reward must never show
HAND_REWARD = np.array([[1.0], [2.0], [1e6], [4.0], [8.0]])
HAND_VALID = np.array([[True], [True], [False], [True], [True]])
KEPT = [0, 1, 3, 4]


def hand_targets(discount, reward=HAND_REWARD):
    """V, V, Q, Q, Q targets of the four estimators; with Q = V on the sampled actions all five are
    the same numbers.
    """
    discount = np.array(discount)[:, None]
    v, nxt, *rest = tensors(
        HAND_VALUE[:-1], HAND_VALUE[1:], reward, discount, np.zeros((5, 1)), HAND_VALID
    )
    dr = drtrace(v, nxt, v, *rest)
    return {
        "vtrace": vtrace(v, nxt, *rest).value,
        "drtrace": dr.value,
        "drtrace q": dr.q,
        "retrace": retrace(v, nxt, *rest).q,
        "qtrace": qtrace(v, nxt, *rest).q,
    }


@pytest.mark.parametrize("target", ["vtrace", "drtrace", "drtrace q", "retrace", "qtrace"])
def test_termination_in_mid_window_by_hand(target):
    """gamma_1 = 0: step 1 is worth r_1 = 2, step 0 is 1 + 2/2; then 8 + 16/2 and 4 + 16/2."""
    out = hand_targets([0.5, 0.0, 0.5, 0.5, 0.5])[target]
    assert out[KEPT, 0].tolist() == pytest.approx([2.0, 2.0, 12.0, 16.0])


@pytest.mark.parametrize("target", ["vtrace", "drtrace", "drtrace q", "retrace", "qtrace"])
def test_truncation_in_mid_window_by_hand(target):
    """gamma_1 is kept: step 1 bootstraps from the final observation, 2 + 100/2; step 0 is 1 + 52/2;
    the rest as before.
    """
    out = hand_targets([0.5, 0.5, 0.5, 0.5, 0.5])[target]
    assert out[KEPT, 0].tolist() == pytest.approx([27.0, 52.0, 12.0, 16.0])


def test_a_reset_step_keeps_its_own_value():
    """rho = c = 0: vs_t = V_t."""
    out = hand_targets([0.5] * 5)
    assert out["vtrace"][2].item() == 100.0
    assert out["drtrace"][2].item() == 100.0


@pytest.mark.parametrize("target", ["vtrace", "retrace", "drtrace", "drtrace q", "qtrace"])
def test_a_nan_on_a_reset_step_reaches_no_other_step(target):
    reward = HAND_REWARD.copy()
    reward[2] = np.nan
    assert torch.isfinite(hand_targets([0.5] * 5, reward)[target][KEPT]).all()


def test_both_clips_by_hand():
    """One step each side: ratio 3 is cut to 2 as rho and to 1 as c; ratio 1/4 is left as it is."""
    args = tensors(
        [[0.0], [0.0]],
        [[0.0], [0.0]],
        [[1.0], [8.0]],
        [[0.5], [0.5]],
        np.log([[3.0], [0.25]]),
        [[True], [True]],
    )
    out = vtrace(*args, rho_bar=2.0, c_bar=1.0)
    assert out.value[:, 0].tolist() == pytest.approx([2 * 1 + 0.5 * 1 * (0.25 * 8), 0.25 * 8])
    assert out.advantage[:, 0].tolist() == pytest.approx([1 + 0.5 * 2, 8.0])
    assert retrace(*args, c_bar=1.0).q[:, 0].tolist() == pytest.approx([1 + 0.5 * 0.25 * 8, 8.0])


def test_qtrace_clips_by_hand():
    """Three steps, Q = 0, ratios 5, 3, 3: the second reward counts by rho (cut to 2), the third by
    c_{t+1} (cut to 1) times rho.
    """
    zero = [[0.0]] * 3
    args = tensors(
        zero, zero, [[1.0], [8.0], [16.0]], [[0.5]] * 3, np.log([[5.0], [3.0], [3.0]]), [[True]] * 3
    )
    assert qtrace(*args, rho_bar=2.0, c_bar=1.0).q[:, 0].tolist() == pytest.approx(
        [1 + 0.5 * 2 * 8 + 0.25 * 1 * 2 * 16, 8 + 0.5 * 2 * 16, 16.0]
    )


def test_clipped_ratio_by_hand():
    """min(ratio, bar), 0 where not valid, and no overflow at log ratios of +-1000."""
    log_ratio = torch.tensor(
        [[-1000.0, math.log(0.3), 0.0, math.log(3.0), 1000.0, 1000.0]], dtype=torch.float64
    )
    valid = torch.tensor([[True, True, True, True, True, False]])
    assert clipped_ratio(log_ratio, valid, 1.05)[0].tolist() == pytest.approx(
        [0.0, 0.3, 1.0, 1.05, 1.05, 0.0]
    )
    assert torch.isfinite(clipped_ratio(log_ratio.float(), valid, 1.05)).all()
    assert clipped_ratio(
        torch.tensor([[5.0]]), torch.tensor([[True]]), math.inf
    ).item() == pytest.approx(math.exp(5.0), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_ratio", [-1000.0, 1000.0])
def test_extreme_log_ratios_do_not_overflow(log_ratio, dtype):
    v, q, (reward, discount, _, valid) = random_window(2)
    rest = (reward, discount, np.full_like(reward, log_ratio), valid)
    for out in (
        *vtrace(*tensors(v[:-1], v[1:], *rest, dtype=dtype)),
        *retrace(*tensors(q[:-1], q[1:], *rest, dtype=dtype)),
        *qtrace(*tensors(q[:-1], q[1:], *rest, dtype=dtype)),
        *drtrace(*tensors(v[:-1], v[1:], q[:-1], *rest, dtype=dtype)),
    ):
        assert torch.isfinite(out).all()


# --- docs/paper.md 1 ----------------------------------------------------------------------------


@quick
@given(windows())
def test_on_policy_vtrace_is_the_n_step_return(window):
    """ratio = 1, no clip: vs_t = r_t + gamma_t r_{t+1} + ... + gamma_t ... gamma_{T-1} V_T; adv_t =
    that - V_t.
    """
    v, _, (reward, discount, _, _), _, _ = window
    steps = len(reward)
    out = vtrace(
        *tensors(
            v[:-1], v[1:], reward, discount, np.zeros_like(reward), np.ones_like(reward, dtype=bool)
        )
    )
    for b in range(reward.shape[1]):
        for t in range(steps):
            n_step = (
                sum(math.prod(discount[t:k, b]) * reward[k, b] for k in range(t, steps))
                + math.prod(discount[t:, b]) * v[-1, b]
            )
            assert out.value[t, b].item() == pytest.approx(n_step, abs=1e-9)
            assert out.advantage[t, b].item() == pytest.approx(n_step - v[t, b], abs=1e-9)


# --- at the door ----------------------------------------------------------------------------------


def test_no_gradient_flows_through_a_target():
    v, q, rest = random_window(3)
    v, next_v, q, next_q, *floats, valid = tensors(v[:-1], v[1:], q[:-1], q[1:], *rest)
    v, next_v, q, next_q, *floats = (x.requires_grad_() for x in (v, next_v, q, next_q, *floats))
    for out in (
        *vtrace(v, next_v, *floats, valid),
        *retrace(q, next_q, *floats, valid),
        *drtrace(v, next_v, q, *floats, valid),
        *qtrace(q, next_q, *floats, valid),
        *(x for both in vtrace_and_retrace(v, next_v, q, next_q, *floats, valid) for x in both),
    ):
        assert not out.requires_grad


def test_targets_leave_their_arguments_alone():
    v, q, rest = random_window(3)
    args = tensors(v[:-1], v[1:], q[:-1], *rest)
    copies = [x.clone() for x in args]
    drtrace(*args)
    vtrace(*args[:2], *args[3:])
    retrace(args[2], args[1], *args[3:])
    qtrace(args[2], args[1], *args[3:])
    vtrace_and_retrace(*args[:3], args[1], *args[3:])
    assert all(torch.equal(x, y) for x, y in zip(args, copies, strict=True))


@pytest.mark.parametrize("shape", [(5, 3), (4, 2), (5,), (5, 2, 1), (1, 2)])
def test_a_wrong_shape_is_named(shape):
    """A shape that would broadcast silently is refused like any other, with every argument's name
    and shape.
    """
    good = [torch.zeros(5, 2) for _ in range(8)]
    for function, count in (
        (vtrace, 6),
        (retrace, 6),
        (qtrace, 6),
        (drtrace, 7),
        (vtrace_and_retrace, 8),
    ):
        for position in range(count):
            args = good[:count]
            args[position] = torch.zeros(shape)
            with pytest.raises(ValueError, match=r"\[T, B\].*reward.*log_ratio.*valid") as error:
                function(*args)
            assert str(shape) in str(error.value)


@pytest.mark.parametrize("shape", [(0, 2), (5,), ()])
def test_an_empty_or_flat_window_is_refused(shape):
    with pytest.raises(ValueError, match="T >= 1"):
        vtrace(*[torch.zeros(shape)] * 6)
