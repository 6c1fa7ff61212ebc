"""parts/staging.py, runtime/device.py: training on another device than the CPU. There is no GPU
here. The device "meta" stands for one where the host must not wait: its tensors have no values, so
whatever asks for one raises. A recorded torch.cuda shows in which order streams and events are
used.
"""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import probe
from dicerl import preset
from dicerl.agent.actor_critic import ActorCritic
from dicerl.config.presets import VARIANTS
from dicerl.envs.base import EnvSpec
from dicerl.errors import ConfigError
from dicerl.parts.learner import Learner
from dicerl.parts.objective import objective
from dicerl.parts.sequence import Store, allocate, episode_starts, schema, window_length
from dicerl.parts.staging import NOT_TRAINED_ON, Fetching, Staging
from dicerl.runtime.device import choose_device, require_device_memory, training_bytes

ATARI = EnvSpec("test", (4, 84, 84), np.dtype(np.uint8), 6, action_repeat=4, frame_stack=4)
ON_CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("single_threaded")


def on_meta(learner):
    return Learner(ActorCritic(learner.config, learner.model.spec), 1000, "meta")


# --- the host never waits -------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_update_never_waits_for_the_device(variant):
    learner, batch = probe.learner_and_batch(**VARIANTS[variant][1])
    there = on_meta(learner)
    for _ in range(3):
        assert there.update(batch) is None
    assert there.updates == 3
    assert there.weights.vector.device.type == "meta"


@pytest.mark.parametrize(
    "changes",
    [
        {"network.lstm": 0},
        {"behaviour.scale": "normalised", "env.reward_unit": "returns", "env.reward_shape": "none"},
        {"loss.retrace_bootstrap": "expected", "optimizer.decay": "matrices"},
        {"network.last_action_reward": True, "network.layer_norm": True, "network.skip": True},
        {"network.normalise": "statistics"},
    ],
    ids=str,
)
def test_nor_with_what_the_small_presets_use(changes):
    learner, batch = probe.learner_and_batch(**changes)
    there = on_meta(learner)
    there.update(batch)
    batch["valid"][...] = True  # no reset: another way through the LSTM
    there.update(batch)
    assert there.updates == 2


@pytest.mark.parametrize("torso", ["impala_shallow", "impala_deep"])
@pytest.mark.parametrize("normalise", ["scale", "statistics"])
def test_nor_with_images(torso, normalise):
    config = preset(
        "debug", **{"network.torso": torso, "network.normalise": normalise, "sequence.batch": 2}
    )
    arrays = allocate(schema(config, ATARI), window_length(config), 2)
    arrays["valid"][1:] = True
    there = Learner(ActorCritic(config, ATARI), 1000, "meta")
    there.update(arrays)
    assert there.updates == 1


@pytest.mark.parametrize("family", ["boltzmann", "epsilon"])
def test_nor_with_action_masks(family):
    config = preset(
        "debug",
        **{"behaviour.family": family, "behaviour.scale": "normalised", "sequence.batch": 2},
    )
    masked = EnvSpec("test", (5,), np.dtype(np.float32), 3, masked=True)
    arrays = allocate(schema(config, masked), window_length(config), 2)
    arrays["valid"][1:] = True
    there = Learner(ActorCritic(config, masked), 1000, "meta")
    there.update(arrays)
    assert there.updates == 1


def test_a_wait_would_be_noticed():
    """Diagnostics need numbers."""
    learner, batch = probe.learner_and_batch()
    with pytest.raises(RuntimeError, match="meta tensors"):
        on_meta(learner).update(batch, diagnose=True)


class Copies(TorchDispatchMode):
    """Counts the copies from the machine's memory to the device meta."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default):
            source = args[1] if func is torch.ops.aten.copy_.default else args[0]
            target = (kwargs or {}).get("device") or args[0].device
            if source.device.type == "cpu" and torch.device(target).type == "meta":
                self.sizes.append(source.numel())
        return func(*args, **(kwargs or {}))


def test_a_batch_crosses_in_one_copy():
    learner, batch = probe.learner_and_batch()
    there = on_meta(learner)
    with Copies() as copies:
        there.update(batch)
    large = [size for size in copies.sizes if size > 1]  # single numbers are not data
    trained = sum(a.nbytes for name, a in batch.items() if name not in NOT_TRAINED_ON)
    assert len(large) == 1
    assert trained <= large[0] < trained + 64 * len(batch)


# --- streams and events ---------------------------------------------------------------------------


class Cuda:
    """Stands for torch.cuda: remembers what was asked of it, in order."""

    def __init__(self):
        self.said = []
        self.training, self.inside = Stream(self, "training"), None

    def Stream(self, device):  # torch's name
        return Stream(self, "copying")

    def current_stream(self, device=None):
        return self.inside or self.training

    def stream(self, stream):
        cuda = self

        class Inside:
            def __enter__(self):
                cuda.inside = stream

            def __exit__(self, *error):
                cuda.inside = None

        return Inside()


class Stream:
    def __init__(self, cuda, name):
        self.cuda, self.name, self.events = cuda, name, 0

    def record_event(self):
        self.events += 1
        event = Event(self.cuda, f"{self.name} {self.events}")
        self.cuda.said.append(f"{event.name} recorded")
        return event

    def wait_event(self, event):
        self.cuda.said.append(f"{self.name} waits for {event.name}")


class Event:
    def __init__(self, cuda, name):
        self.cuda, self.name = cuda, name

    def synchronize(self):
        self.cuda.said.append(f"host waits for {self.name}")


def staged(learner, cuda):
    """Lets a learner on the CPU have its batches as one on a GPU has them."""
    c = learner.config
    fields = schema(c, learner.model.spec)
    learner._staging = Staging(fields, window_length(c), c.sequence.batch, ON_CPU, cuda)
    return learner


def test_two_blocks_take_turns_and_nothing_is_overwritten_before_it_was_used():
    cuda = Cuda()
    learner, batch = probe.learner_and_batch()
    staged(learner, cuda)
    for _ in range(3):
        learner.update(batch)
    assert cuda.said == [
        "copying 1 recorded",
        "training waits for copying 1",
        "training 1 recorded",
        "copying 2 recorded",
        "training waits for copying 2",
        "training 2 recorded",
        "host waits for training 1",  # what came of it; the device has the second to train
        # the first block again: its copy must be over before the host writes into it, and its
        # training before the next copy arrives there
        "host waits for copying 1",
        "copying waits for training 1",
        "copying 3 recorded",
        "training waits for copying 3",
        "training 3 recorded",
        "host waits for training 2",
    ]


def test_a_bad_update_is_known_one_later_with_its_batch():
    learner, batch = probe.learner_and_batch()
    skipped = []
    learner._skipped = lambda outcome: skipped.append((outcome, outcome.batch["reward"].copy()))
    staged(learner, Cuda())
    learner.update(batch)
    bad = {name: array.copy() for name, array in batch.items()}
    bad["reward"][5, 0] = np.nan
    learner.update(bad)
    assert not skipped
    learner.update(batch)
    ((outcome, reward),) = skipped
    assert outcome.update == 1
    np.testing.assert_array_equal(reward, bad["reward"])
    assert learner.weights.vector.isfinite().all()
    learner.update(batch)
    assert len(skipped) == 1


@pytest.mark.parametrize("changes", [{}, {"network.lstm": 0}, {"behaviour.family": "mixture"}])
def test_staged_batches_train_the_same_weights(changes):
    plain, batch = probe.learner_and_batch(**changes)
    other = staged(probe.learner_and_batch(**changes)[0], Cuda())
    for turn in range(4):
        batch["reward"] += turn
        plain.update(batch)
        other.update(batch)
    assert torch.equal(plain.weights.vector, other.weights.vector)


def test_a_batch_may_be_read_right_into_the_block():
    learner, batch = probe.learner_and_batch()
    store = Store(schema(learner.config, learner.model.spec), len(batch["valid"]), 5)
    store.write([4, 0, 2], batch, [0, 1, 2])
    staged(learner, Cuda())
    read = store.read([4, 0, 2], learner.buffers())
    assert read is learner.buffers()
    sent = learner._staging.send(read)
    assert set(sent) == set(batch) - set(NOT_TRAINED_ON)
    for name, array in batch.items():
        np.testing.assert_array_equal(read[name], array)
        if name in sent:
            assert sent[name].dtype == torch.from_numpy(array).dtype
            np.testing.assert_array_equal(sent[name].numpy(), array)


def test_weights_are_published_when_they_have_arrived():
    cuda, published = Cuda(), []
    learner, batch = probe.learner_and_batch(**{"runtime.push_every": 2})
    learner._publish = lambda vector, version: published.append((vector.clone(), version))
    learner._fetching = Fetching(learner.weights.vector.numel(), cuda)
    learner.update(batch)
    learner.update(batch)
    then = learner.weights.vector.clone()
    assert not published
    learner.update(batch)  # the next update publishes what the last one began
    [(vector, version)] = published
    assert version == 2
    assert torch.equal(vector, then)
    assert cuda.said == ["training 1 recorded", "host waits for training 1"]
    learner.settle()
    assert len(published) == 1
    learner.publish()  # at once
    assert published[1][1] == 3
    assert torch.equal(published[1][0], learner.weights.vector)


# --- resets that the host knows -------------------------------------------------------------------


def test_the_steps_after_invalid_ones_are_starts():
    valid = np.ones((6, 3), np.bool_)
    assert episode_starts(valid) == frozenset()
    valid[0, 1] = valid[3, 0] = valid[3, 2] = valid[5, 2] = False
    assert episode_starts(valid) == {1, 4}  # what follows the last step is not in the window


@pytest.mark.parametrize("resets", [True, False])
def test_known_starts_change_nothing(resets):
    learner, batch = probe.learner_and_batch()
    if not resets:
        batch["valid"][...] = True
    data = probe.tensors({n: a for n, a in batch.items() if n not in NOT_TRAINED_ON})
    scaling = probe.draw_scaling(learner.config, 0, ON_CPU)
    plain = objective(learner.model, data, scaling)
    known = objective(learner.model, data, scaling, episode_starts(batch["valid"]))
    assert torch.equal(plain.losses.total, known.losses.total)
    assert torch.equal(plain.window.hidden, known.window.hidden)


# --- memory ---------------------------------------------------------------------------------------


def kept_on_the_cpu(config, spec):
    """The bytes that a real update keeps for its gradient."""
    kept = {}

    def keep(x):
        kept.setdefault(x.untyped_storage()._cdata, (x.untyped_storage().nbytes(), x))
        return x

    arrays = allocate(schema(config, spec), window_length(config), config.sequence.batch)
    arrays["valid"][...] = True
    arrays["valid"][window_length(config) // 2] = False
    learner = Learner(ActorCritic(config, spec), 1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        learner.update(arrays)
    return sum(size for size, _ in kept.values())


def test_the_memory_of_an_update_is_known_before():
    config = preset("debug", **{"network.torso": "impala_shallow", "sequence.batch": 3})
    kept = kept_on_the_cpu(config, ATARI)
    counted = training_bytes(config, ATARI)
    assert kept < counted < 2 * kept
    more = training_bytes(config.replace(**{"sequence.batch": 6}), ATARI)
    assert 1.5 * counted < more < 2.0 * counted  # the weights are the same


def test_a_run_that_does_not_fit_is_refused():
    config = preset("debug", **{"network.torso": "impala_shallow", "sequence.batch": 3})
    require_device_memory(config, ATARI, 2**30, 2**31)
    with pytest.raises(
        ConfigError, match=r"sequence\.batch is 3; an update of sequences of 13 steps needs about"
    ):
        require_device_memory(config, ATARI, 2**20, 2**31)


@pytest.mark.parametrize("name", ["meta", "cuda:99", "nonsense", ""])
def test_a_device_that_cannot_train_is_refused(name):
    with pytest.raises(ConfigError, match=r"runtime\.device is .* it cannot be used here"):
        choose_device(name)
