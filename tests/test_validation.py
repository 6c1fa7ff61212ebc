"""config/validation.py: ranges, and fields that contradict each other."""

import typing

import pytest

from dicerl.config import Config, fields_of, override, validate
from dicerl.errors import ConfigError
from runs import refused

FIELDS = fields_of()
RANGES = {name: f.metadata["range"] for name, (_, f) in FIELDS.items() if f.metadata["range"]}
NUMBERS = {name: kind for name, (kind, _) in FIELDS.items() if kind in (int, float)}


def test_every_number_has_a_range():
    # behaviour.mixture has a check of its own
    several = {"bandit.learning_rates", "bandit.widths", "network.hidden"}
    assert {*NUMBERS, *several} == set(RANGES)


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_outside_their_range_are_refused_by_name(name):
    low, high = RANGES[name]
    outside = [low - 1, high + 1] if NUMBERS[name] is int else [low - 0.5, high * 1.01]
    for value in outside:
        assert "between" in refused(name, int(value) if NUMBERS[name] is int else value)


@pytest.mark.parametrize("name", ["bandit.learning_rates", "bandit.widths"])
def test_several_numbers_outside_their_range_are_refused_by_name(name):
    low, high = map(typing.get_args(FIELDS[name][0])[0], RANGES[name])
    for value in ((low - 1,), (high + 1,), (low, high + 1), ()):
        assert "at least one value, each between 0 and 1000" in refused(name, value)
    validate(override(Config(), {name: (low, high)}))


def test_fields_that_contradict_each_other():
    with pytest.raises(ConfigError, match=r"runtime\.num_actors is 5; runtime\.num_envs is only 4"):
        validate(Config().replace(runtime__num_envs=4, runtime__num_actors=5))
    with pytest.raises(ConfigError, match=r"collector\.capacity is 63; .*at least 64"):
        validate(Config().replace(collector__capacity=63))
    with pytest.raises(ConfigError, match=r"bandit\.accuracy is 5"):
        validate(Config().replace(bandit__accuracy=5.0))
    with pytest.raises(
        ConfigError,
        match=(
            r"loss\.estimator is 'drtrace'; with loss\.critic dueling it learns nothing.*need"
            r" E_pi\[A\] = 0.*casa"
        ),
    ):
        validate(Config().replace(loss__estimator="drtrace"))
    validate(Config().replace(loss__estimator="drtrace", loss__critic="casa"))
    for family in ("epsilon", "mixture", "conditioned"):
        with pytest.raises(
            ConfigError,
            match=(
                r"behaviour\.source is 'trainable'; it needs behaviour\.family boltzmann, not"
                rf" {family}"
            ),
        ):
            validate(Config().replace(behaviour__source="trainable", behaviour__family=family))
    with pytest.raises(
        ConfigError,
        match=r"behaviour\.inv_temperature is 0\.0; where it is trainable it must start above 0",
    ):
        validate(Config().replace(behaviour__source="trainable", behaviour__inv_temperature=0.0))
    for name in ("bandit.widths", "bandit.learning_rates"):
        with pytest.raises(ConfigError, match="at least one value"):
            validate(override(Config(), {name: ()}))


@pytest.mark.parametrize(
    "value",
    [
        (),
        (1.0,),
        (1.0, 2.0),
        (1.0, 2.0, 0.5, 0.5),
        (2.0, 1.0, 0.5),
        (-1.0, 1.0, 0.5),
        (1.0, 2.0, 1.5),
        (1.0, 2.0, -0.1),
        (1.0, 1e7, 0.5),
    ],
)
def test_a_mixture_that_is_none_is_refused(value):
    assert "1/tau1 <= 1/tau2 and w from 0 to 1" in refused("behaviour.mixture", value)


@pytest.mark.parametrize("value", [(0.0, 0.0, 0.0), (0.0, 1e6, 1.0), "1, 2, 0.5"])
def test_mixtures_at_the_border_are_fine(value):
    validate(override(Config(), {"behaviour.mixture": value}))


@pytest.mark.parametrize(("replay", "batch"), [(0.05, 8), (0.95, 8), (0.5, 1)])
def test_a_replay_without_a_new_or_an_older_sequence_is_refused(replay, batch):
    with pytest.raises(
        ConfigError,
        match=(
            rf"^collector\.replay is {replay}; of a batch of {batch} it must leave at least one new"
            r" and one older"
        ),
    ):
        validate(Config().replace(collector__replay=replay, sequence__batch=batch))


def test_a_replay_smaller_than_what_a_batch_takes_is_refused():
    with pytest.raises(
        ConfigError, match=r"^collector\.replay_capacity is 31; a batch takes 32 of them"
    ):
        validate(Config().replace(collector__replay=0.5, collector__replay_capacity=31))
    validate(Config().replace(collector__replay=0.5, collector__replay_capacity=32))
    validate(Config().replace(collector__replay_capacity=1))  # not used


@pytest.mark.parametrize("name", ["FlattenObservation", ":Name", "a:", "a:b.C", "a:B()", "<f>"])
def test_a_wrapper_is_named_with_its_module(name):
    assert "it must be module:Name" in refused("env.wrappers", name)
    validate(override(Config(), {"env.wrappers": "a.b:Name"}))


@pytest.mark.parametrize("name", ["env.id", "run_dir", "init.run", "variant", "ray.address"])
def test_a_name_that_no_file_can_have_is_refused(name):
    assert "no name can hold the character 0" in refused(name, "a\0b")
    # what os.fsdecode makes of bytes that are not UTF-8
    assert "it must be text that a file can hold" in refused(name, "a\udcffb")
