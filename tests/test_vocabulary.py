"""records/vocabulary.py: what runs write is what is declared, no more and no less."""

import math
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import pytest

import dicerl
from dicerl.core import family
from dicerl.errors import DicerlError
from dicerl.records import vocabulary
from dicerl.records.metrics import read_lines
from dicerl.records.run import software
from dicerl.runtime.coordinator import BAD_IN_A_ROW

# Together they take every branch that adds a field: a family with several numbers, one with
# another number, auxiliary losses, drawn coefficients, a trained temperature, replay.
VARIANTS = ("dice", "mixture", "epsilon", "casa/random_scaling", "casa/trainable_tau", "laser")
DOCS = Path(__file__).parents[1] / "docs"
STEPS = 200  # of an environment, until it takes its actor down


class Fatal(gymnasium.Wrapper):
    """Ends the process that plays it after some steps. Slow enough that the actor reports several
    times where its time went.
    """

    def __init__(self, render_mode=None):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.left = STEPS

    def step(self, action):
        self.left -= 1
        if not self.left:
            # an Exception, or an exit, would be the environment's
            raise KeyboardInterrupt("as an actor that crashes")
        time.sleep(0.001)
        return super().step(action)


def small(variant, directory, **changes):
    return dicerl.preset(
        "debug",
        variant,
        **{
            "env.id": "CartPole-v1",
            "frames": 300,
            "log_every": 1,
            "evaluation.every": 200,
            "evaluation.max_steps": 10,
            "tensorboard": False,
            "run_dir": str(directory),
            **changes,
        },
    )


def spoil(learner, batch):
    """Have one update of a run skipped."""
    if learner.updates == 3:
        batch["reward"][...] = math.nan


def ruin(learner, batch):
    """Have a run go back to its first checkpoint, from where its batches are good again."""
    if learner.updates >= 20 and len(RUINED) < BAD_IN_A_ROW:
        RUINED.append(learner.updates)
        batch["reward"][...] = math.nan


RUINED = []


@dataclass
class Fall:
    """An ``on_batch`` that ends the learner once."""

    marker: Path

    def __call__(self, learner, batch):
        if learner.updates == 2 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """The lines of short serial runs of every variant, of one that measures returns, and of one
    that goes back to a checkpoint.
    """
    root = tmp_path_factory.mktemp("serial")
    lines = []
    changes = [(variant, {}) for variant in VARIANTS]
    changes.append(("dice", {"env.reward_unit": "returns"}))
    for i, (variant, more) in enumerate(changes):
        run = dicerl.train(small(variant, root / str(i), **more), quiet=True, on_batch=spoil)
        lines += read_lines(run.directory / "metrics.jsonl")
    config = small("dice", root / "back", **{"checkpoint.every": 100, "frames": 500})
    run = dicerl.train(config, quiet=True, on_batch=ruin)
    return lines + read_lines(run.directory / "metrics.jsonl")


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """The lines of a process run whose learner is killed, and whose actor crashes twice: children
    take seconds to start, so there is one, without an evaluator, and it ends with that.
    """
    directory = tmp_path_factory.mktemp("process") / "run"
    config = small(
        "dice",
        directory,
        **{
            "frames": 10**6,
            "evaluation.every": 0,
            "runtime.kind": "process",
            "runtime.num_actors": 1,
            "runtime.max_restarts": 1,
            "checkpoint.every": 100,
        },
    )
    fall = Fall(directory.with_name("marker"))
    with pytest.raises(DicerlError, match="as an actor that crashes"):
        dicerl.train(config, make_env=Fatal, quiet=True, on_batch=fall)
    return read_lines(directory / "metrics.jsonl")


def written(lines):
    """{kind: names of its fields}"""
    found = {}
    for line in lines:
        found.setdefault(line["kind"], set()).update(line)
    return found


def test_a_serial_run_writes_no_field_that_is_not_declared(serial):
    found = written(serial)
    assert found.keys() == vocabulary.LINES.keys()
    assert {kind: names - vocabulary.LINES[kind].keys() for kind, names in found.items()} == {
        kind: set() for kind in found
    }


def test_a_process_run_writes_no_field_that_is_not_declared(process):
    found = written(process)
    assert found.keys() == vocabulary.LINES.keys() - {"evaluation"}
    assert {kind: names - vocabulary.LINES[kind].keys() for kind, names in found.items()} == {
        kind: set() for kind in found
    }


def test_every_declared_field_is_written_by_one_of_them(serial, process):
    found = written(serial + process)
    unwritten = {
        (kind, name)
        for kind, names in vocabulary.LINES.items()
        for name in names.keys() - found[kind]
    }
    # there is one machine; test_ray.py has several
    expected = {("train", name) for name in vocabulary.NODE_FIELDS} | {("event", "incarnation")}
    # a package outside its own git repository has no commit
    expected |= {("event", "commit")} if "commit" not in software() else set()
    assert unwritten == expected


def test_times_are_said_of_every_stage(serial, process):
    def stages(lines, who):
        names = {name for line in lines if line["kind"] == "train" for name in line}
        return [s for s in vocabulary.STAGES_OF[who] if vocabulary.stage_field(who, s) in names]

    assert stages(process, "actor") == list(vocabulary.ACTOR_STAGES)
    assert stages(process, "learner") == list(vocabulary.LEARNER_STAGES)
    # one process: nobody waits
    assert stages(serial, "actor") == [s for s in vocabulary.ACTOR_STAGES if s != "waiting"]
    assert stages(serial, "learner") == [s for s in vocabulary.LEARNER_STAGES if s != "starved"]


def test_every_field_is_declared_once_with_a_meaning():
    for kind in vocabulary.KINDS:
        names = [
            f.name
            for x in (*vocabulary.COMMON, *kind.contents)
            for f in (x.fields() if isinstance(x, vocabulary.Family) else (x,))
        ]
        assert len(set(names)) == len(names), kind.name
        assert all(f.meaning for f in vocabulary.LINES[kind.name].values())


def test_every_number_of_every_family_is_declared():
    assert set(vocabulary.NUMBER_NAMES) == {
        name for names in family.NUMBERS.values() for name in names
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (vocabulary.stage_field("actor", "waiting"), "actor_waiting"),
        (vocabulary.stage_field("learner", "copying"), "learner_copying"),
        (vocabulary.tile_field("tile_values", "epsilon", several=False), "tile_values"),
        (
            vocabulary.tile_field("tile_visits", "weight_low", several=True),
            "tile_visits_weight_low",
        ),
        (vocabulary.FAVOURED.name("epsilon"), "favoured_epsilon"),
        (vocabulary.BATCH_MEAN.name("weight_low"), "weight_low_mean"),
        (vocabulary.EVALUATED.name("inv_temperature"), "inv_temperatures"),
        (vocabulary.DRAWN.name("epsilon"), "epsilon"),
        (vocabulary.GREEDY.name("stderr"), "greedy_stderr"),
    ],
)
def test_names_of_families(name, expected):
    assert name == expected
    assert any(name in names for names in vocabulary.LINES.values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("policy_lag", "policy lag"),
        ("inv_temperature", "1/tau"),
        ("inv_temperature_low", "1/tau low"),
        ("weight_low", "weight low"),
    ],
)
def test_labels(name, expected):
    assert vocabulary.label(name) == expected


def test_a_name_that_is_not_declared_is_an_error():
    assert vocabulary.declared("train", "frames", "entropy") == ("frames", "entropy")
    with pytest.raises(KeyError, match="entrophy"):
        vocabulary.declared("train", "entrophy")


def test_the_declaration_needs_no_torch():
    script = "import sys, dicerl.records.vocabulary; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], env=os.environ, check=False)
    assert done.returncode == 0


def test_the_page_of_the_docs_is_what_the_declaration_makes():
    made = runpy.run_path(str(DOCS / "metrics.py"))["page"]()
    assert (DOCS / "metrics.md").read_text() == made, "python docs/metrics.py > docs/metrics.md"


def test_every_placeholder_of_the_page_is_in_a_declared_pattern():
    """`<number>` in the text is a word of the fields' names above it."""
    families = [
        x for kind in vocabulary.KINDS for x in kind.contents if isinstance(x, vocabulary.Family)
    ]
    declared = {word for x in families for word in re.findall(r"<\w+>", x.pattern)}
    shown = set(re.findall(r"<\w+>", (DOCS / "metrics.md").read_text()))
    assert "<number>" in shown
    assert shown <= declared
