"""parts/evaluator.py: the one loop that plays, and the evaluations of a run."""

import math

import gymnasium
import numpy as np
import pytest
import torch

import dicerl
from dicerl.agent.actor_critic import ActorCritic
from dicerl.envs import env_spec, make_vector_env
from dicerl.envs.gym import GymEnv
from dicerl.parts.evaluator import Evaluator, play, summarise, summary_line, t95


def test_the_first_episode_of_each_environment_counts_once():
    """Counting's reward is the step's number and its episodes have drawn lengths: the returns are
    known from the seeds alone.
    """
    config = dicerl.preset("debug", env__id="dicerl.envs.toy:Counting-v0")
    env = make_vector_env(config, 6)
    seen = []
    returns, ended = play(
        ActorCritic(config, env.spec),
        env,
        np.ones((6, 1), np.float32),
        np.zeros(6, bool),
        np.random.default_rng(3),
        config.evaluation.max_steps,
        lambda step: seen.append(
            (step.number, step.reward.copy(), step.returns.copy(), step.alive.copy())
        ),
    )
    expected = []
    for seed in GymEnv.seeds(env, int(np.random.default_rng(3).integers(2**31))):
        one = gymnasium.make("Counting-v0")
        one.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = one.step(0)
            total, over = total + reward, terminated or truncated
        expected.append(total)
    assert returns.tolist() == expected
    assert len(set(expected)) > 1
    assert ended.all()
    assert [number for number, *_ in seen] == list(range(len(seen)))
    lengths = (np.sqrt(8 * returns + 1) - 1) / 2
    assert [int(alive.sum()) for *_, alive in seen] == [
        int((lengths > t + 1).sum()) for t in range(len(seen))
    ]
    np.testing.assert_array_equal(seen[-1][2], returns)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"network__last_action_reward": True},
        {"behaviour__scale": "normalised"},
        {"network__lstm": 8, "sequence__burn_in": 2},
    ],
)
def test_a_watcher_sees_what_the_network_says(changes):
    """Played again one environment at a time, from the observations: V, pi_tau and the greedy
    action, also once half of the episodes have ended and the network is asked for the rest alone.
    """
    config = dicerl.preset("debug", env__id="CartPole-v1", env__reward_shape="none", **changes)
    spec = env_spec(config)
    torch.manual_seed(0)
    model = ActorCritic(config, spec)
    network = model.network
    network.advantage_scale.fill_(0.25)
    scale = 0.25 if config.behaviour.scale == "normalised" else 1.0
    inv, greedy = np.array([0.0, 2.0, 40.0, 0.0], np.float32), np.array([False, False, False, True])
    env, steps, asked, ask = make_vector_env(config, 4), [], [], model.step

    def counted(observation, *more):
        asked.append(len(observation))
        return ask(observation, *more)

    _, ended = play(model, env, inv[:, None], greedy, np.random.default_rng(1), 12, steps.append)
    assert not ended.all()
    assert len(steps) == 12  # cut; the whole episodes now
    steps.clear()
    model.step = counted
    returns, ended = play(
        model,
        env,
        inv[:, None],
        greedy,
        np.random.default_rng(1),
        500,
        lambda step: steps.append(step._replace(alive=step.alive.copy())),
    )
    assert ended.all()
    left = [4, *(int(step.alive.sum()) for step in steps[:-1])]  # before each step
    assert all(m <= n < 2 * m for m, n in zip(left, asked, strict=True))
    assert min(asked) < 4
    for i, seed in enumerate(env.seeds(int(np.random.default_rng(1).integers(2**31)))):
        one = gymnasium.make("CartPole-v1")
        observation, _ = one.reset(seed=seed)
        state, last_action, last_reward, total = network.initial_state(1), -1, 0.0, 0.0
        for step in steps:
            with torch.no_grad():
                before = torch.tensor([[last_action]]), torch.tensor([[last_reward]])
                out = network.unroll(
                    torch.from_numpy(observation)[None, None], state, None, *before
                )
            state = out.state
            logits = out.advantage[0, 0].double() * float(inv[i]) / scale
            assert step.value[i] == pytest.approx(float(out.value), abs=1e-5)
            np.testing.assert_allclose(
                step.log_pi[i], (logits - logits.logsumexp(0)).numpy(), atol=1e-4
            )
            if greedy[i]:
                assert step.action[i] == int(out.advantage[0, 0].argmax())
            observation, last_reward, terminated, truncated, _ = one.step(int(step.action[i]))
            last_action, total = int(step.action[i]), total + last_reward
            assert step.reward[i] == last_reward
            if terminated or truncated:
                break
        assert returns[i] == total


def test_actions_are_drawn_at_the_temperature():
    """At 1/tau = 0 both actions come, also against A; at 1e6 only the best one."""
    config = dicerl.preset("debug", env__id="dicerl.envs.toy:TMaze-v0")
    env, steps = make_vector_env(config, 64), []
    inv = np.repeat(np.array([0.0, 1e6], np.float32), 32)
    play(
        ActorCritic(config, env.spec),
        env,
        inv[:, None],
        np.zeros(64, bool),
        np.random.default_rng(0),
        config.evaluation.max_steps,
        steps.append,
    )
    best = np.stack([s.action == s.log_pi.argmax(1) for s in steps])
    assert 0.4 < np.stack([s.action for s in steps])[:, :32].mean() < 0.6
    assert best[:, 32:].all()


def test_the_evaluator_of_a_run_plays_both_halves_and_beats():
    config = dicerl.preset(
        "debug", env__id="CartPole-v1", evaluation__episodes=3, evaluation__max_steps=250
    )
    evaluator, beats = Evaluator(ActorCritic(config, env_spec(config))), []
    with torch.no_grad():
        evaluator.model.network.advantage_head.weight.zero_()
        # greedy: always left, 8 to 10 steps
        evaluator.model.network.advantage_head.bias.copy_(torch.tensor([1.0, 0.0]))
    found = evaluator.evaluate([(0.0, 0.0)], np.random.SeedSequence(5), lambda: beats.append(1))
    assert (
        len(found["returns"]) == len(found["greedy_returns"]) == len(found["inv_temperatures"]) == 3
    )
    assert all(8 <= r <= 10 for r in found["greedy_returns"])
    assert found["mean_return"] > 10
    assert len(beats) == math.ceil(max(found["returns"]) / 100)
    assert found == evaluator.evaluate([(0.0, 0.0)], np.random.SeedSequence(5))


# Student's t, 97.5 %, from any table
@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (15, 2.131), (63, 1.998)],
)
def test_the_interval_of_few_episodes_is_wide(freedom, quantile):
    assert t95(freedom) == pytest.approx(quantile, abs=0.003)


def test_an_evaluation_in_words():
    returns = np.array([1.0, 2.0, 6.0])
    result = summarise(returns)
    reach = 4.303 * returns.std(ddof=1) / math.sqrt(3)
    assert result["interval"] == pytest.approx([3 - reach, 3 + reach])
    alone = summarise(np.array([7.0]))
    assert (alone["stderr"], alone["interval"]) == (0.0, None)
    greedy = {f"greedy_{name}": value for name, value in alone.items()}
    assert summary_line({**result, **greedy, "episodes": 3}) == (
        "best region 3.00 (95 %: -3.57 to 9.57), worst 1.00; greedy 7.00, worst 7.00;"
        " 3 episodes each"
    )
