"""A suite from its plan to its results: check what is on disk, run what is left, return the
results.
"""

from __future__ import annotations

from typing import Any

from dicerl.envs import env_spec
from dicerl.errors import DicerlError
from dicerl.records.lock import hold
from dicerl.records.run import require_own
from dicerl.suite import results, show, state
from dicerl.suite.plan import Plan, SuiteRun
from dicerl.suite.scheduler import Scheduler, default_jobs


def run_suite(plan: Plan, quiet: bool = True) -> tuple[dict[str, Any], bool]:
    """Run what is not finished yet: (results with statistics, False if a signal ended it early).

    ``suite.json`` in the plan's directory holds the results too, and is kept up to date.
    """
    for game in plan.games:
        # an unknown game ends here, not after an hour
        env_spec(next(r.config for r in plan.runs if r.game == game))
    plan.directory.mkdir(parents=True, exist_ok=True)
    lock = hold(plan.directory / "suite.lock")
    if lock is None:
        raise DicerlError(
            f"{plan.directory} is in use by another suite; wait for it or name another directory"
            " with --dir"
        )
    with lock:
        written = [plan.directory / name for name in ("suite.json", "suite.tmp", "logs", "runs")]
        for path in (*written, *(path for r in plan.runs for path in (r.directory, r.log))):
            require_own(path, plan.directory, "suite")
        for r in plan.runs:
            state.check(r)
            state.look(r)
        path = plan.directory / "suite.json"
        progress = show.Progress(plan, quiet)

        def changed(r: SuiteRun) -> None:
            progress.changed(r)
            results.write(results.results(plan, with_statistics=False), path)

        left = [r for r in plan.runs if r.state != "finished"]
        jobs = plan.jobs or default_jobs(plan)
        if left:
            progress.say(
                f"{plan.directory}: {len(plan.runs)} runs, {len(plan.runs) - len(left)} of them"
                f" finished; {min(jobs, len(left))} at a time"
            )
        scheduler = Scheduler(plan.runs, jobs, changed, progress.tick)
        try:
            complete = scheduler.run()
        finally:
            progress.close()
        plan.signal = scheduler.signal
        found = results.results(plan)
        results.write(found, path)
    return found, complete
