"""The config as command-line options (environment, preset, variant and every field), and back."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from typing import Any

from dicerl.config.config import Config, fields_of
from dicerl.config.fields import as_text, describe_type, get, override
from dicerl.config.presets import PRESETS, VARIANTS, preset, split
from dicerl.config.validation import validate

_TITLE = " (defaults: the paper's; a preset changes some)"
HIDDEN = ("env.id", "preset", "variant")  # fields that ENV, --preset and --variant set
SET_BY_SUITE = ("env.id", "preset", "variant", "seed", "run_dir")  # from games, variants, seeds


def add_config(parser: argparse.ArgumentParser, env_required: bool = True) -> None:
    """Add ``ENV``, ``--preset``, ``--variant`` and ``--<field>`` for every field: what
    ``config_of`` reads.
    """
    parser.add_argument(
        "env",
        metavar="ENV",
        nargs=None if env_required else "?",
        help="Atari game (pong, ALE/Pong-v5), Gymnasium id (CartPole-v1), or module:Id-v0",
    )
    parser.add_argument(
        "--preset",
        metavar="{" + ",".join(PRESETS) + "}",
        help=(
            "default: laptop for Atari, minatar for MinAtar, else classic; "
            "impala and laser stand for the variant with the default preset"
        ),
    )
    parser.add_argument(
        "--variant",
        default="dice",
        metavar="{" + ",".join(VARIANTS) + "}",
        help="`dicerl variants` lists what each is (default: dice)",
    )
    add_fields(parser)


def config_of(args: argparse.Namespace, preset_for: Callable[[str], str]) -> Config:
    """Build and validate the config from the arguments of ``add_config``.

    ``preset_for`` returns the default preset of an environment's id; it is passed in, because
    envs/ imports this package.
    """
    name, variant = split(args.preset, args.variant)
    config = preset(name or preset_for(args.env), variant)
    return validate(override(config, {"env.id": args.env, **given_fields(args)}))


def add_fields(
    parser: argparse.ArgumentParser,
    hidden: Collection[str] = HIDDEN,
    untold: Callable[[str], object] = lambda name: None,
) -> None:
    """Add ``--<field>`` for every config field except ``hidden`` ones, grouped by section; those
    that are ``untold`` are understood, but not in the help. Only options that were given appear in
    the parsed arguments.
    """
    for short, name, text in (
        ("--runtime", "runtime.kind", "auto picks by cores"),
        ("--device", "runtime.device", "that trains: auto, cpu, cuda, cuda:1"),
        ("--init-from", "init.run", "start from the weights of this run or checkpoint"),
        ("--stop-at", "evaluation.stop_at", "stop when an evaluation reaches this score"),
    ):
        if untold(name):
            continue
        parser.add_argument(
            short,
            dest=name,
            default=argparse.SUPPRESS,
            metavar=describe_type(fields_of()[name][0]),
            help=text,
        )
    groups: dict[str, Any] = {}
    default = Config()
    for name, (kind, field) in fields_of().items():
        if name in hidden:
            continue
        section = name.split(".")[0] if "." in name else "run"
        group = groups.setdefault(section, parser.add_argument_group(f"{section}{_TITLE}"))
        text = (
            f"{field.metadata['help']} ({'paper' if field.metadata['paper'] else 'default'}:"
            f" {get(default, name)})".replace("%", "%%")
        )
        options = {f"--{name}", f"--{name.replace('_', '-')}"}
        group.add_argument(
            *sorted(options, key=lambda o: "_" in o),
            dest=name,
            default=argparse.SUPPRESS,
            metavar=describe_type(kind),
            help=argparse.SUPPRESS if untold(name) else text,
            **({"nargs": "?", "const": "true"} if kind is bool else {}),
        )


def show_defaults(parser: argparse.ArgumentParser, config: Config) -> None:
    """Let the help of ``add_fields``'s options show the values of ``config`` as their defaults, and
    the paper's where that has others.
    """
    for action in parser._actions:
        name = action.dest
        if f"--{name}" in action.option_strings and name in fields_of():
            field = fields_of()[name][1]
            text, usual = as_text(get(config, name)) or "none", as_text(get(Config(), name))
            paper = f"; paper: {usual}" if field.metadata["paper"] and usual != text else ""
            shown = f"{field.metadata['help']} (default: {text}{paper})"
            action.help = shown.replace("%", "%%")
    for group in parser._action_groups:
        if group.title and group.title.endswith(_TITLE):
            section = group.title.removesuffix(_TITLE)
            group.title = f"{section} (defaults: preset {config.preset}, {config.variant})"


def given_fields(args: argparse.Namespace, hidden: Collection[str] = HIDDEN) -> dict[str, Any]:
    """The fields that were given on the command line, as strings by dotted name."""
    return {
        name: value
        for name, value in vars(args).items()
        if name in fields_of() and name not in hidden
    }
