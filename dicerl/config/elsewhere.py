"""Which field an unknown name means: what Stable-Baselines3, CleanRL, RLlib and others call it, or
the nearest of ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

# our name: a remark, and what others call it
_OTHERS: dict[str, tuple[str, str]] = {
    "frames": (
        "agent steps times action repeat",
        "total_timesteps n_timesteps num_timesteps timesteps total_steps total_env_steps env_steps"
        " num_env_steps train_for_env_steps stop_timesteps total_frames num_frames max_frames",
    ),
    "runtime.num_envs": (
        "in all",
        "n_envs num_environments nenvs num_envs_per_worker num_envs_per_env_runner",
    ),
    "runtime.num_actors": (
        "",
        "num_workers n_workers workers num_rollout_workers num_env_runners num_processes",
    ),
    "sequence.batch": (
        "sequences, not steps",
        "batch_size minibatch_size train_batch_size train_batch_size_per_learner"
        " sgd_minibatch_size bs",
    ),
    "sequence.length": (
        "",
        "n_steps num_steps nsteps unroll_length rollout rollout_length rollout_steps"
        " rollout_fragment_length seq_len seq_length sequence_length max_seq_len recurrence"
        " horizon",
    ),
    "sequence.reuse": ("", "n_epochs num_epochs update_epochs epochs num_sgd_iter ppo_epochs"),
    "optimizer.learning_rate": ("", "lr step_size learning_rate"),
    "optimizer.clip_norm": (
        "",
        "max_grad_norm grad_clip clip_grad grad_norm_clipping clip_grad_norm gradient_clip",
    ),
    "optimizer.eps": ("", "adam_eps adam_epsilon optimizer_eps"),
    "optimizer.warmup": ("", "warmup_steps lr_warmup"),
    "loss.discount": ("", "gamma discount_factor discounting"),
    "loss.entropy": (
        "0 unless you set it: the vote explores",
        "ent_coef entropy_coef entropy_coeff entropy_cost entropy_bonus exploration_loss_coeff",
    ),
    "loss.value": (
        "",
        "vf_coef value_coef value_loss_coef value_loss_coeff vf_loss_coeff baseline_cost",
    ),
    "loss.rho_bar": (
        "of importance ratios; loss.c_bar is that of the traces",
        "clip_range clip_coef clip_param clip_eps clip_ratio vtrace_clip_rho_threshold",
    ),
    "loss.c_bar": (
        "it cuts the traces; there is no lambda",
        "gae_lambda lambda lambda_ lam td_lambda",
    ),
    "collector.replay_capacity": (
        "sequences; collector.replay is their share of a batch",
        "buffer_size replay_size replay_buffer_size replay_buffer_num_slots memory_size",
    ),
    "network.lstm": (
        "units; 0 for none",
        "use_lstm use_rnn rnn_size lstm_size lstm_cell_size lstm_hidden_size",
    ),
    "network.hidden": (
        "",
        "hidden_size hidden_dim hidden_units hidden_sizes fcnet_hiddens net_arch",
    ),
    "behaviour.inv_temperature": ("1/tau, where behaviour.source is fixed", "temperature tau"),
    "behaviour.epsilon": (
        "where behaviour.family is epsilon and behaviour.source fixed",
        "exploration_fraction exploration_initial_eps exploration_final_eps start_e end_e"
        " eps_greedy",
    ),
    "evaluation.every": (
        "frames",
        "eval_freq eval_interval eval_every evaluation_interval eval_frequency",
    ),
    "evaluation.episodes": (
        "",
        "n_eval_episodes eval_episodes num_eval_episodes evaluation_duration",
    ),
    "checkpoint.every": (
        "frames",
        "save_freq save_every save_interval save_frequency checkpoint_freq checkpoint_frequency"
        " checkpoint_interval",
    ),
    "log_every": ("updates", "log_interval log_freq log_frequency"),
    "run_dir": (
        "",
        "tensorboard_log log_dir logdir log_folder save_dir savedir train_dir output_dir exp_name"
        " experiment xpid storage_path",
    ),
    "runtime.device": ("cpu, cuda", "cuda gpu num_gpus use_gpu num_gpus_per_learner"),
    "runtime.push_every": ("updates", "broadcast_interval"),
    "env.action_repeat": ("", "frame_skip frameskip"),
    "env.frame_stack": ("", "n_stack num_stack framestack env_framestack"),
    "env.sticky_actions": ("", "repeat_action_probability"),
    "env.episodic_life": ("", "terminal_on_life_loss"),
    "env.reward_shape": ("", "reward_clipping clip_reward clip_rewards reward_clip"),
    "variant": ("", "algo algorithm agent"),
    "env.id": ("", "env env_id env_name environment gym_id"),
}
ELSEWHERE = {name: ours for ours, (_, names) in _OTHERS.items() for name in names.split()}


def meant(word: str, known: Iterable[str]) -> list[str]:
    """The known names that an unknown one may stand for; empty if nothing known is close."""
    names, plain = list(dict.fromkeys(known)), _plain(word)
    if ELSEWHERE.get(plain) in names:
        return [ELSEWHERE[plain]]
    same = [name for name in names if name.split(".")[-1] == plain]
    if same:
        return same
    # a field may be named without its section; then its own name must be close
    close = {name: max(_alike(plain, name), _alike(plain, name.split(".")[-1])) for name in names}
    return sorted((n for n in names if close[n] >= 0.7), key=lambda n: -close[n])[:1]


def suggestion(
    word: str, known: Iterable[str], spelt: Callable[[str], str] = lambda name: name
) -> str:
    """'; here it is optimizer.learning_rate' for lr, '; did you mean loss.q?' for loss.qq, and ''
    if nothing known is close. ``spelt`` makes a name what the user types.
    """
    names = meant(word, known)
    if names and names[0] == ELSEWHERE.get(_plain(word)):
        remark = _OTHERS[names[0]][0]
        return f"; here it is {spelt(names[0])}{f' ({remark})' if remark else ''}"
    return f"; did you mean {' or '.join(map(spelt, names))}?" if names else ""


def _plain(word: str) -> str:
    return word.lower().replace("-", "_").strip("_")


def _alike(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b.lower()).ratio()
