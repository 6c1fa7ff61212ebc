"""The campaign of random faults (tests/faults/), in small: a serial and a process run that meet
faults which no other test has, and proof that its checks can fail. ``make soak`` has many more.
"""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from faults import campaign, checks, fuzz, table
from faults.campaign import Outcome
from faults.kinds import KINDS
from faults.kinds.files import damage
from faults.story import Broken, Story
from runs import line

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc"),
    pytest.mark.timeout(600),
]
TALKS = "environment forks, prints or dawdles"
STORIES = {
    "serial": ("bad losses", "clock jump", "directory read-only", "checkpoint damaged"),
    "process": ("evaluator paused", "learner paused", "clock jump", TALKS),
}


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    """What became of each fault, both stories at the same time."""

    def play(runtime):
        drawn = [k for name in STORIES[runtime] for k in KINDS if k.name == name]
        folder = tmp_path_factory.mktemp("campaign") / runtime
        return campaign.play(folder, runtime, drawn, random.Random(1), print)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(STORIES, pool.map(play, STORIES), strict=True))


@pytest.mark.parametrize("runtime", STORIES)
def test_a_run_goes_on_or_is_resumed_after_each_fault(stories, runtime):
    outcomes = stories[runtime]
    assert not [o.problem for o in outcomes if o.problem]
    assert [o.kind for o in outcomes] == list(STORIES[runtime])
    assert {o.result for o in outcomes} <= {"healed", "ended", "skipped"}
    assert all(o.seconds > 0 for o in outcomes if o.result != "skipped")


def test_what_should_go_on_does_and_what_must_end_ends(stories):
    assert {o.result for o in stories["process"]} == {"healed"}
    results = {o.kind: o.result for o in stories["serial"]}
    assert results["clock jump"] == "healed"
    assert results["directory read-only"] in ("ended", "skipped")


# --- the checks


def metrics(*updates):
    start = line("event", 0, event="start")
    return [start, *(line("train", 10 * u, updates=u) for u in updates)]


@pytest.mark.parametrize(
    ("updates", "problem"),
    [
        ([1, 2, 3], ""),
        ([1, 3], "1 updates are missing [2], 0 doubled"),
        ([1, 2, 2, 3], "0 updates are missing [], 1 doubled"),
        ([1, 2, 3, 1, 2, 3], "agent_steps jumps back"),
    ],
)
def test_gaps_and_doubled_ranges_are_found(updates, problem):
    found = checks.ranges(metrics(*updates))
    assert (problem in found) if problem else found == []


def test_a_run_that_starts_twice_is_found():
    twice = metrics() + metrics(1, 2)
    assert "2 lines say that it starts" in checks.ranges(twice)


def test_books_that_do_not_balance_are_found():
    balanced = {"produced": 5, "due": 10, "trained": 6, "dropped": 3, "waiting": 1}
    at = line("event", 10, event="checkpoint")
    assert checks.books([at, at | {"books": balanced}]) == []
    found = checks.books([at | {"books": balanced | {"dropped": 2}}])
    assert len(found) == 1
    assert found[0].startswith("10 uses were due at 1 updates")


def test_a_finished_run_passes_and_a_spoilt_one_does_not(copy):
    """Of a real run, which logs every fifth update only."""
    gaps = [problem for problem in checks.problems_of(copy) if "missing" not in problem]
    assert gaps == []
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tra')
    (copy / "checkpoints" / "tmp-1").mkdir()
    (copy / "evaluations.jsonl").write_text("")
    found = " ".join(checks.problems_of(copy))
    for problem in ("is damaged", "left in checkpoints/", "evaluations.jsonl and metrics.jsonl"):
        assert problem in found


class Ended:
    """A life that is over."""

    def __init__(self, code, err):
        self.code, self.err = code, err


@pytest.mark.parametrize(
    ("code", "err", "problem"),
    [
        (2, "dicerl: the disk is full", ""),
        (130, "dicerl: stopped at once", ""),
        (143, "stopped at 1 frames\nto continue: dicerl resume x", ""),
        (-9, "", ""),
        (2, "Traceback (most recent call last):\ndicerl: x", "a traceback"),
        (2, "something", "without a reason"),
        (130, "", "without how to go on"),
        (1, "dicerl: x", "which no document names"),
        (-11, "", "which no document names"),
    ],
)
def test_every_end_needs_a_reason_and_a_known_exit_code(tmp_path, code, err, problem):
    story = Story(tmp_path, "serial", random.Random(0))
    if not problem:
        story.check_end(Ended(code, err), killed_by=9)
        return
    with pytest.raises(Broken, match=problem):
        story.check_end(Ended(code, err), killed_by=9)


# --- what is drawn, and the table


def test_damage_changes_a_file_in_every_class_of_place(copy):
    rng, seen = random.Random(0), set()
    story = Story(copy, "serial", rng)
    path = next((copy / "checkpoints").iterdir()) / "model.safetensors"
    whole = path.read_bytes()
    for _ in range(60):
        what = damage(story, path)
        assert path.read_bytes() != whole
        seen |= {word for word in ("cut", "flipped", "first", "header", "last") if word in what}
        path.write_bytes(whole)
    assert len(seen) == 5


def test_a_seed_draws_the_same_faults_again():
    def drawn(seed):
        rng = random.Random(seed)
        return [campaign.draw(rng, 5, (), ("serial", "process", "ray")) for _ in range(20)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert {runtime for runtime, _ in drawn(1)} == {"serial", "process", "ray"}
    for runtime, kinds in drawn(1):
        assert all(runtime in kind.runtimes for kind in kinds)


def test_the_table_counts_and_orders(tmp_path):
    outcomes = [
        Outcome(0, "process", "actor killed", "actor", "healed", float(s), 0) for s in range(1, 20)
    ]
    outcomes.append(Outcome(1, "serial", "Ctrl-C", "2 to all", "ended", 100.0, 300))
    outcomes.append(Outcome(1, "serial", "disk full", "", "broken", problem="a\nhang"))
    outcomes.append(Outcome(1, "ray", "network cut", "not here", "skipped"))
    result = table.make(outcomes, 7, 12.3)
    assert result["faults"] == 20
    row = result["kinds"]["actor killed"]
    assert (row["n"], row["healed"], row["ended"]) == (19, 19, 0)
    assert (row["seconds"]["p50"], row["seconds"]["max"]) == (10.0, 19.0)
    assert result["all"]["steps_redone"]["max"] == 300
    table.write(result, tmp_path / "faults.json")
    assert json.loads((tmp_path / "faults.json").read_text())["broken"][0]["kind"] == "disk full"
    text = (tmp_path / "faults.md").read_text()
    assert "| actor killed | 19 | 19 | 0 | 10.0 |" in text
    assert "**Broken** (story 1, serial): disk full: a hang" in text
    assert "Not made here: network cut: not here (1)." in text


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_a_campaign_that_is_cut_off_still_has_its_table(tmp_path):
    """Twice the same signal, as `timeout make soak` sends it, in the middle of a story."""
    command = ["-m", "faults", "--faults", "50", "--runtime", "serial", "--kind", "Ctrl-C"]
    played = subprocess.Popen(
        [sys.executable, *command, "--lanes", "1", "--json", str(tmp_path / "faults.json")],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FAULTS_PATIENCE": "4"},
    )
    assert "0 serial: Ctrl-C" in played.stdout.readline()
    played.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    played.send_signal(signal.SIGTERM)
    out, err = played.communicate(timeout=300)
    assert err == ""
    assert played.returncode == 130
    found = json.loads((tmp_path / "faults.json").read_text())
    assert 1 <= found["faults"] < found["cut_off"] == 50
    assert found["broken"] == []
    assert "Cut off by its user: 50 were asked for." in out


def test_the_page_shows_the_committed_table():
    root = Path(__file__).parent.parent
    result = json.loads((root / "benchmarks/results/faults.json").read_text())
    assert table.markdown(result) in (root / "docs/reliability.md").read_text()
    assert result["broken"] == []


# --- fuzzing


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_what_fuzzing_starts_from_is_read_and_so_is_half_of_it(finished, tmp_path, target):
    """Without Atheris, which only `make soak` installs."""
    inputs = [path.read_bytes() for path in fuzz.prepare(target, finished, tmp_path).iterdir()]
    assert inputs
    for content in inputs:
        assert len(content) < fuzz.LARGEST, "it would be cut off"
        for part in (content, content[: len(content) // 2], content.replace(b"1", b"NaN"), b""):
            fuzz.TARGETS[target](tmp_path / "run", part)


def test_fuzzing_notices_a_write_elsewhere(tmp_path):
    """In a process of its own: such a watch stays."""
    (tmp_path / "run").mkdir()
    script = """
        import sys
        from pathlib import Path
        from faults import fuzz
        folder = Path(sys.argv[1])
        fuzz.watch_writes(folder / "run")
        (folder / "run" / "inside").write_text("")
        for act in (lambda p: p.write_text(""), lambda p: p.mkdir(), lambda p: p.unlink()):
            try:
                act(folder / "outside")
            except AssertionError as error:
                print("noticed", error)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), tmp_path],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    assert ended.stdout.count("noticed") == 3
    assert not (tmp_path / "outside").exists()


def test_huge_rewards_are_for_training(tmp_path):
    """An evaluation that took them had no loss to spoil, and the story waited for one."""
    (tmp_path / "mood-step").write_text("huge x 1")
    code = """
        from faults.moody import HUGE, Moody

        def make_evaluation_env():
            return Moody()

        def reward_of(env):
            env.reset()
            return env.step(0)[1]

        assert abs(reward_of(make_evaluation_env())) <= 1
        assert reward_of(Moody()) == HUGE
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "FAULTS": str(tmp_path)},
        cwd=Path(__file__).parent,
        check=True,
    )
