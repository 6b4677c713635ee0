"""A reward model that is an adapter of a base which a role of this process holds: the base is in memory once.

The adapter stands beside the base, in modules of its own and in the base's dtype, where a reward model with a base to
itself is merged. Nothing of it reaches the role, and nothing of the role's adapter reaches it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlhf_core import ConfigError, RewardError
from rlhf_torch.adapters.beside import LOW_RANK
from rlhf_torch.models.score_head import zero_head
from rlhf_torch.models.shared_base import held_base

from .adapted import AdaptedModel, adapted, classifier_beside, config_of
from .config import RewardModelConfig
from .ends import sequence_end
from .loading import HEAD, LoadedModel, described, load_tokenizer
from .scoring import Scorer, TokenIds


class ScorerOnHeldBase:
    """A scorer whose model is put together with the first scores: rewards are built before roles.

    Raises:
        ConfigError: the path is no adapter with a head of one score.
    """

    def __init__(self, options: RewardModelConfig) -> None:
        adapter = adapted(options, HEAD)
        if adapter is None or adapter.folder.config["peft_type"] != LOW_RANK:
            raise ConfigError(
                f"reward model {options.path}: expected a PEFT folder with LoRA factors and a head, for base = shared; "
                "got another model. Leave base out",
                code="reward-model/not-an-adapter",
            )
        self._options = options
        self._adapter = adapter
        self._scorer: Scorer | None = None
        self.tokenizer = load_tokenizer(options)
        self.end = sequence_end(options, config_of(options, adapter), self.tokenizer)

    def scores(self, sequences: Sequence[TokenIds]) -> list[float | RewardError]:
        """Return what ``Scorer.scores`` does.

        Raises:
            ConfigError: no role holds the base, or the adapter does not fit it.
            RewardError: the base has left the GPU.
        """
        if self._scorer is None:
            loaded = on_held_base(self._options, self._adapter, self.tokenizer)
            self._scorer = Scorer(self._options, loaded)
        if not self._scorer.is_in_place():
            raise RewardError(
                f"reward model {self._options.path}: its base, which a role holds, is not in the GPU's memory while "
                "the engine generates. Set runtime.sleep to never, or base to own",
                code="reward-model/asleep",
            )
        return self._scorer.scores(sequences)


def on_held_base(
    options: RewardModelConfig, adapter: AdaptedModel, tokenizer: PreTrainedTokenizerBase
) -> LoadedModel:
    """Return the reward model beside the base that a role holds.

    Raises:
        ConfigError: no role of this process holds the base, or the adapter does not fit it.
        MissingDependency: PEFT is not installed.
    """
    base = held_base(adapter.base)
    if base is None:
        raise ConfigError(
            f"reward model {options.path}: base = shared, and no role of this process holds {adapter.base} without "
            "training it. Train the policy with an adapter of this base (--actor.adapter), or set base to own",
            code="reward-model/no-shared-base",
        )
    config = config_of(options, adapter)
    config.num_labels = 1
    model = classifier_beside(_classifier_around(base.view(), config), adapter, HEAD)
    return described(options, model.eval(), tokenizer, config)


def _classifier_around(view: PreTrainedModel, config: object) -> PreTrainedModel:
    """Return the classifier whose decoder is that of a language model; its head is zeros."""
    # The decoder came with attention for packed rows, which rows of a batch are not.
    view.set_attn_implementation("sdpa" if view._supports_sdpa else "eager")
    with torch.device("meta"):
        made: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)
    setattr(made, made.base_model_prefix, view.base_model)
    # Those in 4 bits are no floating numbers.
    like = next(weight for weight in view.parameters() if weight.is_floating_point())
    width = getattr(made, HEAD).in_features
    setattr(made, HEAD, zero_head(width, device=like.device, dtype=like.dtype))
    return made
