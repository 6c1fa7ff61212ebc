"""config/config.py: the JSON form of a config, its hash, and that config/ stands on its own."""

import hashlib
import json
import subprocess
import sys
import types
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dicerl.config import Config, fields_of, from_dict, get, object_fields, override, validate
from dicerl.config.config import ADDED
from dicerl.config.fields import Reference
from dicerl.errors import ConfigError, DicerlError

FIELDS = fields_of()
RANGES = {name: f.metadata["range"] for name, (_, f) in FIELDS.items() if f.metadata["range"]}


def test_replace_takes_dots_or_double_underscores():
    assert Config().replace(loss__q=2, frames="10") == Config().replace(
        **{"loss.q": 2.0, "frames": 10}
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def typed(value):
    """A value as a person would type it."""
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, tuple):
        words = [x if isinstance(x, str) else repr(x) for x in value]
        return ",".join(words) + "," * (len(words) == 1)  # without it, one number
    return str(value)


def values(kind, name):
    """Values a field may have."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(each, name) for each in typing.get_args(kind)])
    if kind is Reference:
        return st.sampled_from(["a.b:C", "__main__:Waves"])
    if origin is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    if name in object_fields():
        return st.dictionaries(st.text(max_size=5), JSON, max_size=4)
    if origin is tuple and typing.get_args(kind)[0] is str:
        return st.lists(st.sampled_from(["a:B", "c.d:E"]), max_size=3).map(tuple)
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
    assert override(Config(), {n: typed(v) for n, v in changes.items()}) == config


def test_to_dict_holds_every_field_once():
    def leaves(node, prefix=""):
        for key, value in node.items():
            yield from (
                leaves(value, f"{prefix}{key}.")
                if isinstance(value, dict) and prefix + key not in object_fields()
                else [prefix + key]
            )

    assert sorted(leaves(Config().to_dict())) == sorted(FIELDS)


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
    default = Config().to_dict()
    for section, name in ADDED:  # nor were there these
        (place, usual) = (data[section], default[section]) if section else (data, default)
        assert place.pop(name) == usual[name]
    return {name: value for name, value in data.items() if value != {}}


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


@pytest.mark.parametrize(
    ("replay", "batch", "replayed"), [(0.5, 8, 4), (0.875, 64, 56), (0.1, 8, 1), (0.0, 8, 0)]
)
def test_the_replayed_part_of_a_batch(replay, batch, replayed):
    config = validate(Config().replace(collector__replay=replay, sequence__batch=batch))
    assert config.replayed == replayed


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


def test_a_config_s_object_is_its_own():
    """A default that is shared would change for all."""
    assert Config().env.kwargs is not Config().env.kwargs
    given = {"size": 9, "rows": [1, {"a": None}]}
    config = Config().replace(env__kwargs=given)
    given["rows"].append(2)
    assert config.env.kwargs == {"size": 9, "rows": [1, {"a": None}]}
    assert config.hash() != Config().hash()
    assert config.hash() != Config().replace(env__kwargs={"size": 8}).hash()
