"""A tiny Gemma 3n: its visual encoder is one of the models that timm has for tests, with batch norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SIDE = 64
"""Pixels of the side of the images that the tiny Gemma 3n reads, as 4 tokens each."""
SEEN = (SIDE // 32) ** 2
"""Tokens of an image."""
WIDTH = 256
"""Numbers of a feature of ``ENCODER``."""
ENCODER = "test_efficientnet"
"""timm's name of the visual encoder."""
WINDOW = 12
"""Tokens that a layer with a window looks back."""
WORDS = (
    *("<start_of_image>", "<start_of_audio>"),
    *("<end_of_image>", "<image_soft_token>", "<end_of_audio>", "<audio_soft_token>"),
)
"""Control tokens; from the third on they stand in the tables of the projectors."""


def gemma3n_entries(id_of: Callable[[str], int], text: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of the configuration, from the ids of control words and the entries of the text model.

    Tokens of images stand behind those of text, and tokens of sounds behind those of images, as in the real one.
    """
    half, width = text["num_hidden_layers"], text["hidden_size"]
    names = ("boi", "boa", "eoi", "image", "eoa", "audio")
    ids = dict(zip(names, map(id_of, WORDS), strict=True))
    own = {
        "num_hidden_layers": 2 * half,
        # The second half has keys and values of the first, if that has a layer of each kind.
        "num_kv_shared_layers": half if half > 1 else 0,
        "layer_types": ["sliding_attention", "full_attention"] * half,
        "activation_sparsity_pattern": [0.9, 0.0] * half,
        "sliding_window": WINDOW,
        "head_dim": width // text["num_attention_heads"],
        "vocab_size_per_layer_input": ids["eoi"],
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "final_logit_softcapping": 30.0,
    }
    seen = {
        "architecture": ENCODER,
        "hidden_size": WIDTH,
        # A norm is behind the encoder, by which the gradients of small features are large.
        "initializer_range": 0.25,
        "vocab_offset": ids["eoi"],
        "vocab_size": ids["eoa"] - ids["eoi"],
    }
    heard = {
        "hidden_size": 16,
        "conf_num_hidden_layers": 1,
        "conf_num_attention_heads": 2,
        "sscp_conv_channel_size": [4, 4],
        "vocab_offset": ids["eoa"],
        "vocab_size": text["vocab_size"] - ids["eoa"],
    }
    return {
        "text_config": text | own,
        "vision_config": seen,
        "audio_config": heard,
        "vision_soft_tokens_per_image": SEEN,
        **{f"{name}_token_id": token for name, token in ids.items()},
    }
