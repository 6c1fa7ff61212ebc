"""A search over settings with Optuna, in a few lines.

    pip install optuna
    python examples/search.py

Each trial is a run; its evaluations are reported while it trains, and a trial that stays behind the
others is stopped. Five trials of a few seconds: a real search has longer runs and several seeds.
"""

import optuna

import dicerl


class Report(dicerl.Callback):
    """Tells a trial of each evaluation, and stops the run if Optuna would prune it."""

    def __init__(self, trial):
        self.trial, self.score = trial, float("-inf")

    def on_evaluation(self, line):
        self.score = line["mean_return"]
        self.trial.report(self.score, step=line["frames"])
        return self.trial.should_prune()


def objective(trial, frames):
    """The last evaluation of a run with the trial's settings."""
    report = Report(trial)
    dicerl.train(
        "CartPole-v1",
        frames=frames,
        evaluation__every=frames // 2,
        quiet=True,
        callbacks=[report],
        optimizer__learning_rate=trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
        network__hidden=trial.suggest_categorical("hidden", [64, 128]),
    )
    return report.score


def main(trials=5, frames=10_000):
    """Search; return the finished study."""
    sampler = optuna.samplers.TPESampler(seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(lambda trial: objective(trial, frames), n_trials=trials)
    return study


if __name__ == "__main__":
    best = main().best_trial
    print(f"best of the trials: {best.value:.1f} with {best.params}")
