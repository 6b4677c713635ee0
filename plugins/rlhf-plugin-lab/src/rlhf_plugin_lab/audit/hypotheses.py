"""Hypotheses of an audit, in the order in which the first of several that explain a gap alike is named."""

from __future__ import annotations

from collections.abc import Mapping

from . import of_inputs, of_models, of_pixels, of_sampling
from .case import Case, Hypothesis

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
        of_pixels.pixels,
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
OF_SEEING = (
    *("temperature", "logit_cap", "top_p", "top_k", "eos", "weights", "tied_head", "pixels"),
    *("dtype", "quantized", "routes"),
)
"""Causes that are tried for a model that sees: its own forward chooses positions and masks, which others change."""


def hypotheses_for(case: Case) -> Mapping[str, Hypothesis]:
    """Return the hypotheses that are tried for a case."""
    if case.plain.pixels is None:
        return HYPOTHESES
    return {name: HYPOTHESES[name] for name in OF_SEEING}
