"""parts/sequence.py: a store gives back what was written, and its memory is
known before it is taken.
"""

import pickle

import numpy as np
import pytest

from dicerl.config.presets import preset
from dicerl.envs.base import EnvSpec
from dicerl.parts.sequence import Store, allocate, schema, window_bytes, window_length

SPEC = EnvSpec("test", (4, 6), np.dtype(np.uint8), 3)


def random_windows(config, count, seed=0):
    rng = np.random.default_rng(seed)
    windows = allocate(schema(config, SPEC), window_length(config), count)
    for array in windows.values():
        array[...] = rng.integers(0, 2 if array.dtype == np.bool_ else 100, array.shape)
    return windows


@pytest.mark.parametrize("shared", [False, True])
def test_a_store_gives_back_what_was_written(shared):
    config = preset("debug")
    store = Store(schema(config, SPEC), window_length(config), 7, shared=shared)
    windows, others = random_windows(config, 3), random_windows(config, 3, seed=1)
    store.write([5, 0, 3], windows, [2, 0, 1])
    store.write([1, 2], others, [0, 2])
    batch = store.read([3, 2, 5])
    assert set(batch) == set(schema(config, SPEC))
    for name, field in store.fields.items():
        column = (lambda x, i: x[:, i]) if field.per_step else (lambda x, i: x[i])
        for place, (source, i) in enumerate([(windows, 1), (others, 2), (windows, 2)]):
            np.testing.assert_array_equal(
                column(batch[name], place), column(source[name], i), err_msg=name
            )
        assert batch[name].dtype == field.dtype
        assert batch[name].shape[: 2 if field.per_step else 1] == (
            (window_length(config), 3) if field.per_step else (3,)
        )


def test_a_batch_is_a_copy():
    """The slot may be written again while the learner trains."""
    config = preset("debug")
    store = Store(schema(config, SPEC), window_length(config), 2)
    store.write([0], random_windows(config, 1), [0])
    batch = store.read([0])
    kept = {n: a.copy() for n, a in batch.items()}
    store.write([0], random_windows(config, 1, seed=1), [0])
    assert all(np.array_equal(batch[n], kept[n]) for n in batch)


def test_a_store_keeps_its_memory_when_it_is_sent_to_a_process():
    config = preset("debug")
    store = Store(schema(config, SPEC), window_length(config), 2)
    store.write([1], random_windows(config, 1), [0])
    there = pickle.loads(pickle.dumps(store))
    for name, array in there.arrays.items():
        np.testing.assert_array_equal(array, store.arrays[name])
    # its arrays are views of what its tensors hold
    there.write([0], random_windows(config, 1, seed=1), [0])
    assert all(np.array_equal(there.arrays[n], t.numpy()) for n, t in there._tensors.items())


def test_the_memory_of_a_window_is_counted_right():
    config = preset("debug")
    arrays = allocate(schema(config, SPEC), window_length(config), 5)
    assert 5 * window_bytes(schema(config, SPEC), window_length(config)) == sum(
        a.nbytes for a in arrays.values()
    )
