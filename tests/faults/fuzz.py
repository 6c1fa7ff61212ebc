"""Coverage-guided fuzzing (Atheris) of what reads state.json, safetensors headers and metrics:
never another error than the reader's own, never a hang, never a write outside the run's folder.
Most mutations change the JSON in these files as values, the others any bytes.

    cd tests && python -m faults.fuzz --minutes 10 --seed 0
    cd tests && python -m faults.fuzz --target metrics --input crash-1234   # the same input again

Each target is a process of its own, a third of the time each; an input that fails is left in the
folder that ``--keep`` names. Checksums are made to fit, as a stranger would.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HANG = 20  # seconds that one input may take
MEMORY = 4096  # megabytes
SPLIT = b"\0\0\0\0"  # in an input, between a safetensors header and the numbers
LARGEST = 1 << 16  # bytes of an input
# what mutations put in, beside single bytes, as libFuzzer spells it
WORDS = ("NaN", "Infinity", "-0", "1e999", "null", "true", "[[[[[[[[", "{\\x22a\\x22:", "\\\\ud800")


def state(folder: Path, content: bytes) -> None:
    """A checkpoint's state.json."""
    import hostile

    (folder / "state.json").write_bytes(content)
    hostile.fit(folder)
    hostile.state_is_read(folder)


def tensors(folder: Path, content: bytes) -> None:
    """A safetensors header, without its length, then the numbers."""
    import hostile

    header, _, body = content.partition(SPLIT)
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
    hostile.tensors_are_read(folder)


def metrics(folder: Path, content: bytes) -> None:
    """metrics.jsonl and evaluations.jsonl, also cut and copied as a resume does it."""
    import hostile
    from dicerl.records.metrics import copy_evaluations, cut

    (folder / "metrics.jsonl").write_bytes(content)
    (folder / "evaluations.jsonl").write_bytes(content)
    hostile.metrics_are_shown(folder)
    cut(folder / "metrics.jsonl", len(content) // 2)
    copy_evaluations(folder / "metrics.jsonl", folder / "evaluations.jsonl")
    assert (folder / "metrics.jsonl").stat().st_size == len(content) // 2
    (folder / "metrics.discarded.jsonl").unlink(missing_ok=True)


TARGETS: dict[str, Callable[[Path, bytes], None]] = {
    "state": state,
    "tensors": tensors,
    "metrics": metrics,
}


# what stands where something else did
LEAVES = (None, True, -1, 0, 0.5, 1e308, float("nan"), float("-inf"), 2**63, 10**400, "", "x")
LEAVES += ("\ud800", [], {}, [[]], [None], {"": []}, [0] * 1000)
BYTES_ONLY = 0.3  # of all mutations: as libFuzzer makes them, without knowing JSON


def edited(tree: Any, rng: random.Random) -> Any:
    """A JSON value with one place replaced, removed, doubled, renamed or wrapped: bytes alone would
    hardly ever make another value that is JSON.
    """
    if not isinstance(tree, dict | list) or not tree or rng.random() < 0.15:
        return rng.choice([*LEAVES, [tree], {"x": tree}])
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    key = rng.choice(keys)
    what = rng.random()
    if what < 0.7:
        tree[key] = edited(tree[key], rng)
    elif what < 0.8:
        del tree[key]
    elif what < 0.9:
        tree[key] = tree[rng.choice(keys)]
    elif isinstance(tree, list):
        tree.insert(key, tree[key])
    else:
        tree[f"{key}_"] = tree.pop(key)
    return tree


def mutated(target: str, content: bytes, rng: random.Random) -> bytes:
    """An input with one of its JSON values edited, or, if it has none, as it is."""
    before, after = b"", b""
    if target == "tensors":
        content, split, after = content.partition(SPLIT)
        after = split + after
    elif target == "metrics":
        lines = content.splitlines(keepends=True) or [b""]
        at = rng.randrange(len(lines))
        before, content, after = b"".join(lines[:at]), lines[at], b"\n" + b"".join(lines[at + 1 :])
    with contextlib.suppress(ValueError, RecursionError):
        content = json.dumps(edited(json.loads(content), rng)).encode()
    return before + content + after


def prepare(target: str, run: Path, folder: Path) -> Path:
    """Make ``folder / "run"``, which a target reads, from a real run; return the folder of the
    inputs that mutations start from.
    """
    from dicerl.records import checkpoint

    newest = checkpoint.checkpoints_of(run)[-1]
    corpus = folder / "corpus"
    corpus.mkdir()
    place = folder / "run"
    if target == "metrics":
        shutil.copytree(run, place)
        lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        for number in range(0, len(lines), 10):
            (corpus / str(number)).write_bytes(b"".join(lines[number : number + 10]))
        return corpus
    shutil.copytree(newest, place)
    if target == "state":
        (corpus / "state").write_bytes((newest / "state.json").read_bytes())
        return corpus
    content = (newest / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    (corpus / "header").write_bytes(content[8:end] + SPLIT + content[end:])
    return corpus


def watch_writes(folder: Path) -> None:
    """Fail at once if anything but ``folder`` is opened for writing, moved or removed."""
    inside = str(folder.resolve())

    def audit(event: str, args: Any) -> None:
        if event == "open":
            path, mode, flags = args
            writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (
                mode is None and isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            )
        elif event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link"):
            path, writes = args[0], True
        else:
            return
        if writes and isinstance(path, str | os.PathLike):
            where = os.path.realpath(path)
            if not where.startswith(inside) and where != os.devnull:
                raise AssertionError(f"{event} outside of the run's folder: {where}")

    sys.addaudithook(audit)


def child(target: str, folder: Path, options: list[str]) -> None:
    """One target, in this process; it does not return."""
    import atheris

    with atheris.instrument_imports(include=["dicerl.records", "dicerl.report", "dicerl.core"]):
        import hostile  # noqa: F401
    place = folder / "run"
    watch_writes(folder)

    def one(content: bytes) -> None:
        TARGETS[target](place, content)

    def mutate(content: bytes, longest: int, seed: int) -> bytes:
        rng = random.Random(seed)
        found = content if rng.random() < BYTES_ONLY else mutated(target, content, rng)
        if found != content and len(found) <= longest:
            return found
        plain: bytes = atheris.Mutate(content, longest)
        return plain

    atheris.Setup([sys.argv[0], *options], one, custom_mutator=mutate)
    atheris.Fuzz()


def parent(args: argparse.Namespace) -> int:
    """Each target for its time; return 1 if one failed."""
    import dicerl
    from runs import debug

    keep = args.keep.resolve()
    keep.mkdir(parents=True, exist_ok=True)
    names = [args.target] if args.target else list(TARGETS)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        run = dicerl.train(debug(Path(temporary) / "run", "CartPole-v1"), quiet=True).directory
        for name in names:
            folder = Path(temporary) / name
            folder.mkdir()
            corpus = prepare(name, run, folder)
            words = folder / "words"
            words.write_text("".join(f'"{word}"\n' for word in WORDS))
            seconds = max(1, int(args.minutes * 60 / len(names)))
            options = [
                f"-max_total_time={seconds}",
                f"-seed={args.seed + 1}",  # 0 would be a random one
                f"-timeout={HANG}",
                f"-rss_limit_mb={MEMORY}",
                f"-max_len={LARGEST}",
                f"-dict={words}",
                f"-artifact_prefix={keep}/{name}-",
                "-print_final_stats=1",
                "-verbosity=0",
            ]
            inputs = [str(args.input.resolve())] if args.input else [str(corpus)]
            command = [sys.executable, "-m", "faults.fuzz", "--child", str(folder)]
            command += ["--target", name, *options, *inputs]
            ended = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=seconds + 300,
            )
            tried = [x.split()[-1] for x in ended.stderr.splitlines() if "executed_units" in x]
            print(f"{name}: {tried[0] if tried else '?'} inputs in {seconds} s:", end=" ")
            print("ok" if ended.returncode == 0 else f"FAILED, input in {keep}", flush=True)
            if ended.returncode:
                failed = 1
                print((ended.stdout + ended.stderr)[-4000:])
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="faults.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="in all (default: 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=list(TARGETS), help="only this one")
    parser.add_argument("--input", type=Path, help="one input, instead of mutations")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="for inputs")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args, options = parser.parse_known_args()
    if args.child:
        child(args.target, args.child, options)
    return parent(args)


if __name__ == "__main__":
    sys.exit(main())
