"""Options of the filters."""

import pytest
from pydantic import ValidationError

from rlhf_plugin_algorithms.filters.drop_errors import DropErrorsConfig
from rlhf_plugin_algorithms.filters.drop_stale import DropStaleConfig
from rlhf_plugin_algorithms.filters.dynamic_sampling import DynamicSamplingConfig
from rlhf_plugin_algorithms.filters.zero_variance import ZeroVarianceConfig


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (DynamicSamplingConfig, {"low": 1.0}),
        (DynamicSamplingConfig, {"high": float("inf")}),
        (ZeroVarianceConfig, {"max_std": -1e-9}),
        (DropStaleConfig, {"limit": -1}),
        (DropErrorsConfig, {"max_share": 1.0}),
        (DropErrorsConfig, {"metric": ""}),
    ],
)
def test_options_out_of_range_are_refused(config, wrong):
    with pytest.raises(ValidationError):
        config(**wrong)
