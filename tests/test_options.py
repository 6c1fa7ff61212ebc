"""config/options.py: every config field as an option of the command line, and back."""

import json
import re
import typing
from pathlib import Path

import pytest

from dicerl import cli
from dicerl.config import Config, fields_of, get
from dicerl.config.options import HIDDEN
from dicerl.records.run import Run
from runs import one_line


def test_help_shows_every_field(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = call("train", "--help")
    options = set(re.findall(r"--[\w.-]+", out))
    for name, (_, field) in fields_of().items():
        if name == "env.id":
            assert " ENV" in out
            continue
        assert f"--{name.replace('_', '-')}" in options, name
        if name not in ("preset", "variant"):
            assert field.metadata["help"] in " ".join(out.split()), name


def test_help_shows_the_defaults_in_force(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def shown(*args):
        code, out, err = call("train", *args, "--help")
        assert (code, err) == (0, "")
        return " ".join(out.split())

    batch = "sequences in a batch"
    assert f"{batch} (paper: 64)" in shown()
    classic = shown("CartPole-v1")
    assert f"{batch} (default: 16; paper: 64)" in classic
    assert "gamma (default: 0.99; paper: 0.997)" in classic
    assert "loss (defaults: preset classic, dice):" in classic
    assert f"{batch} (default: 4; paper: 64)" in shown("pong", "--preset", "debug")
    assert "(default: casa)" in shown("--variant", "casa")
    one_line(call("train", "--preset", "nope", "--help"), "preset is 'nope'")


def another(name, kind):
    """A value that is not the field's default."""
    value = get(Config(), name)
    if name == "collector.capacity":  # must hold a batch
        return 1000
    if name == "evaluation.stop_at":
        return "7.5"
    if name == "env.kwargs":
        return {"size": 9, "map": [1, None]}
    if name == "env.wrappers":
        return ("a:B", "c.d:E")
    if kind is bool:
        return not value
    if kind is int:
        return value + 1
    if kind is float:
        return 0.9 * value or 0.5
    if kind is str:
        return "other"
    if typing.get_origin(kind) is typing.Literal:
        return next(choice for choice in typing.get_args(kind) if choice != value)
    return value[::-1]


def written(value):
    """As on the command line."""
    if isinstance(value, dict):
        return json.dumps(value)
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def test_every_field_can_be_given(monkeypatch):
    """Each option reaches the field it names, written with dashes or underscores."""
    given = []
    monkeypatch.setattr(
        "dicerl.api.train", lambda config, **_: given.append(config) or Run(Path("x"), config)
    )
    changes = {
        name: another(name, kind) for name, (kind, _) in fields_of().items() if name not in HIDDEN
    }
    for style in (lambda name: name, lambda name: name.replace("_", "-")):
        args = [f"--{style(name)}={written(value)}" for name, value in changes.items()]
        cli.main(["train", "CartPole-v1", "--preset", "paper", *args])
    assert given == [Config().replace(**{"env.id": "CartPole-v1"}, **changes)] * 2


def test_flags_of_true_and_false(monkeypatch):
    given = []
    monkeypatch.setattr(
        "dicerl.api.train", lambda config, **_: given.append(config) or Run(Path("x"), config)
    )
    for args in (
        ["--env.episodic-life"],
        ["--env.episodic-life", "true"],
        ["--env.episodic-life=no"],
    ):
        cli.main(["train", "pong", *args])
    assert [c.env.episodic_life for c in given] == [True, True, False]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], ("classic", "dice")),
        (["--preset", "impala"], ("classic", "impala")),
        (["--preset", "laser", "--variant", "dice"], ("classic", "laser")),
        (["--preset", "debug", "--variant", "laser"], ("debug", "laser")),
    ],
)
def test_preset_and_variant(monkeypatch, args, expected):
    """impala and laser as presets: the variant with the environment's own preset."""
    given = []
    monkeypatch.setattr(
        "dicerl.api.train", lambda config, **_: given.append(config) or Run(Path("x"), config)
    )
    cli.main(["train", "CartPole-v1", *args])
    assert [(config.preset, config.variant) for config in given] == [expected]
