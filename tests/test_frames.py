"""agent/frames.py: stacks rebuilt from single frames are ale-py's own, bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import probe
from dicerl.agent.frames import _blank, history_at, stacks
from dicerl.config.presets import preset
from dicerl.envs import make_vector_env
from dicerl.parts.sequence import schema, window_bytes, with_single_frames


def rebuilt(window):
    """The stacks [L, N, k, H, W] of windows as an actor sends them."""
    valid = torch.from_numpy(window["valid"])
    first = ~torch.cat([torch.ones_like(valid[:1]), valid[:-1]])
    history, frames = (torch.from_numpy(window[name]) for name in ("history", "observation"))
    return stacks(history, frames, first).numpy()


def played(num_windows, **changes):
    """(windows, every observation that ale-py gave) of an actor in three games of breakout whose
    episodes end every 17 steps.
    """
    config = preset(
        "debug",
        **{
            "env.id": "breakout",
            "env.max_episode_frames": 68,
            "env.image_size": 21,
            "network.torso": "impala_shallow",
            **changes,
        },
    )
    windows, seen = [], []
    actor = probe.actor_of(
        config,
        None,
        3,
        send_sequences=lambda w: windows.append({name: x.copy() for name, x in w.items()}),
    )
    while len(windows) < num_windows:
        seen.append(actor._observation.copy())
        actor.act()
        actor.advance()
    actor.env.close()
    return config, windows, np.stack(seen)


@pytest.mark.parametrize(
    ("burn_in", "length", "stack"), [(4, 8, 4), (0, 20, 4), (9, 5, 4), (5, 2, 4), (3, 6, 2)]
)
def test_a_window_s_stacks_are_ale_py_s(burn_in, length, stack):
    _, windows, seen = played(
        100 // length,
        **{"sequence.burn_in": burn_in, "sequence.length": length, "env.frame_stack": stack},
    )
    resets = 0
    for k, window in enumerate(windows):
        start = k * length - burn_in  # of the window, in the actor's steps
        padding = max(0, -start)
        expected = seen[start + padding : start + burn_in + length + 1]
        assert window["observation"].shape == (burn_in + length + 1, 3, 21, 21)
        np.testing.assert_array_equal(rebuilt(window)[padding:], expected)
        assert not rebuilt(window)[:padding].any()
        resets += int((~window["valid"][padding:]).sum())
    assert resets >= 9
    assert seen.any(axis=(2, 3, 4)).all()


def test_the_stack_after_a_lost_life_is_ale_py_s():
    _, windows, seen = played(
        60, **{"env.episodic_life": True, "env.max_episode_frames": 2000, "sequence.burn_in": 0}
    )
    lost = 0
    for k, window in enumerate(windows):
        np.testing.assert_array_equal(rebuilt(window), seen[k * 8 : k * 8 + 9])
        lost += int((window["discount"][:-1] == 0).sum())
    assert lost >= 3


def slow_stack(history, frames, first, t, column):
    """Frame by frame, backwards from step t, until the episode begins."""
    before = history.shape[1]
    result = np.zeros((before + 1, *frames.shape[2:]), frames.dtype)
    for age in range(before + 1):
        s = t - age
        result[before - age] = frames[s, column] if s >= 0 else history[column, before + s]
        if s >= 0 and first[s, column]:
            break
    return result


@given(
    st.integers(2, 5), st.integers(1, 9), st.integers(1, 3), st.floats(0, 1), st.integers(0, 2**31)
)
def test_stacks_and_history_are_those_of_the_slow_twin(stack, length, columns, often, seed):
    rng = np.random.default_rng(seed)
    history = rng.integers(1, 255, (columns, stack - 1, 2, 3)).astype(np.uint8)
    frames = rng.integers(1, 255, (length, columns, 2, 3)).astype(np.uint8)
    valid = rng.random((length, columns)) >= often
    first = np.concatenate([np.zeros((1, columns), bool), ~valid[:-1]])
    out = stacks(*(torch.from_numpy(x) for x in (history, frames, first)))
    assert out.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    as_on_a_gpu = stacks(*(torch.from_numpy(x) for x in (history, frames, np.zeros_like(first))))
    _blank(as_on_a_gpu.movedim(2, -1), torch.from_numpy(first))
    assert torch.equal(as_on_a_gpu, out)
    for t in range(length):
        for column in range(columns):
            expected = slow_stack(history, frames, first, t, column)
            np.testing.assert_array_equal(out[t, column].numpy(), expected)
        np.testing.assert_array_equal(history_at(t, history, frames, valid), out[t, :, :-1].numpy())


def test_a_window_takes_little_more_than_a_quarter():
    config = preset("paper", **{"env.id": "pong"})
    env = make_vector_env(config, 1)
    fields, length = schema(config, env.spec), 121
    env.close()
    assert window_bytes(fields, length) < 0.27 * length * 4 * 84 * 84


def test_windows_of_whole_stacks_are_read():
    """Checkpoints from before hold them."""
    config, windows, seen = played(2, **{"sequence.burn_in": 0})
    old = {name: x for name, x in windows[1].items() if name != "history"}
    old["observation"] = seen[8:17]
    env = make_vector_env(config, 1)
    fields = schema(config, env.spec)
    env.close()
    for given_windows in (old, windows[1]):
        read = with_single_frames(fields, given_windows)
        for name, x in windows[1].items():
            np.testing.assert_array_equal(read[name], x)
