"""Bad input, invented by the thousand: every parser returns a value or one of its own errors, never
anything else. Few examples by default; ``HYPOTHESIS_PROFILE=soak`` tries ten thousand of each.
"""

import copy as copying
import json
import shutil
import socket
import threading

import pytest
import torch
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

import dicerl
from dicerl.config import fields_of, from_dict, validate
from dicerl.errors import CheckpointError, ConfigError, DicerlError
from dicerl.records import checkpoint, files
from dicerl.records.run import Run
from dicerl.records.state import RunState
from dicerl.suite.plan import make_plan
from hostile import is_one_line, metrics_are_shown, state_goes_on, state_is_read, tensors_are_read
from runs import debug, make_run

few = settings(max_examples=max(10, settings().max_examples // 50))  # for what takes long
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, 10**400, -(10**400)])
    | st.floats()
    | st.text()
    | st.text(st.characters(categories=["Cs", "Cc"]), max_size=5)
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def paths(tree, path=()):
    """Every place in nested objects and lists; of a list only the first."""
    inner = tree.items() if isinstance(tree, dict) else list(enumerate(tree))[:1]
    for key, value in inner:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from paths(value, (*path, key))


def changed(data, tree):
    """A copy of ``tree`` with a few places replaced or removed, as bytes of JSON."""
    tree = copying.deepcopy(tree)
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from(sorted(paths(tree), key=str)))
        at = tree
        for key in path:
            at = at[key]
        if data.draw(st.booleans()):
            at[last] = data.draw(values)
        else:
            del at[last]
        assume(any(True for _ in paths(tree)))
    return json.dumps(tree).encode()


def mutated(data, content):
    """A few bytes of ``content`` replaced, removed, inserted or repeated."""
    content = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        size = data.draw(st.integers(0, 16))
        new = data.draw(
            st.binary(max_size=16) | st.sampled_from([b"NaN", b"[" * 2000, b"\xff", b"-"])
        )
        content[at : at + size] = new
    return bytes(content)


@given(st.data())
def test_json(data):
    content = data.draw(st.binary() | st.builds(lambda v: json.dumps(v).encode(), values))
    try:
        value = files.parse_json(content)
    except ValueError as error:
        is_one_line(error)
    else:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


@given(st.data())
def test_a_config(data):
    """It is refused by the name of a field, or valid; and valid ones survive being written."""
    try:
        tree = files.parse_json(changed(data, debug("x", "CartPole-v1").to_dict()))
    except ValueError:
        return event("no JSON")
    try:
        config = validate(from_dict(tree))
    except ConfigError as error:
        event("refused")
        is_one_line(error, *fields_of(), "field", "config")
    else:
        event("valid")
        assert from_dict(json.loads(json.dumps(config.to_dict()))) == config


# fields whose largest values take long, or the whole machine, and are tried up to this
MODEST = 40
NUMBERS = {
    name: field.metadata["range"]
    for name, (kind, field) in fields_of().items()
    if kind in (int, float) and field.metadata["range"] and name not in ("frames", "seed")
}


@few
@given(st.data())
def test_a_valid_config_trains(tmp_path_factory, data):
    """Three updates and more, or one line that names a field."""
    torch.set_num_threads(1)
    changes = {}
    for name in data.draw(st.lists(st.sampled_from(sorted(NUMBERS)), min_size=1, max_size=3)):
        low, high = NUMBERS[name]
        whole = fields_of()[name][0] is int
        near = (max(low, -MODEST), min(high, max(low, MODEST)))
        draw = st.integers(*map(int, near)) if whole else st.floats(*map(float, near))
        changes[name] = data.draw(draw, label=name)
    directory = tmp_path_factory.mktemp("valid") / "run"
    config = debug(directory, "CartPole-v1", frames=120, runtime__kind="serial")
    try:
        run = dicerl.train(config.replace(**changes), quiet=True)
    except DicerlError as error:
        event("refused")
        is_one_line(error, *fields_of())
    else:
        event("trained")
        assert run.summary["complete"]
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def newest(finished):
    return checkpoint.checkpoints_of(finished)[-1]


@shared
@given(st.data())
def test_a_state(newest, data):
    """What is accepted can be restored, and searches go on with it."""
    saved = {
        k: v for k, v in json.loads((newest / "state.json").read_text()).items() if k != "checksums"
    }
    try:
        state = RunState.from_dict(files.parse_json(changed(data, saved)))
        state_goes_on(state, newest)
    except (CheckpointError, ValueError) as error:
        return event(type(error).__name__)


@shared
@given(st.data())
def test_a_state_file(newest, tmp_path, data):
    shutil.copytree(newest, tmp_path / "c", dirs_exist_ok=True)
    (tmp_path / "c" / "state.json").write_bytes(mutated(data, (newest / "state.json").read_bytes()))
    state_is_read(tmp_path / "c")


@shared
@given(st.data())
def test_tensors(newest, tmp_path, data):
    """The header is JSON of its own, after its length in eight bytes."""
    content = (newest / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = mutated(data, content[8 : 8 + size])
    length = data.draw(st.sampled_from([len(header), size, 0, 2**63, 2**64 - 1]))
    folder = tmp_path / "c"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(
        length.to_bytes(8, "little") + header + content[8 + size :]
    )
    tensors_are_read(folder)


@shared
@given(st.data())
def test_metrics(finished, tmp_path, data):
    directory = tmp_path / "run"
    if not directory.exists():
        make_run(directory)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        lines = (finished / name).read_bytes().splitlines(keepends=True)
        some = data.draw(st.lists(st.sampled_from(lines), min_size=1, max_size=6))
        tree = [changed(data, json.loads(line)) + b"\n" for line in some]
        (directory / name).write_bytes(mutated(data, b"".join(tree)))
    metrics_are_shown(directory)


SUITE = b"""
games = ["CartPole-v1", "pong"]
variants = ["dice", "baseline"]
seeds = 2
preset = "debug"
jobs = 1
dir = "suites/x"
against = "baseline"
[config]
frames = 1_000
optimizer.learning_rate = [1e-3, 3e-3]
[search]
samples = 2
seed = 0
loss.q = {min = 1e-1, max = 10, log = true}
sequence.length = [8, 9]
"""


@shared
@given(st.data())
def test_a_suite_s_file(tmp_path, data):
    path = tmp_path / "suite.toml"
    path.write_bytes(mutated(data, SUITE))
    try:
        plan = make_plan({}, {}, str(path))
    except DicerlError as error:
        event("refused")
        is_one_line(error)
    else:
        assert plan.runs


@shared
@given(st.data())
def test_a_config_file(finished, tmp_path, data):
    directory = tmp_path / "run"
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_bytes(mutated(data, (finished / "config.json").read_bytes()))
    try:
        Run.open(directory)
    except DicerlError as error:
        is_one_line(error, str(directory))


@pytest.fixture(scope="module")
def server(finished):
    from dicerl.report.dashboard import make_server

    failures = []
    server = make_server(finished.parent, port=0)
    server.handle_error = lambda *_: failures.append(True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server, failures
    server.shutdown()
    server.server_close()


@given(st.data())
def test_a_request(server, data):
    """No answer is an exception of the server's, and the next request is answered."""
    server, failures = server
    address = data.draw(
        st.sampled_from(
            ["/", "/api/state?default=1", "/api/state?run=run&have=1", "/video?run=run"]
        )
    )
    request = (
        f"GET {address} HTTP/1.1\r\nHost: localhost\r\nCookie: a=b\r\nRange: bytes=1-2\r\n\r\n"
    )
    content = mutated(data, request.encode())
    with socket.create_connection(server.server_address[:2], timeout=60) as sock:
        sock.sendall(content)
        sock.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    assert not failures
    assert b"Access-Control" not in answer
    assert answer.count(b"HTTP/1.1 ") == answer.count(
        b"Content-Security-Policy: default-src 'none'"
    )
