"""What the peers' functions want around their tensors: configurations, trainers, experiences."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .batches import Batch
from .released import load


def verl_index(batch: Batch) -> np.ndarray:
    """Names of the groups, as verl keys them."""
    return np.array([f"prompt {group}" for group in batch.group.tolist()], dtype=object)


def verl_actor(**options: Any) -> Any:
    """verl's configuration of the policy, with its sections as plain values."""
    config = load("verl.workers.config")
    policy_loss = config.PolicyLossConfig(**options.pop("policy_loss", {}))
    return config.ActorConfig(
        strategy="fsdp",
        rollout_n=2,
        use_dynamic_bsz=True,
        policy_loss=policy_loss,
        **options,
    )


def verl_dapo_rewards(lengths: list[int], *, limit: int, buffer: int) -> Tensor:
    """Return the rewards of verl's manager for DAPO, for responses that score 0: its penalties."""
    manager_class = load("verl.workers.reward_manager.dapo").DAPORewardManager
    width = max(lengths)
    samples = [
        SimpleNamespace(
            batch={
                "prompts": torch.zeros(1),
                "responses": torch.zeros(width),
                "attention_mask": torch.arange(1 + width) < 1 + length,
            },
            non_tensor_batch={"reward_model": {"ground_truth": ""}, "data_source": "any"},
        )
        for length in lengths
    ]
    manager = SimpleNamespace(
        _extract_reward_from_rm_scores=lambda *_: None,
        tokenizer=SimpleNamespace(decode=lambda *_, **__: "", eos_token="<end>"),
        reward_fn_key="data_source",
        compute_score=lambda **_: 0.0,
        overlong_buffer_cfg=SimpleNamespace(enable=True, len=buffer, penalty_factor=1.0, log=False),
        max_resp_len=limit,
        num_examine=0,
    )
    rewards = manager_class.__call__(manager, _Samples(samples))
    return rewards.sum(dim=1).double()


class _Samples(list):
    """A list of samples with a batch of its own, as verl's DataProto is one."""

    @property
    def batch(self) -> dict[str, Tensor]:
        return {"responses": torch.stack([sample.batch["responses"] for sample in self])}


class OpenrlhfExperience(SimpleNamespace):
    """One batch of OpenRLHF's experience maker, rows in prompt order."""


def openrlhf_advantages(
    batch: Batch,
    estimator: str,
    *,
    kl: Tensor | None = None,
    kl_coef: float = 0.0,
    gamma: float = 1.0,
    lambda_: float = 1.0,
    no_std_norm: bool = False,
    clip_range: tuple[float, float] | None = None,
) -> Any:
    """Return OpenRLHF's experience with advantages and returns: its own method, on a maker without models."""
    maker_class = load("openrlhf.trainer.ppo_utils.experience_maker").RemoteExperienceMaker
    maker = object.__new__(maker_class)
    num_samples = int((batch.group == 0).sum())
    maker.advantage_estimator = estimator
    maker.kl_ctl = SimpleNamespace(value=kl_coef)
    advantage = SimpleNamespace(
        estimator=estimator, gamma=gamma, lambd=lambda_, no_std_norm=no_std_norm
    )
    maker.strategy = SimpleNamespace(
        args=SimpleNamespace(
            reward=SimpleNamespace(clip_range=clip_range),
            rollout=SimpleNamespace(n_samples_per_prompt=num_samples),
            algo=SimpleNamespace(advantage=advantage),
        )
    )
    experience = OpenrlhfExperience(
        rewards=batch.rewards.clone(),
        index=list(range(len(batch.rewards))),
        values=batch.values.detach(),
        kl=torch.zeros_like(batch.values) if kl is None else kl,
        action_mask=batch.float_mask,
        info={},
    )
    maker.compute_advantages_and_returns([experience])
    return experience


def trl_loss(batch: Batch, loss_type: str, **options: Any) -> Tensor:
    """Return the loss of ``trl_step``."""
    return trl_step(batch, loss_type, **options)[0]


def trl_step(
    batch: Batch,
    loss_type: str,
    *,
    level: str = "token",
    row_advantages: bool = True,
    is_ratio: Tensor | None = None,
    trainer: str = "trl.trainer.grpo_trainer.GRPOTrainer",
    **options: Any,
) -> tuple[Tensor, SimpleNamespace]:
    """Return the loss of TRL's trainer, and the trainer after it: its own method, unbound, without a model.

    Args:
        row_advantages: give it one advantage per sequence, as it computes them; else one per token.
        options: attributes of the trainer, or of its ``args``.
    """
    module, _, name = trainer.rpartition(".")
    trainer_class = getattr(load(module), name)
    num_rows, width = batch.mask.shape
    settings = {
        "delta": None, "use_bias_correction_kl": False, "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05, "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0,
        "vespo_lambda_neg": 2.0, "steps_per_generation": 1, "entropy_target": 0.0, "entropy_coef_delta": 0.0,
        "entropy_coef_min": 0.0, "entropy_coef_max": 1.0,
    }  # fmt: skip
    attributes = {
        "epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.0, "entropy_coef": 0.0, "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None, "max_completion_length": width, "use_adaptive_entropy": False,
    }  # fmt: skip
    settings |= {key: value for key, value in options.items() if key in settings}
    attributes |= {key: value for key, value in options.items() if key in attributes}
    unknown = options.keys() - settings.keys() - attributes.keys()
    assert not unknown, f"no such option: {unknown}"
    self = SimpleNamespace(
        **attributes,
        args=SimpleNamespace(**settings),
        loss_type=loss_type,
        importance_sampling_level=level,
        aux_loss_enabled=False,
        use_vllm=is_ratio is not None,
        vllm_importance_sampling_correction=is_ratio is not None,
        _last_world_entropy=0.0,
        _entropy_window_stats=None,
        _entropy_bonus_enabled=attributes["entropy_coef"] != 0.0,
        current_gradient_accumulation_steps=1,
        model=SimpleNamespace(training=True),
        accelerator=OneProcess(),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *_, **__: (
            batch.policy_logprobs,
            batch.entropy,
            None,
        ),
        get_off_policy_mask=getattr(trainer_class, "get_off_policy_mask", None),
        get_gamma_weights=getattr(trainer_class, "get_gamma_weights", None),
    )
    if hasattr(trainer_class, "get_high_entropy_mask"):
        self.get_high_entropy_mask = partial(trainer_class.get_high_entropy_mask, self)
    inputs = {
        "prompt_ids": torch.zeros(num_rows, 1, dtype=torch.long),
        "prompt_mask": torch.ones(num_rows, 1, dtype=torch.long),
        "completion_ids": batch.actions,
        "completion_mask": batch.float_mask,
        "advantages": batch.row_advantages if row_advantages else batch.advantages,
        "old_per_token_logps": batch.old_logprobs,
        "ref_per_token_logps": batch.ref_logprobs,
        "num_items_in_batch": batch.mask.sum(),
    }
    if is_ratio is not None:
        inputs["importance_sampling_ratio"] = is_ratio
    return trainer_class._compute_loss(self, None, inputs), self


class OneProcess:
    """As much of accelerate as TRL calls, on one process."""

    num_processes = 1
    process_index = 0
    device = torch.device("cpu")
    sync_gradients = True

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor

    def gather_for_metrics(self, tensor: Tensor) -> Tensor:
        return tensor

    def reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        return tensor

    def pad_across_processes(self, tensor: Tensor, **_: Any) -> Tensor:
        return tensor


def trl_scored(
    batch: Batch,
    *,
    rewards: Tensor | None = None,
    weights: Tensor | None = None,
    scale: str = "group",
    aggregation: str = "sum_then_normalize",
    is_mode: str | None = None,
    is_clip: tuple[float | None, float | None] = (None, 3.0),
    trainer: str = "trl.trainer.grpo_trainer.GRPOTrainer",
) -> dict[str, Tensor]:
    """Return what TRL's trainer computes of a finished rollout batch, ``advantages`` among it: its own method, unbound.

    Args:
        rewards: (B, K) of K reward functions; by default one.
        is_mode: of the vLLM importance sampling correction, whose ratio is then in the result.
    """
    module, _, name = trainer.rpartition(".")
    trainer_class = getattr(load(module), name)
    rewards = batch.rewards[:, None] if rewards is None else rewards
    num_rewards = rewards.shape[1]
    lengths = batch.lengths.tolist()
    completions = [row[:n].tolist() for row, n in zip(batch.actions, lengths, strict=True)]
    sampled = [row[:n].tolist() for row, n in zip(batch.rollout_logprobs, lengths, strict=True)]
    low, high = is_clip
    prompt_ids, grpo = [[0]] * len(rewards), name == "GRPOTrainer"
    generated = (
        prompt_ids,
        completions,
        None,
        completions,
        sampled if is_mode else None,
        {},
        None,
        None,
    )
    self = SimpleNamespace(
        accelerator=OneProcess(),
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False),
        environment_factories=None,
        environments=None,
        tools=None,
        args=SimpleNamespace(
            per_device_train_batch_size=len(rewards),
            gradient_checkpointing_kwargs=None,
            steps_per_generation=1,
            gradient_accumulation_steps=1,
        ),
        _generate=lambda prompts: generated if grpo else (prompt_ids, completions, completions),
        normalize_advantages=False,
        reward_clip_range=None,
        _tokenizer=SimpleNamespace(pad_token_id=0),
        pad_to_multiple_of=None,
        mask_truncated_completions=False,
        num_iterations=1,
        use_vllm=is_mode is not None,
        vllm_importance_sampling_correction=is_mode is not None,
        vllm_importance_sampling_mode=is_mode,
        vllm_importance_sampling_clip_min=low,
        vllm_importance_sampling_clip_max=high,
        _get_per_token_logps_and_entropies=lambda *_, **__: (batch.old_logprobs, None, None),
        beta=0.0,
        _calculate_rewards=lambda *_: rewards,
        num_generations=int((batch.group == 0).sum()),
        multi_objective_aggregation=aggregation,
        scale_rewards=scale,
        reward_weights=torch.ones(num_rewards, dtype=torch.float64) if weights is None else weights,
        reward_funcs=[None] * num_rewards,
        reward_func_names=[str(k) for k in range(num_rewards)],
        _metrics=defaultdict(lambda: defaultdict(list)),
        _logs={key: defaultdict(list) if key in ("rewards", "extra") else [] for key in
               ("prompt", "completion", "rewards", "advantages", "extra")},
        _pending_extra_logs={},
        _pending_metrics={},
        log_multimodal=False,
    )  # fmt: skip
    inputs = [{"prompt": ""} for _ in range(len(rewards))]
    return trainer_class._generate_and_score_completions(self, inputs)
