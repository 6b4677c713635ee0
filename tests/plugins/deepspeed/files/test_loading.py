from types import SimpleNamespace

import pytest

from rlhf_core import ConfigError

pytest.importorskip("deepspeed")

from rlhf_plugin_deepspeed.config import DeepSpeedConfig
from rlhf_plugin_deepspeed.files.loading import refuse_cut_noise
from rlhf_testing.errors import has_code

pytestmark = pytest.mark.scale


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"tensor_parallel": 2}, "deepspeed/noise-of-shared-matrices"),
        ({"deep_compile": True, "zero_stage": 3}, "deepspeed/compiled-noise"),
    ],
)
def test_noise_that_ranks_would_draw_apart_is_refused(options, code):
    config = DeepSpeedConfig(**options)

    with pytest.raises(ConfigError, check=has_code(code)):
        refuse_cut_noise(SimpleNamespace(embedding_noise=5.0), config)
    refuse_cut_noise(SimpleNamespace(embedding_noise=0.0), config)
