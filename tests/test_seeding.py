"""config/seeding.py: no two users share a random stream."""

from dicerl.config import seeding


def test_every_actor_life_and_purpose_has_a_seed_of_its_own():
    def state(*keys):
        return tuple(seeding.stream(*keys).generate_state(4).tolist())

    users = [
        (seed, name, actor, life)
        for seed in (0, 1)
        for name in seeding.STREAMS
        for actor in range(8)
        for life in range(4)
    ]
    assert len({state(*user) for user in users}) == len(users)
    assert state(0, "actor", 1, 2) == state(0, "actor", 1, 2)
    environments = {
        seeding.integer(seeding.stream(0, "environment", actor, life))
        for actor in range(16)
        for life in range(16)
    }
    assert len(environments) == 256
