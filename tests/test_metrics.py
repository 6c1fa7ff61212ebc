"""metrics.py and progress.py: what a full disk does to the files, what is cut when a run goes on,
what stands in TensorBoard and in the progress line.
"""

import contextlib
import io
import json
import resource
import sys
import threading
from pathlib import Path

import pytest

from dicerl.errors import DicerlError
from dicerl.records.metrics import EPISODES, Metrics, has_line, read_lines
from dicerl.records.progress import Progress

COUNTERS = {"agent_steps": 0, "frames": 0, "updates": 0}


@contextlib.contextmanager
def files_of_at_most(size):
    """No file grows beyond that: every write is real, and fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
@pytest.mark.parametrize(
    "write",
    [lambda m: m.write("event", COUNTERS, {"event": "start"}), lambda m: m.sync()],
    ids=["event", "offset"],
)
def test_a_full_disk_is_named_with_the_file(tmp_path, write):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    metrics = Metrics(tmp_path, tensorboard=False)
    metrics.write("train", COUNTERS, {"loss": 1.0})  # still in memory
    with pytest.raises(DicerlError) as caught:
        write(metrics)
    reason = "No space left on device" if sys.platform == "linux" else ""
    assert (
        str(caught.value)
        == f"{tmp_path}/metrics.jsonl could not be written: {reason}; once that is mended: dicerl"
        f" resume {tmp_path}"
    )
    with pytest.raises(DicerlError, match=r"metrics\.jsonl"):
        metrics.close()


def test_an_evaluation_that_cannot_be_written_is_named_and_stays_in_the_metrics(tmp_path):
    metrics = Metrics(tmp_path, tensorboard=False)
    (tmp_path / "evaluations.jsonl").write_text(
        json.dumps({"frames": 0, "text": "x" * 3000}) + "\n"
    )
    with (
        files_of_at_most(3000),
        pytest.raises(
            DicerlError, match=r"evaluations\.jsonl could not be written: File too large"
        ),
    ):
        metrics.write("evaluation", COUNTERS, {"mean_return": 1.0})
    metrics.close()
    assert [line["mean_return"] for line in read_lines(tmp_path / "metrics.jsonl")] == [1.0]


def test_tensorboard_on_a_full_disk_is_one_error_without_a_traceback_of_its_thread(tmp_path, capfd):
    before = threading.excepthook
    metrics = Metrics(tmp_path)
    metrics._last_flush += 1e6  # metrics.jsonl would meet the limit too

    def write():
        for _ in range(1000):
            metrics.write("train", COUNTERS, {f"x{i}": 1.0 for i in range(20)})

    with files_of_at_most(10_000):
        with pytest.raises(DicerlError, match="tensorboard could not be written: File too large"):
            write()
        with contextlib.suppress(DicerlError):
            metrics.close()
    assert capfd.readouterr().err == ""
    assert threading.excepthook is before


def test_errors_of_other_threads_are_still_shown(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(threading, "excepthook", lambda failed: shown.append(failed.exc_type))
    metrics = Metrics(tmp_path)
    thread = threading.Thread(target=lambda: Path("/no/such/file").read_text())
    thread.start()
    thread.join()
    metrics.close()
    assert shown == [FileNotFoundError]


def test_what_was_written_after_the_offset_is_moved_aside(tmp_path):
    metrics = Metrics(tmp_path, tensorboard=False)
    metrics.write("event", COUNTERS, {"event": "start"})
    offset = metrics.sync()
    metrics.write("evaluation", COUNTERS | {"frames": 8}, {"mean_return": 1.0})
    metrics.close()
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    Metrics(tmp_path, tensorboard=False, offset=offset, frames=4).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole[:offset]
    assert (tmp_path / "metrics.discarded.jsonl").read_bytes() == whole[offset:]
    assert (tmp_path / "evaluations.jsonl").read_bytes() == b""
    Metrics(tmp_path, tensorboard=False).close()  # from the beginning
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""
    assert (tmp_path / "metrics.discarded.jsonl").read_bytes() == whole[offset:] + whole[:offset]


def test_a_file_that_was_cut_off_loses_half_a_line_and_not_the_next(tmp_path):
    """Damage that a campaign of faults found: the line of the resume was appended to the half."""
    metrics = Metrics(tmp_path, tensorboard=False)
    metrics.write("event", COUNTERS, {"event": "start"})
    metrics.write("event", COUNTERS, {"event": "second"})
    offset = metrics.sync()
    metrics.close()
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    for size in (offset - 10, offset, 1, 0):
        (tmp_path / "metrics.jsonl").write_bytes(whole[:size])
        resumed = Metrics(tmp_path, tensorboard=False, offset=offset)
        resumed.write("event", COUNTERS, {"event": "resume"})
        resumed.close()
        left = {offset - 10: ["start"], offset: ["start", "second"], 1: [], 0: []}[size]
        found = [line["event"] for line in read_lines(tmp_path / "metrics.jsonl")]
        assert found == [*left, "resume"], size


def test_tensorboard_holds_the_numbers_of_train_and_evaluation_lines(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = Metrics(tmp_path)
    at = COUNTERS | {"frames": 40}
    metrics.write("train", at, {"entropy": 0.5, "episodes": 3, "tile_values": [1.0]})
    metrics.write("episode", at, {"return": 1.0})
    metrics.write("evaluation", at, {"mean_return": 2.0, "returns": [2.0]})
    metrics.write("event", at, {"event": "start", "restarts": 1})
    metrics.close()
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    scalars = {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.scalars.Keys()}
    assert scalars == {
        "train/entropy": [(40, 0.5)],
        "train/episodes": [(40, 3.0)],
        "evaluation/mean_return": [(40, 2.0)],
    }


def test_the_progress_line():
    out = io.StringIO()
    Progress("", stream=out).update(
        {
            "frames": 1000,
            "total_frames": 30_000,
            "updates": 1234,
            "episodes": 56,
            "recent_return": 7.125,
            "entropy": 0.20449,
            "policy_lag": 1.72,
            "favoured": lambda: {"inv_temperature": (1.0, 2.0), "weight_low": (0.25, 0.5)},
            "at_end": lambda: ["weight_low"],
        }
    )
    assert out.getvalue() == (
        "frames 1,000 of 30,000  frames/s 0  time left –  return, recent 7.12  best 7.12"
        "  evaluation, best –  entropy 0.204  1/tau favoured 1–2"
        "  weight low favoured 0.25–0.5 (end)  policy lag 1.7  updates 1,234"
        "  episodes 56  loss –\n"
    )


def test_evaluations_are_those_that_a_resumed_run_keeps_in_its_metrics(tmp_path):
    """One that began before the checkpoint and ended after it is in neither."""
    first = Metrics(tmp_path, tensorboard=False)
    first.write("evaluation", COUNTERS, {"mean_return": 1.0})
    offset = first.sync()
    first.write("evaluation", COUNTERS, {"mean_return": 2.0})
    first.close()
    Metrics(tmp_path, tensorboard=False, offset=offset, frames=10**6).close()
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert [line["mean_return"] for line in read_lines(tmp_path / name)] == [1.0], name


def test_a_log_grows_with_the_logarithm_of_the_episodes():
    assert all(map(has_line, range(1, 2 * EPISODES)))
    for stride in (1, 2, 4, 8, 16):
        some = range(stride * EPISODES, 2 * stride * EPISODES)
        assert [n for n in some if has_line(n)] == list(some)[::stride]
    # ten thousand times as many are fourteen times as many lines
    far = 10_000 * EPISODES
    assert sum(has_line(n) for n in range(far, far + 8192)) == 1
