"""config/fields.py: parsing values, changing fields by dotted name, and old names."""

import math
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
    get,
    override,
    parse,
    validate,
)
from dicerl.errors import ConfigError
from runs import refused

quick = settings(max_examples=100, deadline=None, derandomize=True)
FIELDS = fields_of()
YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
HUGE = pytest.param(10**400, id="huge")  # too large for a float


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


@pytest.mark.parametrize("value", ["a:B,c:D", "a:B c:D", ["a:B", "c:D"], ("a:B", "c:D")])
def test_several_names(value):
    assert override(Config(), {"env.wrappers": value}).env.wrappers == ("a:B", "c:D")


@pytest.mark.parametrize("value", [5, None, {"a": 1}, [None], [["a:B"]]])
def test_several_names_refused(value):
    assert "a list of names" in refused("env.wrappers", value)


@pytest.mark.parametrize("value", ['{"size": 9, "x": [1, null]}', {"size": 9, "x": [1, None]}])
def test_an_object(value):
    assert override(Config(), {"env.kwargs": value}).env.kwargs == {"size": 9, "x": [1, None]}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "Expecting value"),
        ("{size: 9}", "Expecting property name"),
        ("[9]", ""),
        ("9", ""),
        ('{"size": NaN}', "NaN is no JSON"),
        ({"size": math.inf}, "not JSON compliant"),
        ('{"size": 1e999}', "not JSON compliant"),  # no config.json could be read with these
        ('{"name": "\\ud800"}', "surrogates not allowed"),
        ({"name": "\ud800"}, "surrogates not allowed"),
        ({"a" * 3: {"\ud800": 1}}, "surrogates not allowed"),
        ('{"map": ' + "[" * 60 + "]" * 60 + "}", "nested more than 40 levels deep"),
        ({"make": len}, "not JSON serializable"),
        ({"size": (9, 9)}, "JSON would make {'size': [9, 9]} of it"),  # so a resumed run had a list
        ({"map": {1: 2}}, "JSON would make {'map': {'1': 2}} of it"),
        ([("size", 9)], ""),
        (None, ""),
        (9, ""),
    ],
    ids=str,
)
def test_an_object_refused(value, why):
    message = refused("env.kwargs", value)
    assert 'it must be a JSON object, like {"size": 9}' in message
    assert why in message


def test_an_object_that_is_nested_too_deeply():
    with pytest.raises(ConfigError, match=r"^env\.kwargs is .*recursion"):
        override(Config(), {"env.kwargs": '{"a":' * 100_000})


def test_a_choice_that_does_not_exist_is_answered_with_the_choices():
    message = refused("network.torso", "impala_shalow")
    assert "auto, light, impala_deep, impala_shallow, minatar, mlp" in message
    assert "did you mean impala_shallow?" in message


def test_text_stays_text():
    assert override(Config(), {"run_dir": "1e5"}).run_dir == "1e5"
    assert override(Config(), {"runtime.device": "cuda:1"}).runtime.device == "cuda:1"


def test_an_override_changes_one_field_of_a_copy():
    before = Config()
    after = override(before, {"loss.q": 3.5})
    assert after.loss.q == 3.5
    assert before == Config()
    assert {n for n in FIELDS if get(after, n) != get(before, n)} == {"loss.q"}
    with pytest.raises(FrozenInstanceError):
        after.loss.q = 1.0


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


def test_a_nest_of_dicts_by_dotted_name():
    nest = {"frames": 5, "loss": {"q": 1.0, "deeper": {"x": None}}, "empty": {}, "list": [{"a": 1}]}
    flat = {"frames": 5, "loss.q": 1.0, "loss.deeper.x": None, "list": [{"a": 1}]}
    assert flatten(nest) == flat
    assert list(flatten(nest)) == list(flat)
    whole = {"frames": 5, "loss": {"q": 1.0, "deeper": {"x": None}}}
    assert flatten(whole, whole=("loss.deeper",)) == {
        "frames": 5,
        "loss.q": 1.0,
        "loss.deeper": {"x": None},
    }


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_renamed_field_is_there_under_its_new_name_alone(old, new):
    assert new in FIELDS
    assert old not in FIELDS


def test_every_field_has_help_and_a_type_to_show():
    for name, (kind, field) in FIELDS.items():
        assert field.metadata["help"], name
        assert describe_type(kind).isprintable()
        assert "<" not in describe_type(kind), name
