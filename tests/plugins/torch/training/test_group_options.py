"""At resume, an optimizer has the options of this run and the counts of the run before."""

import pytest
import torch

from rlhf_core import CheckpointError
from rlhf_testing.errors import has_code
from rlhf_torch.training.group_options import changed_options, group_options, restore_changed


def adam(**options):
    return torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))], lr=0.1, **options)


def test_an_option_that_no_update_changed_is_that_of_the_run():
    before = adam(betas=(0.9, 0.99), weight_decay=0.1)
    saved = changed_options(before, group_options(before))
    now = adam(betas=(0.5, 0.6), weight_decay=0.2)

    restore_changed(now, saved, "here")

    assert saved == [{}]
    assert now.param_groups[0]["betas"] == (0.5, 0.6)
    assert now.param_groups[0]["weight_decay"] == 0.2


def test_what_updates_count_in_a_group_comes_back():
    before = adam()
    initial = group_options(before)
    before.param_groups[0] |= {"seen": 3, "betas": (0.1, 0.2)}
    now = adam()

    restore_changed(now, changed_options(before, initial), "here")

    assert now.param_groups[0]["seen"] == 3
    assert now.param_groups[0]["betas"] == (0.1, 0.2)


def test_another_number_of_groups_is_refused():
    with pytest.raises(
        CheckpointError,
        match=r"2 parameter groups.*has 1",
        check=has_code("checkpoint/other-groups"),
    ):
        restore_changed(adam(), [{}, {}], "here")
