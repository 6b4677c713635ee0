"""What the policy's head says of actions: log-probs, entropies and squared probabilities."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from rlhf_torch.heads.action_head import action_scores
from rlhf_torch.heads.statistics import action_statistics
from rlhf_torch.models.modeling import LogitForm

from .batches import Batch
from .pairs import Both, pair
from .released import load

OURS_IS_FLOAT32 = "ours: the head returns float32"


class IdentityHead:
    """A language model whose hidden states are the logits."""

    model = SimpleNamespace(get_output_embeddings=lambda: torch.nn.Module())

    logit_form = LogitForm()

    @staticmethod
    def raw_logits(hidden: Tensor) -> Tensor:
        return hidden.float()  # ours takes float32 logits


def _ours_of_head(batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies at the actions of all rows, in chunks of 5."""
    scores = action_scores(
        IdentityHead(),
        batch.logits[batch.mask],
        batch.actions[batch.mask],
        temperature=temperature,
        chunk=5,
    )
    return scores.logprobs.double(), scores.entropies.double()


@pair(
    "openrlhf",
    "models.utils.log_probs_from_logits",
    "torch.heads.action_head.action_scores",
    case="temperature 0.7",
    gradient="logits",
    float32=OURS_IS_FLOAT32,
)
def openrlhf_logprobs(batch: Batch) -> Both:
    """Theirs divides the logits in place, so it gets its own."""
    theirs = load("openrlhf.models.utils").log_probs_from_logits(
        batch.logits * 1.0, batch.actions, temperature=0.7
    )
    return Both(ours=_ours_of_head(batch, 0.7)[0], theirs=theirs[batch.mask])


@pair(
    "verl",
    "utils.torch_functional.logprobs_from_logits",
    "torch.heads.action_head.action_scores",
    gradient="logits",
    float32=OURS_IS_FLOAT32,
)
def verl_logprobs(batch: Batch) -> Both:
    functional = load("verl.utils.torch_functional")
    theirs = functional.logprobs_from_logits(batch.logits, batch.actions)
    return Both(ours=_ours_of_head(batch, 1.0)[0], theirs=theirs[batch.mask])


@pair(
    "trl",
    "trainer.utils.selective_log_softmax",
    "torch.heads.action_head.action_scores",
    case="temperature 0.7",
    gradient="logits",
    float32=OURS_IS_FLOAT32,
)
def trl_logprobs(batch: Batch) -> Both:
    utils = load("trl.trainer.utils")
    theirs = utils.selective_log_softmax(batch.logits, batch.actions, temperature=0.7)
    return Both(ours=_ours_of_head(batch, 0.7)[0], theirs=theirs[batch.mask])


@pair(
    "openrlhf",
    "models.utils.compute_entropy",
    "torch.heads.action_head.action_scores",
    gradient="logits",
    float32=OURS_IS_FLOAT32,
)
def openrlhf_entropy(batch: Batch) -> Both:
    """Theirs is compiled; it is run as it was written."""
    with torch.compiler.set_stance("force_eager"):
        theirs = load("openrlhf.models.utils").compute_entropy(batch.logits)
    return Both(ours=_ours_of_head(batch, 1.0)[1], theirs=theirs[batch.mask])


@pair(
    "verl",
    "utils.torch_functional.entropy_from_logits",
    "torch.heads.action_head.action_scores",
    gradient="logits",
    float32=OURS_IS_FLOAT32,
)
def verl_entropy(batch: Batch) -> Both:
    theirs = load("verl.utils.torch_functional").entropy_from_logits(batch.logits)
    return Both(ours=_ours_of_head(batch, 1.0)[1], theirs=theirs[batch.mask])


@pair(
    "trl",
    "trainer.utils.entropy_from_logits",
    "torch.heads.action_head.action_scores",
    gradient="logits",
    float32=OURS_IS_FLOAT32,
)
def trl_entropy(batch: Batch) -> Both:
    theirs = load("trl.trainer.utils").entropy_from_logits(batch.logits)
    return Both(ours=_ours_of_head(batch, 1.0)[1], theirs=theirs[batch.mask])


@pair(
    "verl",
    "utils.torch_functional.calculate_sum_pi_squared_from_logits",
    "torch.heads.statistics.action_statistics",
    float32=OURS_IS_FLOAT32,
)
def verl_sum_pi_squared(batch: Batch) -> Both:
    functional = load("verl.utils.torch_functional")
    theirs = functional.calculate_sum_pi_squared_from_logits(batch.logits)[batch.mask]
    ours = action_statistics(
        IdentityHead(),
        batch.logits[batch.mask].detach(),
        batch.actions[batch.mask],
        ["sum_pi_squared"],
        temperature=1.0,
        chunk=5,
    )
    return Both(ours=ours[:, 0].double(), theirs=theirs)
