"""Log-ratios of answers."""

import pytest
import torch

from rlhf_core import PluginError
from rlhf_core.contracts import AnswerLogprobs
from rlhf_testing.errors import has_code


def test_a_log_ratio_is_policy_minus_reference_and_its_gradient_goes_to_the_policy_alone():
    answers = AnswerLogprobs(
        policy=torch.tensor([-10.0, -12.0], requires_grad=True),
        reference=torch.tensor([-10.5, -11.0], requires_grad=True),
        num_tokens=torch.tensor([4, 5]),
    )

    answers.log_ratio.sum().backward()

    torch.testing.assert_close(answers.log_ratio.detach(), torch.tensor([0.5, -1.0]))
    torch.testing.assert_close(answers.policy.grad, torch.ones(2))
    assert answers.reference.grad is None


def test_without_a_reference_the_message_has_the_need_to_declare():
    answers = AnswerLogprobs(policy=torch.tensor([-1.0]), num_tokens=torch.tensor([1]))

    with pytest.raises(
        PluginError, match=r"needs=\{'ref_logprobs'\}", check=has_code("plugin/no-ref-logprobs")
    ):
        _ = answers.log_ratio
