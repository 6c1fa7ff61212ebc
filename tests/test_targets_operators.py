"""core/targets.py: the expected operators of V-Trace, ReTrace, DR-Trace and its ablation on a small
random MDP (docs/paper.md 1).
"""

import itertools

import numpy as np
import pytest
import torch

from dicerl.core import critic, drtrace, qtrace, retrace, vtrace

STATES, ACTIONS, STEPS, GAMMA = 3, 2, 2, 0.8
# Every path s_0 a_0 s_1 a_1 s_2 a_2 of a window of two steps, one a column: the operators are exact
# expectations over them.
PATHS = np.array(list(itertools.product(*[range(STATES), range(ACTIONS)] * (STEPS + 1)))).T
S, A = PATHS[0::2], PATHS[1::2]  # [T+1, paths]


def tensors(*arrays):
    """Booleans stay booleans."""
    return [
        torch.tensor(np.asarray(x)).to(torch.bool if np.asarray(x).dtype == bool else torch.float64)
        for x in arrays
    ]


class Mdp:
    """A random MDP with a behaviour mu and a target pi far enough apart for the clip at 1.05 to
    matter.
    """

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.p = rng.dirichlet(np.ones(STATES), (STATES, ACTIONS))  # [S, A, S']
        self.r = rng.normal(size=(STATES, ACTIONS))
        self.mu, self.pi = (
            rng.dirichlet(np.full(ACTIONS, 3.0), STATES),
            rng.dirichlet(np.ones(ACTIONS), STATES),
        )
        kept = np.minimum(1.05 * self.mu, self.pi)
        self.clipped_pi = kept / kept.sum(1, keepdims=True)  # pi~
        assert abs(self.solve(self.pi)[0] - self.solve(self.clipped_pi)[0]).max() > 0.05
        self.probability = self.mu[S[-1], A[-1]] * np.prod(
            [self.mu[S[t], A[t]] * self.p[S[t], A[t], S[t + 1]] for t in range(STEPS)], axis=0
        )
        reward, log_ratio = self.r[S[:-1], A[:-1]], np.log(self.pi / self.mu)[S[:-1], A[:-1]]
        self.rest = tensors(
            reward, np.full_like(reward, GAMMA), log_ratio, np.ones_like(reward, dtype=bool)
        )

    def solve(self, policy):
        """V and Q of a policy, from the Bellman equation."""
        v = np.linalg.solve(
            np.eye(STATES) - GAMMA * np.einsum("sa,sap->sp", policy, self.p),
            (policy * self.r).sum(1),
        )
        return v, self.r + GAMMA * self.p @ v

    def expected_v(self, target):
        """E_mu[target_0 | s_0]"""
        return np.bincount(S[0], self.probability * target[0].numpy(), STATES)

    def expected_q(self, target):
        """E_mu[target_0 | s_0, a_0]"""
        pair = S[0] * ACTIONS + A[0]
        return (
            np.bincount(pair, self.probability * target[0].numpy())
            / np.bincount(pair, self.probability)
        ).reshape(STATES, ACTIONS)

    def vtrace_step(self, v, sign=1.0):
        """V <- E_mu[vs]; ``sign`` = -1 flips that of the bootstrap gamma V_{t+k+1}."""
        path = torch.tensor(v[S])
        return self.expected_v(vtrace(path[:-1], sign * path[1:], *self.rest).value)

    def drtrace_step(self, v, a, centre, sign=1.0):
        """V <- E_mu[vs], Q <- E_mu[qs], with the casa critic Q = A - E_centre[A] + V; ``sign`` = -1
        flips that of -Q_{t+k}.
        """
        q = self.casa(v, a, centre)
        path = torch.tensor(v[S])
        out = drtrace(path[:-1], path[1:], sign * torch.tensor(q[S, A])[:-1], *self.rest)
        return self.expected_v(out.value), self.expected_q(out.q)

    @staticmethod
    def casa(v, a, centre):
        return critic.casa(*tensors(v, a, centre)).numpy()


def anywhere(*shape):
    return np.random.default_rng(7).normal(0, 10, shape)


def iterate(step, *start, times=300):
    for _ in range(times):
        result = step(*start)
        start = result if isinstance(result, tuple) else (result,)
    return start if len(start) > 1 else start[0]


@pytest.fixture(scope="module", params=[1, 2, 3])
def mdp(request):
    return Mdp(request.param)


def test_vtrace_converges_to_the_value_of_the_clipped_policy(mdp):
    """V-Trace's fixed point is V of pi~ ∝ min(rho_bar mu, pi), from anywhere."""
    v = iterate(mdp.vtrace_step, anywhere(STATES))
    np.testing.assert_allclose(v, mdp.solve(mdp.clipped_pi)[0], atol=1e-8)
    assert abs(v - mdp.solve(mdp.pi)[0]).max() > 0.05


def test_vtrace_contracts(mdp):
    """Two value functions come closer with every step, in the maximum norm."""
    one, other = anywhere(2, STATES)
    for _ in range(10):
        closer = mdp.vtrace_step(one), mdp.vtrace_step(other)
        assert abs(closer[0] - closer[1]).max() < abs(one - other).max()
        one, other = closer


def test_vtrace_with_a_flipped_sign_does_not_converge_there(mdp):
    v = iterate(lambda v: mdp.vtrace_step(v, sign=-1.0), np.zeros(STATES), times=100)
    assert not np.allclose(v, mdp.solve(mdp.clipped_pi)[0], atol=1e-2)


@pytest.mark.parametrize("centre", ["clipped_pi", "pi"])
def test_drtrace_converges_to_v_and_q_of_the_policy_that_centres_the_critic(mdp, centre):
    """DR-Trace with Q = A - E_centre[A] + V.

    The paper's theorem names pi~ ∝ min(rho_bar mu, pi). That holds for a critic centred under pi~.
    The critic the paper builds is centred under pi, and for that one the fixed point is V, Q of pi
    itself: at Q = r + gamma P V every difference r + gamma V' - Q is zero in expectation, whatever
    the clips, and E_pi[Q] = V closes the Bellman equation of pi.
    """
    policy = getattr(mdp, centre)
    start = anywhere(STATES), anywhere(STATES, ACTIONS)
    v, a = iterate(lambda v, a: mdp.drtrace_step(v, a, policy), *start)
    expected_v, expected_q = mdp.solve(policy)
    np.testing.assert_allclose(v, expected_v, atol=1e-8)
    np.testing.assert_allclose(mdp.casa(v, a, policy), expected_q, atol=1e-8)


def test_drtrace_with_a_flipped_sign_does_not_converge_there(mdp):
    v, _ = iterate(
        lambda v, a: mdp.drtrace_step(v, a, mdp.pi, sign=-1.0),
        np.zeros(STATES),
        np.zeros((STATES, ACTIONS)),
        times=100,
    )
    assert not np.allclose(v, mdp.solve(mdp.pi)[0], atol=1e-2)
    assert not np.allclose(v, mdp.solve(mdp.clipped_pi)[0], atol=1e-2)


@pytest.mark.parametrize("bootstrap", ["sampled", "expected"])
def test_retrace_converges_to_q_of_the_policy_that_bootstraps(mdp, bootstrap):
    """With E_pi Q(s', .) (the original) the fixed point is Q of pi; with the sampled Q(s', a')
    (printed) it is Q of mu.
    """

    def step(q):
        path = torch.tensor(q[S, A])
        following = path[1:] if bootstrap == "sampled" else torch.tensor((mdp.pi * q).sum(1)[S[1:]])
        return mdp.expected_q(retrace(path[:-1], following, *mdp.rest).q)

    q = iterate(step, anywhere(STATES, ACTIONS))
    np.testing.assert_allclose(
        q, mdp.solve(mdp.mu if bootstrap == "sampled" else mdp.pi)[1], atol=1e-8
    )


def qtrace_step(mdp, q, bootstrap, sign=1.0):
    """Q <- E_mu[qs] of no_drtrace; ``sign`` = -1 flips that of -Q_{t+k} in the sum, not that of the
    Q before it.
    """
    path = torch.tensor(q[S, A])
    following = path[1:] if bootstrap == "sampled" else torch.tensor((mdp.pi * q).sum(1)[S[1:]])
    return mdp.expected_q(qtrace(sign * path[:-1], following, *mdp.rest).q + (1 - sign) * path[:-1])


@pytest.mark.parametrize("bootstrap", ["sampled", "expected"])
def test_qtrace_converges_to_q_of_the_policy_that_bootstraps(mdp, bootstrap):
    """As ReTrace: at that Q every difference r + gamma Q' - Q is zero in expectation, whatever the
    clips.
    """
    q = iterate(lambda q: qtrace_step(mdp, q, bootstrap), anywhere(STATES, ACTIONS))
    np.testing.assert_allclose(
        q, mdp.solve(mdp.mu if bootstrap == "sampled" else mdp.pi)[1], atol=1e-8
    )


def test_qtrace_with_a_flipped_sign_does_not_converge_there(mdp):
    q = iterate(
        lambda q: qtrace_step(mdp, q, "expected", sign=-1.0), np.zeros((STATES, ACTIONS)), times=100
    )
    assert not np.allclose(q, mdp.solve(mdp.pi)[1], atol=1e-2)
    assert not np.allclose(q, mdp.solve(mdp.mu)[1], atol=1e-2)
