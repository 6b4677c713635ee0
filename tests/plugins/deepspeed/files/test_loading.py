from types import SimpleNamespace

import pytest

from rlhf_core import ConfigError

pytest.importorskip("deepspeed")

from rlhf_plugin_deepspeed.config import DeepSpeedConfig
from rlhf_plugin_deepspeed.files.loading import refuse_cut_noise
from rlhf_testing.errors import has_code

pytestmark = pytest.mark.scale


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tensor_parallel": 2}, "tensor_parallel 2: expected 1"),
        ({"deep_compile": True, "zero_stage": 3}, "deep_compile true: expected false"),
    ],
)
def test_noise_that_ranks_would_draw_apart_is_refused(options, named):
    config = DeepSpeedConfig(**options)

    with pytest.raises(ConfigError, match=named, check=has_code("config/conflict")):
        refuse_cut_noise(SimpleNamespace(embedding_noise=5.0), config)
    refuse_cut_noise(SimpleNamespace(embedding_noise=0.0), config)
