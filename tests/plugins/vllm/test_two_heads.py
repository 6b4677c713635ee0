"""A model whose config.json takes the embeddings for its head, while its files hold another one."""

import json

import pytest
from safetensors.torch import load_file

from rlhf_core import ConfigError
from rlhf_core.contracts import EngineSpec
from rlhf_plugin_vllm.arguments import require_one_head
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model


def test_a_head_that_vllm_would_pass_over_is_refused_before_it_starts(tmp_path):
    """The trainer computes with the head that is there, so that sampler and trainer would be two policies."""
    folder = write_tiny_model(tmp_path / "m", tied=False)
    assert "lm_head.weight" in load_file(folder / "model.safetensors")
    spec = EngineSpec(
        model_path=str(folder),
        dtype="float32",
        max_length=64,
        max_concurrency=4,
        eos_token_ids=(2,),
    )
    require_one_head(spec)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))

    with pytest.raises(
        ConfigError, match='Write "tie_word_embeddings": false', check=has_code("model/two-heads")
    ):
        require_one_head(spec)
