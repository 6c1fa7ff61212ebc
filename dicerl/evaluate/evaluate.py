"""Episodes of a trained agent in parallel environments, their returns, and a video of one of
them.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dicerl.config import Config, get
from dicerl.errors import (
    ConfigError,
    DicerlError,
    EnvironmentFailed,
    nearest,
    printable,
    require_folder,
)

if TYPE_CHECKING:
    from dicerl.envs import MakeEnv
    from dicerl.records.run import Run

# The paper's evaluation protocol: these fields take the config's defaults, whatever the run was
# trained with.
PAPER = ("env.sticky_actions", "env.noop_max", "env.episodic_life", "env.max_episode_frames")
PROTOCOLS = {
    "paper": "as the paper: up to 30 no-ops, no sticky actions, 108,000 frames",
    "sticky": "Atari: the same with sticky actions 0.25",
}


@dataclass(frozen=True)
class Evaluation:
    """What ``evaluate`` returns: the result, and what is printed around it."""

    result: dict[str, Any]  # what --json prints
    checkpoint: Path
    protocol: str  # empty if the environment is not an Atari game
    temperatures: dict[str, str]  # 1/tau (or its family's numbers) and where it came from, as text
    cut: int  # episodes still running after max_steps
    max_steps: int
    video: Path | None


def evaluate(
    path: str | Path,
    make_env: MakeEnv | None = None,
    *,
    checkpoint: str | None = None,
    episodes: int = 32,
    inv_temperature: float | None = None,
    greedy: bool = False,
    protocol: str = "paper",
    max_steps: int | None = None,
    seed: int = 0,
    video: str | Path | None = None,
    quiet: bool = True,
    trust: bool = False,
) -> Evaluation:
    """Play ``episodes`` with an agent from ``path``, a run or one of its checkpoints.

    ``make_env`` makes one environment and overrides the run's own; ``checkpoint`` is ``newest``,
    ``best`` or a number of updates. Temperatures come from the bandits' best region unless
    ``inv_temperature`` or ``greedy`` is given. ``video=""`` is RUN/videos/<updates>.mp4.
    ``trust`` allows to import a module that the run's config.json names. The returned Evaluation
    holds the result, which can be JSON, and what else a user wants to know.
    """
    check(episodes, inv_temperature, greedy, protocol, max_steps, seed, video)
    import numpy as np

    from dicerl.api import load_agent
    from dicerl.config import seeding
    from dicerl.core.family import NUMBERS
    from dicerl.envs import make_evaluation_env, make_filmed_env
    from dicerl.envs.patience import CLOSING, STARTING, Patience, starting
    from dicerl.parts.evaluator import Step, by_name, play, summarise
    from dicerl.records.files import is_inside
    from dicerl.records.progress import Bar
    from dicerl.records.vocabulary import label

    run, folder = find(path, checkpoint, quiet)
    agent = load_agent(folder, make_env, trust=trust)
    config = with_protocol(agent.config, protocol, max_steps, agent.spec.game, agent.spec.name)
    family = NUMBERS[config.behaviour.family]
    if inv_temperature is not None and family != ("inv_temperature",):
        raise ConfigError(
            "inv_temperature",
            inv_temperature,
            f"this agent's family is {config.behaviour.family}, which has {', '.join(family)}",
        )
    rng = np.random.default_rng(seeding.stream(seed, "evaluate"))
    behaviour = agent.model.draw(agent.region, rng, episodes)  # [N, numbers]
    if inv_temperature is not None:
        behaviour[:] = inv_temperature
    file = None
    stuck = config.runtime.stuck_seconds
    # of num_envs environments, as in training; these are more
    more = max(1.0, episodes / config.runtime.num_envs)
    bound = max(STARTING, stuck) * more
    making = starting(stuck, config.runtime.num_envs) * more
    with contextlib.ExitStack() as stack:
        patience = stack.enter_context(Patience(agent.spec.name, stuck))
        watchers = []
        if video is None:
            with patience.within(making, "being made"):
                env = make_evaluation_env(config, episodes, make_env)
        else:
            from dicerl.evaluate.video import Film

            file = Path(video) if video else run.directory / "videos" / f"{folder.name}.mp4"
            if not video and not is_inside(file.parent, run.directory):
                raise DicerlError(
                    f"{file.parent} is a link out of the run's directory; name a file"
                )
            with patience.within(making, "being made"):
                env = filmed = make_filmed_env(config, episodes, make_env)
            drawn = {} if greedy else dict(zip(family, behaviour[0].tolist(), strict=True))
            film = stack.enter_context(
                Film(
                    file.absolute(),  # the environment may change the current folder
                    filmed,
                    drawn,
                    {
                        "env": agent.spec.name,
                        "checkpoint": int(folder.name),
                        "protocol": protocol,
                        "greedy": greedy,
                        **drawn,
                    },
                    agent.model.value_scale(),
                )
            )
            watchers.append(film.watch)
        bar = stack.enter_context(Bar(f"{agent.spec.name}, episodes", episodes, quiet))

        @stack.callback
        def close() -> None:
            try:
                with patience.within(CLOSING, "close"):
                    env.close()
            except EnvironmentFailed as error:  # what was played is played
                print(printable(f"note: {error}"), file=sys.stderr)

        def watch(step: Step) -> None:
            patience.again()
            for watcher in watchers:
                watcher(step)
            if step.number % 10 == 0:
                bar.update(
                    int((~step.alive).sum()),
                    f"step {step.number + 1:,}, mean return {step.returns.mean():.2f}",
                )

        with patience.within(bound, "reset or step"):
            returns, ended = play(
                agent.model,
                env,
                behaviour,
                np.full(episodes, greedy),
                rng,
                config.evaluation.max_steps,
                watch,
            )
    summary = summarise(returns)
    hns, saber = scores(agent.spec.game, summary["mean_return"])
    # Greedy episodes have no 1/tau that JSON can hold, and some families have none at all.
    result = {
        "env": agent.spec.name,
        "episodes": episodes,
        **summary,
        "inv_temperatures": [None] * episodes,
        **({} if greedy else by_name(config, behaviour)),
        "hns": hns,
        "saber": saber,
    }
    source = (
        "as asked for"
        if inv_temperature is not None
        else (
            "the bandits' best region"
            if config.behaviour.source in ("bandit", "distribution")
            else "the run's own"
        )
    )
    temperatures = (
        {"1/tau": "greedy"}
        if greedy
        else {
            label(name): f"{low:.2f}{f'–{high:.2f}' if high > low else ''}, {source}"
            for name, low, high in zip(family, behaviour.min(0), behaviour.max(0), strict=True)
        }
    )
    return Evaluation(
        result,
        folder,
        protocol if agent.spec.game else "",
        temperatures,
        int((~ended).sum()),
        config.evaluation.max_steps,
        file,
    )


def check(
    episodes: int,
    inv_temperature: float | None,
    greedy: bool,
    protocol: str,
    max_steps: int | None,
    seed: int,
    video: str | Path | None,
) -> None:
    """Refuse what can be refused before anything is loaded."""
    if not 1 <= episodes <= 1000:
        raise ConfigError("episodes", episodes, "it must lie between 1 and 1000")
    if not 0 <= seed < 2**63:
        raise ConfigError("seed", seed, "it must be 0 or more, below 2**63")
    if max_steps is not None and max_steps < 1:
        raise ConfigError("max_steps", max_steps, "it must be at least 1")
    if inv_temperature is not None and not 0 <= inv_temperature <= 1e6:
        raise ConfigError(
            "inv_temperature",
            inv_temperature,
            "it must lie between 0 and 1e6; greedy is the limit beyond",
        )
    if inv_temperature is not None and greedy:
        raise DicerlError(
            f"inv_temperature is {inv_temperature} and greedy is asked for too; give one of them"
        )
    if protocol not in PROTOCOLS:
        raise ConfigError(
            "protocol",
            protocol,
            f"it can be {' or '.join(PROTOCOLS)}{nearest(protocol, PROTOCOLS)}",
        )
    if video and Path(video).suffix.lower() != ".mp4":
        raise ConfigError("video", str(video), "its name must end in .mp4")
    if video:
        require_folder("video", Path(video))


def find(path: str | Path, which: str | None, quiet: bool) -> tuple[Run, Path]:
    """A run and one of its checkpoints."""
    from dicerl.records.checkpoint import is_count
    from dicerl.records.run import Run

    path = Path(path)
    if path.parent.name in ("checkpoints", "best"):
        if which is not None:
            raise ConfigError(
                "checkpoint", which, f"{path} is a checkpoint already; name its run instead"
            )
        if not is_count(path.name):
            raise DicerlError(f"{path} is no checkpoint: its name must be a number of updates")
        return Run.open(path.parent.parent), path
    run = Run.open(path)
    return run, run.checkpoint(
        which or "newest", lambda line: None if quiet else print(printable(line), file=sys.stderr)
    )


def with_protocol(
    config: Config, protocol: str, max_steps: int | None, game: str, name: str
) -> Config:
    """The run's config with the fields of an evaluation protocol; what the network sees stays the
    run's own.
    """
    if protocol == "sticky" and not game:
        raise ConfigError(
            "protocol", protocol, f"sticky actions are for Atari games; {name} is none"
        )
    if game:
        config = config.replace(**{field: get(Config(), field) for field in PAPER})
        config = config.replace(
            **{
                "evaluation.max_steps": -(
                    -config.env.max_episode_frames // config.env.action_repeat
                )
            }
        )
    if protocol == "sticky":
        config = config.replace(**{"env.sticky_actions": 0.25})
    return config if max_steps is None else config.replace(**{"evaluation.max_steps": max_steps})


def scores(game: str, mean: float) -> tuple[float | None, float | None]:
    """(HNS, SABER) of a mean return; None where the game is not one of the paper's 57."""
    from dicerl.envs.atari import ATARI_57

    if game not in ATARI_57:
        return None, None
    from dicerl.scores import hns, saber

    return hns(game, mean), saber(game, mean)
