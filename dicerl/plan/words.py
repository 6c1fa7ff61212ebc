"""What a plan means, in sentences: who waits, and where the design ends."""

from __future__ import annotations

from dicerl.config import fields_of
from dicerl.plan.model import MB, Forecast, Load

CAPPED = ("runtime.num_actors", "runtime.num_envs")


def who_waits(load: Load, expected: Forecast) -> str:
    """In a sentence."""
    busy, layout = expected.busy, load.layout
    idle = {name: max(0.0, 1 - part) for name, part in busy.items()}
    match expected.limit:
        case "serial":
            return "actor and learner take turns: each waits for the other"
        case "actors":
            return (
                f"the learner waits for actors {idle['learner']:.0%} of its time;"
                f" {expected.saturating_actors:,} actors would saturate it"
            )
        case "learner":
            return f"actors wait for the learner {idle['actors']:.0%} of their time"
        case "cores":
            acting = busy["actors"] * layout.num_actors
            shares = acting / max(1e-9, busy["cores"] * layout.machines.cpus)
            return (
                "actors and learner for the cores, which they share:"
                f" {min(1.0, shares):.0%} of them act"
            )
        case "slots":
            return (
                f"actors wait for the collector's slots {idle['actors']:.0%} of their time, the"
                f" learner for sequences {idle['learner']:.0%}: raise collector.capacity"
                f" (now {layout.capacity:,})"
            )
        case "network":
            return f"actors wait for the network {idle['actors']:.0%} of their time"
        case _:
            return f"everybody waits for the supervisor; actors {idle['actors']:.0%} of their time"


def limits(load: Load) -> list[str]:
    """Where the design ends on a cluster, whatever the learner: a sentence for each resource, the
    scarcest first, with what would lift it.
    """
    actors = load.layout.num_actors
    rate = actors / load.actor_seconds()
    messages = load.messages(rate)
    supervisor = 1 / load.supervisor(rate, waking=False)  # times this many actors
    votes = 1 / load.books.episode
    link = load.layout.machines.gbits * 1e9 / 8
    intake = 1 / (load.updates_per_step * load.beside_update())
    found = [
        (
            rate * supervisor,
            f"the supervisor: {messages.received * supervisor:,.0f} messages/s, so about"
            f" {int(actors * supervisor):,} actors that never wait,"
            f" {rate * supervisor:,.0f} agent steps/s. Most are reports of time spent and signs of"
            " life: to send these less often, and several messages in a call, would lift it; then a"
            " supervisor for each machine that answers its actors and talks to one above it."
            f" Each round visits all children: {1e7 * load.books.child:.0f} ms for 10,000",
        ),
        (
            intake,
            f"the learner's process, where every sequence arrives: {intake:,.0f} agent steps/s."
            " Several learners that share each batch (runtime.num_learners) would lift it",
        ),
        (
            link / load.bytes_per_step(),
            f"the learner's link of {load.layout.machines.gbits:g} Gbit/s:"
            f" {link / load.bytes_per_step():,.0f} agent steps/s of"
            f" {load.bytes_per_step() / 1e3:.1f} KB. A faster link would lift it",
        ),
        (
            votes * load.costs.episode_steps,
            f"the vote: {votes:,.0f} episodes/s, so {votes * load.costs.episode_steps:,.0f} agent"
            " steps/s. Episodes reported in bulk, or bandit.scope actor with a vote on every"
            " machine, would lift it",
        ),
    ]
    lines = [text for _, text in sorted(found)]
    slots = load.layout.slot_bytes * load.layout.envs_per_actor
    lines.append(
        f"memory: an actor's environments have {load.layout.envs_per_actor} slots of the learner's"
        f" machine, {slots / MB:,.1f} MB. A smaller collector.capacity would lift it: then actors"
        " wait, but sequences are newer"
    )
    lines.append(
        "lag: a sequence waits for all before it, so the policy that acted is"
        f" {load.layout.envs_per_actor * load.reuse / load.new_sequences:.2g} updates older for"
        " each actor that the learner does not need; more learners, or fewer actors, would lift it"
    )
    most = {name: fields_of()[name][1].metadata["range"][1] for name in CAPPED}
    lines.append(f"the config: {', '.join(f'{n} is at most {m:,.0f}' for n, m in most.items())}")
    return lines
