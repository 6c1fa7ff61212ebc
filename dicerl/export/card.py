"""The card of a package: README.md, for people and for the sites it may be uploaded to."""

from __future__ import annotations

import json
from typing import Any

from dicerl.envs.atari import game_name
from dicerl.envs.trust import is_trusted, module_of
from dicerl.errors import printable
from dicerl.records.vocabulary import label

PLAY = """\
import gymnasium

import dicerl

agent = dicerl.load_agent({folder})
env = gymnasium.make({env})
observation, _ = env.reset(seed=0)
state, total, over = None, 0.0, False
while not over:
    action, state = agent.act(observation, state)
    observation, reward, terminated, truncated, _ = env.step(action)
    total, over = total + reward, terminated or truncated
print(total)
"""
EVALUATE = """\
from dicerl.evaluate.evaluate import evaluate

print(evaluate({folder}, episodes=4{more}).result["mean_return"])
"""


def card(told: dict[str, Any], folder: str) -> str:
    """The text of a card from what dicerl.json tells; ``folder`` is the package's name."""
    env = told["env"]
    rows = [
        ("environment", _code(env)),
        ("score", _score(told["score"], told["episodes_played"])),
        *((label(name), _range(ends)) for name, ends in told["region"].items()),
        ("trained for", f"{told['frames']:,} frames, {told['updates']:,} updates"),
        ("how", f"variant {_code(told['variant'])}, preset {_code(told['preset'])}"),
        ("seed", str(told["seed"])),
        ("trained with", _software(told["trained_with"])),
        ("packaged with", _software(told["written_with"])),
        ("licence", f"{_code(told['licence']) if told['licence'] else 'not stated'} (weights)"),
    ]
    if told["video"]:
        rows.append(("an episode", f"[{told['video']}]({told['video']})"))
    return "\n".join(
        [
            *_front_matter(told),
            f"# {_plain(env)}, played by a DiCE agent",
            "",
            "Trained with dicerl (Apache-2.0), which acts with `pi_tau(a|s) ∝ exp(A(s,a) / tau)`"
            " and learns by a vote of",
            "bandits which temperatures tau bring high returns.",
            "",
            "| | |",
            "| --- | --- |",
            *(f"| {name} | {text} |" for name, text in rows),
            "",
            "## Load and play",
            "",
            *_notes(env),
            "```",
            f"dicerl evaluate {_plain(folder)} --episodes 32",
            "```",
            "",
            "```python",
            *_sample(env, folder).splitlines(),
            "```",
            "",
            "`config.json` is the whole configuration, `checkpoints/` the weights (safetensors) and"
            " the state of the vote (JSON).",
            "Nothing here is pickled.",
        ]
    )


def _front_matter(told: dict[str, Any]) -> list[str]:
    """What model hubs read. JSON is YAML, too."""
    tags = ["reinforcement-learning", "dice", told["env"]]
    fields = {"library_name": "dicerl", "tags": tags, "license": told["licence"]}
    return [
        "---",
        *(f"{name}: {json.dumps(value)}" for name, value in fields.items() if value),
        "---",
    ]


def _score(score: dict[str, Any] | None, played: bool) -> str:
    if score is None:
        return "not evaluated; `dicerl evaluate` plays it"
    interval = score["interval"]
    around = "" if interval is None else " (95 %: {:,.2f} to {:,.2f})".format(*interval)
    source = "an evaluation of the training run"
    if score["best_of"]:
        source = (
            f"the best of {score['best_of']} evaluations of the training run, so rather too high"
        )
    if played:
        source = "played after training"
    count = f"{score['episodes']} episode{'s' * (score['episodes'] != 1)}"
    return f"{score['mean_return']:,.2f}{around}, mean return of {count}; {source}"


def _notes(env: str) -> list[str]:
    """What has to be known before it can be loaded."""
    module = module_of(env)
    if env.startswith("<"):
        return [f"It needs {_code(env)}, a class or function: pass it as `make_env`.", ""]
    if not is_trusted(module, imported=False):
        return [
            f"Its environment comes with the module {_code(module)}, which must be installed."
            " Loading imports it, so loading asks",
            "for your consent: `--trust`, or `trust=True`.",
            "",
        ]
    return []


def _sample(env: str, folder: str) -> str:
    """Python code that plays it."""
    module = module_of(env)
    asks = not is_trusted(module, imported=False)
    if env.startswith("<"):
        return EVALUATE.format(folder=repr(folder), more=", make_env=MyEnv")
    if game_name(env) or module or "/" in env:  # not made by Gymnasium alone
        return EVALUATE.format(folder=repr(folder), more=", trust=True" if asks else "")
    return PLAY.format(folder=repr(folder), env=repr(env))


def _range(ends: list[float]) -> str:
    low, high = ends
    return f"{low:.4g}{f' to {high:.4g}' if high > low else ''}"


def _software(made: dict[str, str]) -> str:
    if not made:
        return "not recorded"
    commit = f", commit {_code(made['commit'])}" if "commit" in made else ""
    return f"dicerl {_code(made.get('version', '?'))}{commit}"


def _plain(text: str) -> str:
    """Text without Markdown or HTML in it: names come from files."""
    return "".join(c if c.isalnum() or c in " .,:+/_-" else f"&#{ord(c)};" for c in printable(text))


def _code(text: str) -> str:
    return f"`{printable(text).replace('`', '').replace('|', '/')}`"
