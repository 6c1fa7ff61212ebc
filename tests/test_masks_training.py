"""Action masks (envs/masks.py) through acting, learning, evaluation and agents: no forbidden action
is ever taken, and none has a probability or a gradient. The environment of masked.py raises if one
is taken.
"""

import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import dicerl
import probe
from dicerl.agent.actor_critic import SCALE_RATE, ActorCritic, sample
from dicerl.agent.behaviour import Behaviour
from dicerl.config.presets import VARIANTS, preset
from dicerl.core.family import NUMBERS
from dicerl.envs import env_spec
from dicerl.envs.gym import GymEnv
from dicerl.errors import DicerlError
from dicerl.evaluate.evaluate import evaluate
from dicerl.parts.actor import Actor
from dicerl.parts.learner import Learner
from dicerl.parts.objective import draw_scaling, objective
from masked import NEVER, STEPS, Branches, Entry, Masked, allowed

ENVS = 6
COLDEST = 1e6
ENDS = {"inv": (0.0, 1.0, 50.0, COLDEST), "weight": (0.0, 0.3, 1.0), "eps": (0.0, 0.3, 1.0)}


def behaviours(config):
    """What each of ENVS environments draws: every end of the range."""
    names = NUMBERS[config.behaviour.family]
    ranges = [next(ENDS[key] for key in ENDS if name.startswith(key)) for name in names]
    rows = [[ends[(i + j) % len(ends)] for j, ends in enumerate(ranges)] for i in range(ENVS)]
    return [Behaviour(tuple(0.0 for _ in row), tuple(row)) for row in rows]


@functools.cache
def spec_of(make):
    return env_spec(preset("debug"), make)


def played(variant, make=Masked, windows=2, **changes):
    """A model and the windows that an actor recorded with it, at all temperatures."""
    config = preset(
        "debug",
        variant,
        **{
            "sequence.burn_in": 3,
            "sequence.length": 8,
            "sequence.batch": ENVS,
            "collector.replay": 0.0,
            "behaviour.scale": "normalised",
            "loss.retrace_bootstrap": "expected",
            "loss.entropy": 0.1,
            **changes,
        },
    )
    torch.manual_seed(0)
    model = ActorCritic(config, spec_of(make))
    with torch.no_grad():
        model.network.advantage_head.weight.mul_(5.0)
        model.network.advantage_head.bias[NEVER] = 100.0  # by far the best, if it were allowed
    sent = []
    actor = Actor(
        model,
        GymEnv(make, ENVS, "masked"),
        rng=np.random.default_rng(0),
        env_seed=0,
        get_parameters=lambda vector, version: 0,
        send_sequences=lambda w: sent.append({n: x.copy() for n, x in w.items()}),
        end_episodes=lambda episodes: None,
        next_behaviours=lambda n: lambda: behaviours(config)[:n],
    )
    while len(sent) < windows:
        actor.act()
        actor.advance()
    return model, sent


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_acts_is_what_is_trained_and_forbidden_actions_are_neither(variant):
    model, windows = played(variant)
    for window in windows:
        taken = np.take_along_axis(window["action_mask"], window["action"][..., None], -1)
        padded = window["version"] + window["valid"] == 0  # before the stream's first step
        assert (taken[..., 0] | padded).all()
    batch = probe.tensors(windows[1])
    found = objective(model, batch, draw_scaling(model.config, 0, model.device))
    mask = batch["action_mask"][3:-1]
    assert not mask.all()
    assert (found.log_pi.exp()[~mask] == 0).all()
    assert found.log_pi.exp().sum(-1).numpy() == pytest.approx(1.0, abs=1e-5)
    # lag 0: log pi is log mu, at every temperature
    assert found.log_ratio[found.valid].abs().max() < 2e-3
    gradients = torch.autograd.grad(
        found.losses.total, list(model.network.parameters()), materialize_grads=True
    )
    assert all(torch.isfinite(g).all() for g in gradients)
    by_name = dict(zip(dict(model.network.named_parameters()), gradients, strict=True))
    assert (by_name["advantage_head.weight"][NEVER] == 0).all()
    assert by_name["advantage_head.bias"][NEVER] == 0
    assert by_name["advantage_head.weight"].abs().sum() > 0


@pytest.mark.parametrize("variant", ["dice", "mixture", "casa/trainable_tau"])
def test_a_of_a_forbidden_action_changes_nothing(variant):
    """Losses, targets, the next scale and a trainable tau's gradient, as if it were not there."""
    model, windows = played(variant)
    learner = Learner(model, 100)
    batch = probe.tensors(windows[1])
    scaling = draw_scaling(model.config, 0, model.device)
    results = []
    for bias in (100.0, -7.0):
        with torch.no_grad():
            model.network.advantage_head.bias[NEVER] = bias
        found = objective(model, batch, scaling)
        spread = model.spread_of(found.window.advantage[:-1], found.valid, found.window.mask[:-1])
        log_tau = model.network.log_inv_temperature
        slope = [] if log_tau is None else torch.autograd.grad(found.losses.total, log_tau)
        results.append([*found.losses, *found.targets, spread, *slope])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    assert spread > 0
    scale = float(model.network.advantage_scale)
    assert learner.update(windows[1], diagnose=True)["advantage_std"] < 3  # not 100
    after = scale + SCALE_RATE * (spread.item() - scale)
    assert float(learner.weights["advantage_scale"]) == pytest.approx(after, rel=1e-6)


def test_the_scale_is_that_of_steps_with_a_choice():
    model, windows = played("dice")
    batch = probe.tensors(windows[1])
    found = objective(model, batch, draw_scaling(model.config, 0, model.device))
    advantage, mask = found.window.advantage[:-1].detach(), found.window.mask[:-1]
    each = [
        float(advantage[t, b][mask[t, b]].std(correction=0))
        for t, b in found.valid.nonzero().tolist()
        if mask[t, b].sum() > 1
    ]
    spread = model.spread_of(advantage, found.valid, mask)
    assert spread.item() == pytest.approx(np.mean(each), rel=1e-5)
    forced = torch.zeros_like(mask)
    forced[..., 1] = True
    unchanged = model.spread_of(advantage, found.valid, forced)
    assert unchanged == model.network.advantage_scale


def test_threads_of_a_learner_share_the_mask():
    one, two = (
        Learner(model, 100, threads=threads).update(windows[1], diagnose=True)
        for threads, (model, windows) in ((1, played("dice")), (2, played("dice")))
    )
    for name in ("advantage_std", "advantage_scale", "entropy", "loss"):
        assert one[name] == pytest.approx(two[name], rel=1e-4), name


def test_the_last_draw_takes_no_action_of_probability_0():
    class Last:
        def random(self, n):
            return np.full(n, np.nextafter(1.0, 0.0))

    rng = np.random.default_rng(0)
    a = torch.from_numpy(rng.normal(size=(2000, 5)).astype(np.float32))
    mask = torch.from_numpy(rng.random((2000, 5)) < 0.5)
    mask[:, 1] = True
    log_pi = dicerl.core.log_probs(a, torch.ones(2000), mask=mask).numpy()
    action = sample(log_pi, Last())
    assert mask.numpy()[np.arange(2000), action].all()


# --- whole runs -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    directory = tmp_path_factory.mktemp("masks") / "run"
    return dicerl.train(
        Masked,
        preset="classic",
        frames=6000,
        run_dir=str(directory),
        quiet=True,
        tensorboard=False,
        evaluation__every=3000,
        network__normalise="statistics",
        optimizer__learning_rate=3e-3,
    ).directory


def test_the_best_allowed_actions_are_learned(learned):
    agent = dicerl.load_agent(learned, Masked)
    env = Masked()
    observation, info = env.reset()
    state, total, ended = None, 0.0, False
    while not ended:
        action, state = agent.act(observation, state, greedy=True, action_mask=info["action_mask"])
        observation, reward, terminated, truncated, info = env.step(action)
        total, ended = total + reward, terminated or truncated
    assert total == STEPS


@pytest.mark.parametrize("more", [{"inv_temperature": 0.0}, {"greedy": True}, {}])
def test_evaluation_takes_allowed_actions_alone(learned, more):
    returns = evaluate(learned, Masked, episodes=20, **more).result["returns"]
    assert len(returns) == 20
    if more.get("greedy"):
        assert returns == [float(STEPS)] * 20


def test_a_video_shows_no_forbidden_action(learned, tmp_path):
    evaluate(learned, Masked, episodes=1, inv_temperature=0.0, video=tmp_path / "film.mp4")
    assert (tmp_path / "film.mp4").stat().st_size


def test_agents_take_masks_for_one_and_for_many(learned):
    agent = dicerl.load_agent(learned, Masked)
    seen = np.eye(3, dtype=np.float32)[[0, 1, 2] * 200]
    masks = np.array([allowed(i % 3) for i in range(600)])
    for options in ({"inv_temperature": 0.0}, {"inv_temperature": 50.0}, {"greedy": True}, {}):
        action, _ = agent.act(seen, action_mask=masks, **options)
        assert masks[np.arange(600), action - 2].all()
        if options.get("inv_temperature") == 0.0:
            assert set(action[::3]) == {3, 4}
            assert set(action[2::3]) == {2, 3, 5}
    action, _ = agent.predict(seen[0], deterministic=True, action_masks=masks[0])
    assert action == 4
    for given, words in (
        (None, 'has action masks, and none was given; pass action_mask=info\\["action_mask"\\]'),
        ([1, 0], "does not fit"),
        ([0] * 5, "forbids every action"),
    ):
        with pytest.raises(DicerlError, match=words):
            agent.act(seen[0], action_mask=given)
    with pytest.raises(DicerlError, match="2 masks for 3 observations"):
        agent.act(seen[:3], action_mask=masks[:2])


@pytest.mark.parametrize("make", [Entry, Branches])
def test_entries_and_branches_train_and_act(make, tmp_path):
    run = dicerl.train(
        make,
        preset="debug",
        frames=300,
        run_dir=str(tmp_path / "run"),
        quiet=True,
        tensorboard=False,
        evaluation__every=150,
    )
    agent = dicerl.load_agent(run, make)
    env = make()
    observation, info = env.reset()
    state = None
    for _ in range(STEPS):
        action, state = agent.act(
            observation, state, inv_temperature=0.0, action_mask=info.get("action_mask")
        )
        observation, _, _, _, info = env.step(action)
    if make is Entry:  # a batch, as vector environments give it
        batch = {name: np.stack([value] * 3) for name, value in env.reset()[0].items()}
        action, _ = agent.act(batch)
        assert set(action) <= {3, 4}


def test_a_mask_for_an_agent_without(learned, copy):
    agent = dicerl.load_agent(copy)
    with pytest.raises(DicerlError, match="action_mask was given, but CartPole-v1 had none"):
        agent.act(np.zeros(4), action_mask=[1, 1])


def test_processes(tmp_path):
    """Actors raise at a forbidden action, and a run ends with that."""
    script = (
        "import dicerl, masked\n"
        "run = dicerl.train(masked.Masked, preset='debug', frames=400, quiet=True,"
        " tensorboard=False, runtime__kind='process', runtime__num_actors=1, run_dir='run',"
        " evaluation__every=0, behaviour__family='mixture')\n"
        "print(run.summary['complete'], run.summary['updates'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{Path(dicerl.__file__).parents[1]}:{Path(__file__).parent}"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    complete, updates = done.stdout.split()
    assert complete == "True"
    assert int(updates) > 0
    assert "raised" not in done.stderr


def test_the_example_of_the_page(tmp_path):
    page = (Path(__file__).parents[1] / "docs/masks.md").read_text()
    names = {}
    exec(page.split("```python")[1].split("```")[0], names)
    run = dicerl.train(
        names["Pick"],
        preset="debug",
        frames=200,
        run_dir=str(tmp_path / "run"),
        quiet=True,
        tensorboard=False,
    )
    agent, env = dicerl.load_agent(run, names["Pick"]), names["Pick"]()
    observation, info = env.reset()
    state, taken = None, []
    for _ in range(3):
        action, state = agent.act(observation, state, action_mask=info["action_mask"])
        observation, _, ended, _, info = env.step(action)
        taken.append(action)
    assert ended
    assert len(set(taken)) == 3
