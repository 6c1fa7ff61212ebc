"""docs/metrics.md, made from the declaration of the fields: ``python docs/metrics.py >
docs/metrics.md``.
"""

from __future__ import annotations

from collections.abc import Iterable

from dicerl.records.vocabulary import COMMON, KINDS, NUMBERS, Family, Field, Kind

TOP = """\
# Metrics

<!-- Made by docs/metrics.py from dicerl/records/vocabulary.py: change it there. -->

A run writes `metrics.jsonl`: one line for each thing that happened, in that order. Each line is a
JSON object, and its field `kind` says what it is about: {kinds}.
A number that is not finite is `null`; floats keep six digits. A field that does not apply (replay
that is off, another family of policies, a runtime without waits) is absent. The numbers of
{tensorboard} lines are in TensorBoard too, over frames, each under its kind and name, for
example `{tag}/loss`. How fast the file grows is in
[architecture.md](architecture.md#long-runs-what-grows).

Three counters are in every line:

- **`agent_steps`** counts the actions that all actors chose together. Steps that only reset an
  environment, and those of evaluations, are not counted.
- **`frames`** is `agent_steps` times the environment's action repeat: `env.action_repeat` (4) for
  Atari, 1 elsewhere. Lengths of runs, `evaluation.every`, `checkpoint.every` and the x of figures
  are in frames.
- **`updates`** counts the learner's batches. Each is one step of the optimizer.

The unit *return* is the sum of an episode's raw rewards. A *shaped return* is what the learner
sees: discounted, after `env.reward_shape` and `env.reward_scale`; all but `return_size` itself are
over `return_size` where there is one. A *share* lies between 0 and 1.
"""

NUMBERS_TEXT = """\
## Numbers

What an episode draws, one number or several, depends on the family of its behaviour policy
([variants.md](variants.md)). A field above with `<number>` in its name is there once for each of
them; its unit, where none is given, is the number's.
"""


def row(name: str, unit: str, meaning: str) -> str:
    return f"| `{name}` | {unit} | {meaning} |".replace("|  |", "| |")


def table(contents: Iterable[Field | Family]) -> str:
    """A Markdown table. A family over an episode's numbers is one row, any other a row for each
    field.
    """
    rows = ["| field | unit | meaning |", "| --- | --- | --- |"]
    for x in contents:
        if isinstance(x, Field):
            rows.append(row(x.name, x.unit, x.meaning))
        elif set(x.members) <= set(NUMBERS):
            rows.append(row(x.pattern, x.unit or "", x.meaning))
        else:
            rows += [row(f.name, f.unit, f.meaning) for f in x.fields()]
    return "\n".join(rows) + "\n"


def names(kinds: Iterable[Kind]) -> str:
    *first, last = (f"`{kind.name}`" for kind in kinds)
    return f"{', '.join(first)} or {last}"


def page() -> str:
    """The whole of docs/metrics.md."""
    scalar = [kind for kind in KINDS if kind.tensorboard]
    top = TOP.format(
        kinds=names(KINDS), tensorboard=names(scalar).replace(" or ", " and "), tag=scalar[0].name
    )
    parts = [top, f"## Every line\n\n{table(COMMON)}"]
    parts += [f"## {kind.name}\n\n{kind.meaning}\n\n{table(kind.contents)}" for kind in KINDS]
    parts.append(f"{NUMBERS_TEXT}\n{table(NUMBERS).replace('field', 'number', 1)}")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
