"""config/: parsing, overriding, the JSON form, what each preset changes, and what is refused."""

import hashlib
import json
import math
import subprocess
import sys
import typing
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dicerl.config import (
    RENAMED,
    Config,
    describe_type,
    fields_of,
    flatten,
    from_dict,
    get,
    override,
    parse,
    validate,
)
from dicerl.config.presets import PRESETS, VARIANTS, characteristics, preset
from dicerl.envs import preset_for
from dicerl.errors import ConfigError, DicerlError

quick = settings(max_examples=100, deadline=None, derandomize=True)
FIELDS = fields_of()
RANGES = {name: f.metadata["range"] for name, (_, f) in FIELDS.items() if f.metadata["range"]}
NUMBERS = {name: kind for name, (kind, _) in FIELDS.items() if kind in (int, float)}
YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
HUGE = pytest.param(10**400, id="huge")  # too large for a float
EVERY_PRESET = [(p, v) for p in PRESETS for v in VARIANTS]


def refused(name, value):
    """The error of setting a field to a value, which must name both."""
    with pytest.raises(ConfigError) as caught:
        validate(override(Config(), {name: value}))
    message = str(caught.value)
    assert caught.value.field == name
    assert message.startswith(f"{name} is {value!r}; ") or repr(value) in message
    assert len(message.splitlines()) == 1
    return message


# --- parsing


@quick
@given(st.integers(-(2**63), 2**63 - 1))
def test_int_is_read_exactly(number):
    assert parse("x", int, number) == number
    text = parse("x", int, str(number))
    assert text == number
    assert type(text) is int


@quick
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_float_is_read_exactly(number):
    for value in (number, repr(number), f" {number!r} "):
        read = parse("x", float, value)
        assert type(read) is float
        assert read == number


@quick
@given(st.integers(-(2**53), 2**53))
def test_whole_float_is_an_int(number):
    assert parse("x", int, float(number)) == number
    assert parse("x", int, f"{number}.0") == number


@quick
@given(st.floats().filter(lambda x: not math.isfinite(x) or x != int(x)))
def test_anything_but_a_whole_number_is_no_int(number):
    for value in (number, repr(number)):
        with pytest.raises(ConfigError, match="whole number"):
            parse("x", int, value)


@quick
@given(
    st.sampled_from(YES), st.sampled_from(NO), st.sampled_from([str.lower, str.upper, str.title])
)
def test_bool_words(yes, no, case):
    assert parse("x", bool, case(yes)) is True
    assert parse("x", bool, case(no)) is False
    assert parse("x", bool, True) is True
    assert parse("x", bool, False) is False


@quick
@given(st.one_of(st.text(max_size=8), st.integers(), st.none(), st.floats()))
def test_nothing_else_is_a_bool(value):
    if isinstance(value, str) and value.lower() in YES + NO:
        return
    with pytest.raises(ConfigError, match="true or false"):
        parse("x", bool, value)


@quick
@given(st.text(max_size=12))
def test_any_text_is_a_number_or_refused_by_name(text):
    for kind in (int, float):
        try:
            number = parse("some.field", kind, text)
        except ConfigError as error:
            assert str(error).startswith("some.field is ")  # noqa: PT017
        else:
            assert math.isfinite(number)


def test_how_numbers_may_be_written():
    config = override(
        Config(),
        {
            "frames": "2e5",
            "sequence.batch": "1_000",
            "optimizer.learning_rate": "1e-3",
            "loss.q": "3",
        },
    )
    assert (
        config.frames,
        config.sequence.batch,
        config.optimizer.learning_rate,
        config.loss.q,
    ) == (200_000, 1000, 1e-3, 3.0)
    assert type(config.frames) is int
    assert type(config.loss.q) is float


@pytest.mark.parametrize(
    "value",
    [
        "",
        "abc",
        "1.5",
        "1e400",
        "nan",
        "inf",
        "0x10",
        None,
        True,
        [3],
        2.5,
        math.nan,
        math.inf,
        HUGE,
    ],
)
def test_not_a_whole_number(value):
    refused("sequence.batch", value)


@pytest.mark.parametrize(
    "value", ["", "abc", "nan", "-inf", "1,5", None, True, [0.1], math.nan, math.inf, HUGE]
)
def test_not_a_number(value):
    refused("optimizer.learning_rate", value)


@pytest.mark.parametrize("value", ["1,2,3", "1 2 3", "1, 2, 3", [1, 2, 3], (1, 2, 3)])
def test_several_values(value):
    assert override(Config(), {"bandit.widths": value}).bandit.widths == (1, 2, 3)


@pytest.mark.parametrize("value", ["", "1,x", [1, None], [], 5, None, "0.5", "-1"])
def test_several_values_refused(value):
    with pytest.raises(ConfigError, match=r"^bandit\.widths is "):
        validate(override(Config(), {"bandit.widths": value}))


def test_a_choice_that_does_not_exist_is_answered_with_the_choices():
    message = refused("network.torso", "impala_shalow")
    assert "auto, impala_deep, impala_shallow, minatar, mlp" in message
    assert "did you mean impala_shallow?" in message


def test_text_stays_text():
    assert override(Config(), {"run_dir": "1e5"}).run_dir == "1e5"
    assert override(Config(), {"runtime.device": "cuda:1"}).runtime.device == "cuda:1"


# --- overriding


def test_an_override_changes_one_field_of_a_copy():
    before = Config()
    after = override(before, {"loss.q": 3.5})
    assert after.loss.q == 3.5
    assert before == Config()
    assert {n for n in FIELDS if get(after, n) != get(before, n)} == {"loss.q"}
    with pytest.raises(FrozenInstanceError):
        after.loss.q = 1.0


def test_replace_takes_dots_or_double_underscores():
    assert Config().replace(loss__q=2, frames="10") == Config().replace(
        **{"loss.q": 2.0, "frames": 10}
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sequence.bach", "sequence.batch"),
        ("optimiser.learning_rate", "optimizer.learning_rate"),
        ("sead", "seed"),
    ],
)
def test_an_unknown_field_is_named_with_the_nearest(name, hint):
    with pytest.raises(ConfigError, match="no such field") as caught:
        override(Config(), {name: 1})
    assert repr(name) in str(caught.value)
    assert f"did you mean {hint}?" in str(caught.value)


def test_a_section_is_not_a_field():
    with pytest.raises(ConfigError, match="no such field"):
        override(Config(), {"loss": 1})


# --- the JSON form


def values(kind, name):
    """Values a field may have."""
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    if origin is tuple:
        inner = st.integers(0, 1000) if typing.get_args(kind)[0] is int else st.floats(0, 1000)
        return st.lists(inner, min_size=1, max_size=4).map(tuple)
    if kind is bool:
        return st.booleans()
    if kind is str:
        return st.text(max_size=10)
    low, high = RANGES[name]
    return st.integers(int(low), int(min(high, 2**53))) if kind is int else st.floats(low, high)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries(
        {}, optional={name: values(kind, name) for name, (kind, _) in FIELDS.items()}
    )
)
def test_json_round_trip(changes):
    config = override(Config(), changes)
    assert {n: get(config, n) for n in changes} == changes
    assert from_dict(config.to_dict()) == config
    assert from_dict(json.loads(json.dumps(config.to_dict()))) == config
    # Every value as a person would type it.
    typed = {
        n: ",".join(map(repr, v)) if isinstance(v, tuple) else str(v) for n, v in changes.items()
    }
    assert override(Config(), typed) == config


def test_to_dict_holds_every_field_once():
    def leaves(node, prefix=""):
        for key, value in node.items():
            yield from (
                leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]
            )

    assert sorted(leaves(Config().to_dict())) == sorted(FIELDS)


def test_a_nest_of_dicts_by_dotted_name():
    nest = {"frames": 5, "loss": {"q": 1.0, "deeper": {"x": None}}, "empty": {}, "list": [{"a": 1}]}
    flat = {"frames": 5, "loss.q": 1.0, "loss.deeper.x": None, "list": [{"a": 1}]}
    assert flatten(nest) == flat
    assert list(flatten(nest)) == list(flat)


@pytest.mark.parametrize(
    "data", [{"loss": {"zeta": 1}}, {"nothing": 1}, {"loss": 1}, {"frames": {"a": 1}}]
)
def test_from_dict_refuses_unknown_fields(data):
    with pytest.raises(ConfigError):
        from_dict(data)


@pytest.mark.parametrize("data", [[], None, 3, "text", [1]])
def test_from_dict_refuses_what_is_no_object(data):
    with pytest.raises((DicerlError, ValueError)):
        from_dict(data)


def older_form(config):
    """As config.json was when the collector's capacity stood among the sequence's fields."""
    data = config.to_dict()
    data["sequence"]["capacity"] = data["collector"].pop("capacity")
    return data


def test_a_config_of_before_a_renaming_still_loads():
    config = override(Config(), {"collector.capacity": 77, "sequence.batch": 7})
    assert from_dict(json.loads(json.dumps(older_form(config)))) == config
    assert override(Config(), {"sequence.capacity": "77", "sequence.batch": 7}) == config
    assert Config().replace(sequence__capacity=77, sequence__batch=7) == config
    with pytest.raises(ConfigError, match=r"^collector\.capacity is 'x'; "):
        override(Config(), {"sequence.capacity": "x"})


def test_a_checkpoint_of_before_a_renaming_still_fits():
    """Otherwise resuming such a run would report a changed config."""
    config = override(Config(), {"collector.capacity": 77})
    text = json.dumps(older_form(config), sort_keys=True)
    assert config.hash() == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert config.hash() != Config().hash()


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_renamed_field_is_there_under_its_new_name_alone(old, new):
    assert new in FIELDS
    assert old not in FIELDS


# --- presets and variants


@pytest.mark.parametrize(("name", "variant"), EVERY_PRESET)
def test_presets_are_valid_and_survive_json(name, variant):
    config = preset(name, variant)
    assert validate(config) is config
    assert (config.preset, config.variant) == (name, variant)
    assert from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_states_only_differences(name):
    default = Config()
    same = [field for field, value in PRESETS[name].items() if get(default, field) == value]
    assert not same, f"{name} repeats the default of {same}"
    config = preset(name)
    assert {n for n in FIELDS if get(config, n) != get(default, n)} - {"preset"} == set(
        PRESETS[name]
    )


def test_debug_takes_seconds_on_atari_too():
    """The deep torso's work grows with the pixels: 84 x 84 on every core took 90 seconds of CPU."""
    config = preset("debug")
    # acting, and forward and backward of training
    steps = config.frames / config.env.action_repeat * (1 + 3 * config.sequence.reuse)
    steps += (
        2
        * config.evaluation.episodes
        * config.evaluation.max_steps
        * config.frames
        / config.evaluation.every
    )
    assert steps * config.env.image_size**2 < 20e6
    assert config.runtime.learner_threads == 1


@pytest.mark.parametrize("name", PRESETS)
def test_variants(name):
    dice, changed = preset(name, "dice"), {}
    for variant in VARIANTS:
        config = preset(name, variant)
        changed[variant] = {n for n in FIELDS if get(config, n) != get(dice, n)} - {"variant"}
    assert changed["dice"] == set()
    assert changed["baseline"] - {"behaviour.scale"} == {"behaviour.source"}
    baseline = preset(name, "baseline").behaviour
    # tau = 1 as the paper means it
    assert (baseline.source, baseline.inv_temperature, baseline.scale) == ("fixed", 1.0, "raw")
    assert changed["random"] == {"behaviour.source"}
    assert preset(name, "random").behaviour.source == "distribution"
    assert changed["entropy"] == {"loss.entropy"}
    assert preset(name, "entropy").loss.entropy == 1.0


# docs/paper.md 2.7 and the appendix's table of ablations: what differs from casa, and casa from
# dice
TABLE = {
    "casa": {"loss.critic": "casa", "loss.estimator": "drtrace", "loss.auxiliary": 0.1},
    "casa/no_stop_pi": {"loss.stop_pi": False},
    "casa/no_stop_v": {"loss.stop_v": False},
    "casa/no_drtrace": {"loss.estimator": "vtrace+qtrace"},
    "casa/random_scaling": {"loss.scaling": "random"},
    "casa/trainable_tau": {"behaviour.source": "trainable"},
    "casa/no_bva": {"behaviour.source": "distribution"},
    "epsilon": {"behaviour.family": "epsilon"},
    "mixture": {"behaviour.family": "mixture"},
    "conditioned": {"behaviour.family": "conditioned"},
    "laser": {"collector.replay": 0.5},
}


@pytest.mark.parametrize("variant", TABLE)
def test_a_variant_changes_what_the_table_says_and_nothing_else(variant):
    base = preset(
        "minatar", "casa" if "/" in variant else "impala" if variant == "laser" else "dice"
    )
    config = preset("minatar", variant)
    assert {
        n: get(config, n) for n in FIELDS if get(config, n) != get(base, n) and n != "variant"
    } == TABLE[variant]


def test_every_variant_is_in_a_table_of_these_tests():
    assert set(VARIANTS) == {"dice", "baseline", "random", "entropy", "impala", *TABLE}


def test_impala_is_v_trace_alone_at_tau_1_with_a_little_entropy():
    config = preset("paper", "impala")
    assert (
        config.loss.q,
        config.loss.entropy,
        config.behaviour.source,
        config.behaviour.inv_temperature,
    ) == (0.0, 0.01, "fixed", 1.0)
    assert (config.loss.rho_bar, config.loss.c_bar, config.collector.replay) == (1.0, 1.0, 0.0)
    assert (config.frames, config.sequence.batch) == (200_000_000, 64)
    for name in ("impala", "laser"):  # by name as a preset: at the paper's scale
        assert preset(name) == preset("paper", name)


def test_characteristics_are_those_of_the_paper_s_tables():
    """ "Ablation Settings"; and IMPALA's column of the survey."""
    three = ("closed-form diversity", "objective-invariant", "adaptive")
    printed = {
        "dice": (True, True, True),
        "baseline": (False, False, False),
        "random": (True, True, False),
        "entropy": (True, False, True),
        "impala": (False, False, False),
    }
    for variant, expected in printed.items():
        assert characteristics(variant) == dict(zip(three, expected, strict=True)), variant
    assert characteristics("casa") == characteristics("mixture") == characteristics("dice")
    assert characteristics("casa/no_bva") == characteristics("random")
    assert not characteristics("casa/trainable_tau")["adaptive"]


def test_a_variant_wins_over_the_preset_and_changes_win_over_both(monkeypatch):
    monkeypatch.setitem(
        PRESETS, "debug", {"behaviour.scale": "normalised", "loss.entropy": 3.0, "frames": 5}
    )
    assert preset("debug").behaviour.scale == "normalised"
    assert preset("debug", "baseline").behaviour.scale == "raw"
    assert preset("debug", "entropy").loss.entropy == 1.0
    config = preset("debug", "entropy", **{"loss.entropy": 0.5}, frames=7, loss__q=2)
    assert (config.loss.entropy, config.frames, config.loss.q) == (0.5, 7, 2.0)


def test_unknown_preset_and_variant_are_answered_with_the_known_ones():
    with pytest.raises(
        ConfigError, match=r"paper, laptop, minatar, classic, debug.*did you mean laptop"
    ):
        preset("labtop")
    with pytest.raises(
        ConfigError, match=r"dice, baseline, random, entropy.*did you mean baseline"
    ):
        preset("paper", "base_line")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ("pong", "laptop"),
        ("ALE/MsPacman-v5", "laptop"),
        ("MinAtar/Breakout-v1", "minatar"),
        ("CartPole-v1", "classic"),
        ("my_module:MyEnv-v0", "classic"),
    ],
)
def test_the_preset_of_an_environment(env, expected):
    assert preset_for(env) == expected


# --- what is refused


def test_every_number_has_a_range():
    several = {"bandit.learning_rates", "bandit.widths"}  # behaviour.mixture has a check of its own
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


@pytest.mark.parametrize(
    ("replay", "batch", "replayed"), [(0.5, 8, 4), (0.875, 64, 56), (0.1, 8, 1), (0.0, 8, 0)]
)
def test_the_replayed_part_of_a_batch(replay, batch, replayed):
    config = validate(Config().replace(collector__replay=replay, sequence__batch=batch))
    assert config.replayed == replayed


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


def test_every_field_has_help_and_a_type_to_show():
    for name, (kind, field) in FIELDS.items():
        assert field.metadata["help"], name
        assert describe_type(kind).isprintable()
        assert "<" not in describe_type(kind), name


def test_nothing_above_is_imported():
    """config/ is at the bottom: of the package it imports itself and errors.py."""
    code = """if True:
        import importlib, pkgutil, sys
        import dicerl.config
        for module in pkgutil.iter_modules(dicerl.config.__path__, "dicerl.config."):
            importlib.import_module(module.name)
        print(*sorted({".".join(m.split(".")[:2]) for m in sys.modules if m.startswith("dicerl.")}))
    """
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=60, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["dicerl.config", "dicerl.errors"]
