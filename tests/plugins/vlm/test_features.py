"""Features of images are the same whether Transformers leaves them in one tensor or cuts them by images."""

import pytest
import torch

from rlhf_plugin_vlm.families.image_text_family import joined

WHOLE = torch.arange(12.0).reshape(6, 2)


@pytest.mark.parametrize(
    "found",
    [WHOLE, WHOLE.split([1, 5]), list(WHOLE.split([1, 5])), WHOLE.reshape(2, 3, 2)],
    ids=["whole", "cut", "a list", "images of one size"],
)
def test_features_are_one_row_for_each_token(found):
    assert torch.equal(joined(found), WHOLE)
