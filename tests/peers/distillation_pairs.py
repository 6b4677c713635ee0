"""Losses that imitate: a teacher's distribution, or given responses."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.neftune import neftune_post_forward_hook
from transformers.trainer_pt_utils import LabelSmoother

from rlhf_core.contracts import LossInputs
from rlhf_plugin_supervised.distill import DistillConfig, DistillLoss, top_k_kl
from rlhf_plugin_supervised.sft import SftConfig, SftLoss, smoothed_loss
from rlhf_torch.heads.action_head import action_scores
from rlhf_torch.heads.statistics import top_tokens
from rlhf_torch.packed.embedding_noise import noise_of

from .batches import VOCABULARY, Batch
from .core_pairs import step_mean
from .head_pairs import OURS_IS_FLOAT32, IdentityHead
from .pairs import Both, pair
from .policy_loss_pairs import CORE_ALGOS, TO_POLICY
from .released import load
from .stand_ins import OneProcess, verl_actor

OURS = "supervised.distill.top_k_kl"
DIRECTIONS = {"reverse": 1.0, "forward": 0.0}
"""TRL's interpolation between the two."""


def top_logprobs(batch: Batch, k: int) -> tuple[Tensor, Tensor]:
    """(B, A, k) of policy and teacher at the teacher's k most probable tokens."""
    teacher = batch.teacher_logits.log_softmax(-1)
    best = teacher.topk(k, dim=-1)
    return batch.logits.log_softmax(-1).gather(-1, best.indices), best.values


def _top_k(direction: str) -> None:
    @pair(
        "trl",
        "experimental.sdft.loss_utils.compute_divergence",
        OURS,
        case=f"add_tail_bucket, {direction}",
        gradient="logits",
    )
    def compare(batch: Batch) -> Both:
        policy, teacher = top_logprobs(batch, 3)
        utils = load("trl.experimental.sdft.loss_utils")
        theirs = utils.compute_divergence(
            utils.add_tail_bucket(policy), utils.add_tail_bucket(teacher), DIRECTIONS[direction]
        )
        ours = top_k_kl(policy, teacher, batch.mask, forward=direction == "forward").kl
        return Both(ours=ours[batch.mask], theirs=theirs[batch.mask])


def _whole_vocabulary(direction: str) -> None:
    @pair(
        "trl",
        "experimental.gkd.gkd_trainer.GKDTrainer.generalized_jsd_loss",
        OURS,
        case=f"all but one token, {direction}",
        gradient="logits",
    )
    def compare(batch: Batch) -> Both:
        """With one token less than there are, the rest is that token, and our KL the whole one."""
        labels = batch.actions.masked_fill(~batch.mask, -100)
        theirs = load("trl.experimental.gkd.gkd_trainer").GKDTrainer.generalized_jsd_loss(
            batch.logits, batch.teacher_logits, labels, beta=DIRECTIONS[direction]
        )
        policy, teacher = top_logprobs(batch, VOCABULARY - 1)
        ours = top_k_kl(policy, teacher, batch.mask, forward=direction == "forward").kl
        return Both(ours=step_mean(batch, ours), theirs=theirs)


for _direction in DIRECTIONS:
    _top_k(_direction)
    _whole_vocabulary(_direction)


@pair(
    "trl",
    "experimental.gkd.gkd_trainer.GKDTrainer.generalized_jsd_loss",
    OURS,
    case="all but one token, a mixture of both",
    gradient="logits",
)
def trl_mixture(batch: Batch) -> Both:
    labels = batch.actions.masked_fill(~batch.mask, -100)
    theirs = load("trl.experimental.gkd.gkd_trainer").GKDTrainer.generalized_jsd_loss(
        batch.logits, batch.teacher_logits, labels, beta=0.3
    )
    policy, teacher = top_logprobs(batch, VOCABULARY - 1)
    ours = top_k_kl(policy, teacher, batch.mask, forward=False, teacher_share=0.3).kl
    return Both(ours=step_mean(batch, ours), theirs=theirs)


@pair(
    "trl",
    "experimental.gkd.gkd_trainer.GKDTrainer.generalized_jsd_loss",
    "torch.heads.action_head.action_scores",
    case="temperature 2, forward",
    gradient="logits",
    float32=OURS_IS_FLOAT32,
)
def trl_temperature(batch: Batch) -> Both:
    """By the head, which divides logits of the student, and by the teacher's own top tokens."""
    labels = batch.actions.masked_fill(~batch.mask, -100)
    theirs = load("trl.experimental.gkd.gkd_trainer").GKDTrainer.generalized_jsd_loss(
        batch.logits, batch.teacher_logits, labels, beta=0.0, temperature=2.0
    )
    ids, taught = top_tokens(
        IdentityHead(),
        batch.teacher_logits[batch.mask].float(),
        VOCABULARY - 1,
        temperature=2.0,
        chunk=5,
    )
    scores = action_scores(
        IdentityHead(),
        batch.logits[batch.mask],
        batch.actions[batch.mask],
        temperature=1.0,
        chunk=5,
        others=ids,
        others_temperature=2.0,
    )
    assert scores.others is not None
    every = torch.ones(1, len(ids), dtype=torch.bool)
    ours = top_k_kl(scores.others[None], taught[None], every, forward=True).kl
    return Both(ours=ours.mean().double(), theirs=theirs)


def trl_sft_loss(batch: Batch, loss_type: str, label_smoothing: float = 0.0) -> Tensor:
    """Return the loss of TRL's SFT trainer: its own method, unbound, without a model."""
    logprobs = torch.where(batch.mask, batch.policy_logprobs, 0.0)
    outputs = SimpleNamespace(
        log_probs=logprobs,
        label_mask=batch.mask,
        entropy=torch.zeros_like(logprobs),
        is_top1=torch.zeros_like(batch.mask),
    )
    args = SimpleNamespace(loss_type=loss_type, average_tokens_across_devices=False)
    accelerator = OneProcess()
    accelerator.parallelism_config = None
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=False),
        args=args,
        accelerator=accelerator,
        aux_loss_enabled=False,
        compute_loss_func=None,
        label_smoother=LabelSmoother(label_smoothing) if label_smoothing else None,
        _metrics={"eval": defaultdict(list)},
        _total_train_tokens=0,
    )
    labels = batch.actions.masked_fill(~batch.mask, -100)
    # The smoother predicts each label from the logits of the token before.
    asked = {"labels": torch.nn.functional.pad(labels, (1, 0), value=-100)}
    logits = torch.nn.functional.pad(batch.logits, (0, 0, 0, 1))

    def model(*, fused_lm_head: bool = False, **_: Any) -> Any:
        return outputs if fused_lm_head else {"logits": logits}

    loss: Tensor = load("trl.trainer.sft_trainer").SFTTrainer.compute_loss(trainer, model, asked)
    return loss


def our_loss(batch: Batch, component: Any) -> Tensor:
    """The token mean of a loss that needs no advantages, in the first update: the policy is its own old one."""
    inputs = LossInputs(
        policy_logprobs=batch.policy_logprobs,
        old_logprobs=batch.policy_logprobs.detach(),
        advantages=batch.advantages,
        action_mask=batch.mask,
        teacher_logprobs=batch.teacher_logprobs,
    )
    return step_mean(batch, component(inputs).loss)


@pair(
    "verl",
    f"{CORE_ALGOS}.kl_penalty, compute_policy_loss_vanilla",
    "supervised.distill.DistillLoss",
    case="distillation with a policy gradient, k1",
    gradient=TO_POLICY,
)
def verl_distillation(batch: Batch) -> Both:
    """The calls of its distillation_loss, which itself wants nested tensors and a TensorDict."""
    core_algos = load("verl.trainer.ppo.core_algos")
    reverse_kl = core_algos.kl_penalty(batch.policy_logprobs, batch.teacher_logprobs, "k1")
    theirs, _ = core_algos.compute_policy_loss_vanilla(
        batch.policy_logprobs.detach(),
        batch.policy_logprobs,
        -reverse_kl.detach(),
        batch.float_mask,
        config=verl_actor(),
    )
    return Both(ours=our_loss(batch, DistillLoss(DistillConfig())), theirs=theirs)


@pair(
    "openrlhf",
    "models.loss.SFTLoss",
    "supervised.sft.SftLoss",
    gradient=TO_POLICY,
)
def openrlhf_sft(batch: Batch) -> Both:
    theirs = load("openrlhf.models.loss").SFTLoss()(batch.policy_logprobs, batch.float_mask)
    return Both(ours=our_loss(batch, SftLoss(SftConfig())), theirs=theirs)


@pair(
    "trl",
    "trainer.sft_trainer.SFTTrainer.compute_loss",
    "supervised.sft.SftLoss",
    case="dft",
    gradient=TO_POLICY,
)
def trl_dft(batch: Batch) -> Both:
    return Both(
        ours=our_loss(batch, SftLoss(SftConfig(loss="dft"))), theirs=trl_sft_loss(batch, "dft")
    )


@pair(
    "trl",
    "trainer.sft_trainer.SFTTrainer.compute_loss",
    "supervised.sft.smoothed_loss",
    case="label_smoothing_factor 0.2",
    gradient="logits",
    float32="it sums the log-probs in float32",
)
def trl_label_smoothing(batch: Batch) -> Both:
    logprobs = batch.logits.log_softmax(-1)
    nll = -logprobs.gather(-1, batch.actions[..., None])[..., 0]
    ours = smoothed_loss(nll, -logprobs.mean(-1), label_smoothing=0.2)
    return Both(ours=step_mean(batch, ours), theirs=trl_sft_loss(batch, "nll", 0.2))


@pair(
    "trl",
    "trainer.sft_trainer.SFTTrainer (neftune_noise_alpha)",
    "torch.packed.embedding_noise.noise_of",
    float32="the draws are in float32",
)
def trl_neftune(batch: Batch) -> Both:
    """Its trainer registers this hook of Transformers; a row is one sequence, so both scale by its length."""
    embeddings = batch.logits.detach()[:1].float()  # (1, N, D)
    module = SimpleNamespace(training=True, neftune_noise_alpha=5.0)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        theirs = neftune_post_forward_hook(module, None, embeddings)
    ours = embeddings + noise_of(
        embeddings,
        torch.full((embeddings.shape[1],), embeddings.shape[1]),
        alpha=5.0,
        generator=torch.Generator().manual_seed(7),
    )
    return Both(ours=ours.double(), theirs=theirs.double())
