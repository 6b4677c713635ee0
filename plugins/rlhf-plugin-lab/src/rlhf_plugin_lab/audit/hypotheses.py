"""Hypotheses of an audit, in the order in which the first of several that explain a gap alike is named."""

from __future__ import annotations

from collections.abc import Mapping

from . import of_inputs, of_models, of_sampling
from .case import Hypothesis

HYPOTHESES: Mapping[str, Hypothesis] = {
    each.__name__: each
    for each in (
        of_sampling.temperature,
        of_sampling.logit_cap,
        of_sampling.top_p,
        of_sampling.top_k,
        of_sampling.eos,
        of_models.weights,
        of_models.adapter,
        of_models.tied_head,
        of_models.dtype,
        of_models.rope,
        of_models.quantized,
        of_inputs.template,
        of_inputs.positions,
        of_inputs.padding,
        of_inputs.context,
        of_inputs.stale_prefix,
        of_inputs.tokenizer,
        of_models.kernel,
        of_models.routes,
    )
}
"""Cause -> its hypothesis."""
