"""The factor of the loss that balances mixtures of experts, which other frameworks have by other names."""

from __future__ import annotations

from .entries import To

BALANCING = To(
    "actor.router_aux_loss",
    convert=lambda value: value or "none",  # a factor of 0 is refused for a model without experts
    differs="micro-batches weigh by their tokens; unset, the model's config.json decides, also where 0 was written",
    if_given=True,
)
