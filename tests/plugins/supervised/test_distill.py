"""On-policy distillation."""

import math

import pytest
import torch

from rlhf_core.contracts import LossInputs, metric_values
from rlhf_plugin_supervised.distill import DistillConfig, DistillLoss, top_k_kl

NAN = float("nan")


def sampled(policy, old, teacher, mask=None) -> LossInputs:
    return LossInputs(
        policy_logprobs=policy,
        old_logprobs=old,
        teacher_logprobs=teacher,
        advantages=torch.full_like(old, NAN),  # take no part
        action_mask=torch.ones_like(old, dtype=torch.bool) if mask is None else mask,
    )


def full(*distributions: list[float]) -> torch.Tensor:
    """(1, A, K) log-probs in float64."""
    return torch.tensor([distributions], dtype=torch.float64).log()


def test_sampled_tokens_by_hand():
    """The teacher finds the first token half as likely and the second twice as likely."""
    policy = torch.tensor([[0.4, 0.3]], dtype=torch.float64).log().requires_grad_()
    teacher = torch.tensor([[0.2, 0.6]], dtype=torch.float64).log()

    result = DistillLoss(DistillConfig())(sampled(policy, policy.detach(), teacher))
    result.loss.sum().backward()

    # Value policy - teacher; gradient of the same size: a policy gradient with advantages -log 2 and log 2.
    expected = torch.tensor([[math.log(2), -math.log(2)]], dtype=torch.float64)
    torch.testing.assert_close(result.loss, expected)
    torch.testing.assert_close(policy.grad, expected)
    assert metric_values(result.metrics) == pytest.approx({"distill/kl": 0.0})


def test_older_samples_are_weighted_with_their_ratio():
    policy = torch.tensor([[0.4]], dtype=torch.float64).log().requires_grad_()
    old = torch.tensor([[0.2]], dtype=torch.float64).log()
    teacher = torch.tensor([[0.1]], dtype=torch.float64).log()

    DistillLoss(DistillConfig())(sampled(policy, old, teacher)).loss.sum().backward()

    assert policy.grad.item() == pytest.approx(2 * math.log(4))


@pytest.mark.parametrize("off_policy", [False, True])
def test_the_expected_gradient_is_that_of_the_reverse_kl(off_policy):
    """Over a whole vocabulary, weighted with the probability of sampling each token."""
    generator = torch.Generator().manual_seed(0)
    logits, drift, teacher = torch.randn(3, 7, dtype=torch.float64, generator=generator)
    teacher = teacher.log_softmax(0)
    old = (logits + 0.3 * drift * off_policy).log_softmax(0)
    leaf = logits.clone().requires_grad_()

    tokens = leaf.log_softmax(0).reshape(-1, 1)  # one row per token of the vocabulary
    loss = DistillLoss(DistillConfig())(
        sampled(tokens, old.reshape(-1, 1), teacher.reshape(-1, 1))
    ).loss
    (old.exp() * loss.squeeze(1)).sum().backward()

    exact = logits.clone().requires_grad_()
    policy = exact.log_softmax(0)
    (policy.exp() * (policy - teacher)).sum().backward()
    torch.testing.assert_close(leaf.grad, exact.grad)


def test_a_policy_that_agrees_with_its_teacher_gets_no_gradient():
    policy = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    top = torch.tensor([[[0.5, 0.3], [0.6, 0.1]]]).log().requires_grad_()
    mask = torch.ones(1, 2, dtype=torch.bool)

    loss = DistillLoss(DistillConfig())(sampled(policy, policy.detach(), policy.detach())).loss
    loss.sum().backward()
    for forward in (False, True):
        result = top_k_kl(top, top.detach(), mask, forward=forward)
        torch.testing.assert_close(result.kl, torch.zeros(1, 2), atol=1e-6, rtol=0)
        # By logits: log-probs of a distribution cannot move one at a time.
        logits = torch.tensor([0.4, -0.2, 0.1], requires_grad=True)
        logprobs = logits.log_softmax(0)[:2].reshape(1, 1, 2)
        top_k_kl(logprobs, logprobs.detach(), mask[:, :1], forward=forward).kl.sum().backward()
        torch.testing.assert_close(logits.grad, torch.zeros(3), atol=1e-6, rtol=0)

    assert (policy.grad == 0).all()


def test_a_token_that_the_teacher_rules_out_is_bounded():
    policy = torch.tensor([[-1.0]], requires_grad=True)

    result = DistillLoss(DistillConfig())(
        sampled(policy, policy.detach(), torch.tensor([[-200.0]]))
    )
    result.loss.sum().backward()

    assert result.loss.item() == policy.grad.item() == 10.0


def test_top_k_by_hand():
    """Of four tokens the teacher's best two are known; the rest is 0.2 for the teacher and 0.5 for the policy."""
    policy, teacher = full([0.2, 0.3]), full([0.5, 0.3])
    mask = torch.ones(1, 1, dtype=torch.bool)

    reverse = top_k_kl(policy, teacher, mask, forward=False)
    forward = top_k_kl(policy, teacher, mask, forward=True)

    # 0.2 log(0.2/0.5) + 0.3 log 1 + 0.5 log(0.5/0.2); 0.5 log(0.5/0.2) + 0.3 log 1 + 0.2 log(0.2/0.5)
    assert reverse.kl.item() == pytest.approx(0.3 * math.log(2.5))
    assert forward.kl.item() == pytest.approx(0.3 * math.log(2.5))
    assert reverse.policy_mass.item() == pytest.approx(0.5)
    assert reverse.teacher_mass.item() == pytest.approx(0.8)


@pytest.mark.parametrize(("forward", "expected"), [(False, 0.223144), (True, 0.192745)])
def test_the_directions_differ(forward, expected):
    """0.5 log(.5/.8) + 0.5 log(.5/.2) = -0.235002 + 0.458145; 0.8 log(.8/.5) + 0.2 log(.2/.5) = 0.376003 - 0.183258."""
    kl = top_k_kl(full([0.5]), full([0.8]), torch.ones(1, 1, dtype=torch.bool), forward=forward).kl

    assert kl.item() == pytest.approx(expected, abs=2e-6)


def random_top(k: int, vocabulary: int = 9, seed: int = 0):
    """Log-probs of policy and teacher at the teacher's k best tokens, and over everything: (2, 5, K or V)."""
    generator = torch.Generator().manual_seed(seed)
    policy, teacher = torch.randn(
        2, 2, 5, vocabulary, dtype=torch.float64, generator=generator
    ).log_softmax(-1)
    best = teacher.topk(k, dim=-1)
    return policy.gather(-1, best.indices), best.values, policy, teacher


@pytest.mark.parametrize("forward", [False, True])
def test_with_all_tokens_it_is_the_whole_kl_and_with_fewer_less(forward):
    mask = torch.ones(2, 5, dtype=torch.bool)
    kls = {}
    for k in (1, 3, 8, 9):
        policy_top, teacher_top, policy, teacher = random_top(k)
        kls[k] = top_k_kl(policy_top, teacher_top, mask, forward=forward).kl
    first, second = (teacher, policy) if forward else (policy, teacher)
    whole = (first.exp() * (first - second)).sum(-1)

    torch.testing.assert_close(kls[8], whole)  # the rest is the one token that is left
    torch.testing.assert_close(kls[9], whole, atol=1e-5, rtol=0)  # the rest counts as 1e-6
    assert (kls[1] <= kls[3] + 1e-12).all()
    assert (kls[3] <= whole + 1e-12).all()
    assert (kls[1] >= 0).all()


@pytest.mark.parametrize("forward", [False, True])
def test_top_k_equals_a_loop(forward):
    policy, teacher, _, _ = random_top(3, seed=1)
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    expected = torch.zeros(2, 5, dtype=torch.float64)
    for row, token in torch.nonzero(mask).tolist():
        q = policy[row, token].exp().tolist()
        p = teacher[row, token].exp().tolist()
        q, p = [*q, 1 - sum(q)], [*p, 1 - sum(p)]
        if forward:
            q, p = p, q
        expected[row, token] = sum(a * math.log(a / b) for a, b in zip(q, p, strict=True))

    actual = top_k_kl(policy, teacher, mask, forward=forward).kl

    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("forward", [False, True])
def test_gradients_are_right(forward):
    policy, teacher, _, _ = random_top(3, seed=2)
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])

    assert torch.autograd.gradcheck(
        lambda x: top_k_kl(x, teacher, mask, forward=forward).kl, policy.requires_grad_()
    )


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_following_the_gradient_brings_the_policy_to_the_teacher(direction):
    generator = torch.Generator().manual_seed(3)
    teacher = torch.randn(1, 1, 9, dtype=torch.float64, generator=generator).log_softmax(-1)
    best = teacher.topk(4, dim=-1)
    logits = torch.zeros(1, 1, 9, dtype=torch.float64, requires_grad=True)
    loss = DistillLoss(DistillConfig(divergence="top_k", direction=direction))

    for _ in range(300):
        top = logits.log_softmax(-1).gather(-1, best.indices)
        result = loss(
            LossInputs(
                policy_logprobs=top[..., 0],
                old_logprobs=top[..., 0].detach(),
                advantages=torch.zeros(1, 1),
                action_mask=torch.ones(1, 1, dtype=torch.bool),
                teacher_top_logprobs=best.values,
                policy_top_logprobs=top,
            )
        )
        (grad,) = torch.autograd.grad(result.loss.sum(), logits)
        logits = (logits - grad).detach().requires_grad_()

    reached = logits.log_softmax(-1).gather(-1, best.indices)
    torch.testing.assert_close(reached.exp(), best.values.exp(), atol=1e-3, rtol=0)
    metrics = metric_values(result.metrics)
    assert metrics["distill/kl"] == pytest.approx(0.0, abs=1e-4)
    assert metrics["distill/policy_mass"] == pytest.approx(
        metrics["distill/teacher_mass"], abs=1e-3
    )


@pytest.mark.parametrize("forward", [False, True])
def test_nan_at_padding_has_no_effect_on_value_or_gradient(forward):
    policy, teacher, _, _ = random_top(3, seed=4)
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    dirty = torch.where(mask[..., None], policy, NAN).requires_grad_()
    clean = policy.clone().requires_grad_()

    outcomes = [
        top_k_kl(clean, teacher, mask, forward=forward),
        top_k_kl(dirty, torch.where(mask[..., None], teacher, NAN), mask, forward=forward),
    ]
    for result in outcomes:
        result.kl.sum().backward()

    for a, b in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    torch.testing.assert_close(dirty.grad, clean.grad, rtol=0, atol=0)
    assert (dirty.grad[~mask] == 0).all()


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_certain_and_ruled_out_tokens_give_finite_gradients(forward, dtype):
    policy = torch.tensor([[[0.0, -300.0], [-300.0, -300.0], [-1e-8, -1e4]]], dtype=dtype)
    policy.requires_grad_()
    teacher = torch.tensor([[[-300.0, -300.0], [0.0, -1e4], [-0.7, -0.7]]], dtype=dtype)

    kl = top_k_kl(policy, teacher, torch.ones(1, 3, dtype=torch.bool), forward=forward).kl
    kl.sum().backward()

    assert torch.isfinite(kl).all()
    assert torch.isfinite(policy.grad).all()


def jsd(policy, teacher, share, mask=None):
    every = torch.ones(policy.shape[:2], dtype=torch.bool)
    mask = every if mask is None else mask
    return top_k_kl(policy, teacher, mask, forward=False, teacher_share=share).kl


def test_the_jensen_shannon_divergence_by_hand():
    """The mixture of (0.5, 0.5) and (0.8, 0.2) is (0.65, 0.35): half of 0.8 log(.8/.65) + 0.2 log(.2/.35), which is
    0.166112 - 0.111923, and half of 0.5 log(.5/.65) + 0.5 log(.5/.35), which is -0.131182 + 0.178337."""
    assert jsd(full([0.5]), full([0.8]), 0.5).item() == pytest.approx(0.050672, abs=2e-6)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_the_jensen_shannon_divergence_equals_a_loop(share):
    policy, teacher, _, _ = random_top(3, seed=1)
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    expected = torch.zeros(2, 5, dtype=torch.float64)
    for row, token in torch.nonzero(mask).tolist():
        q = policy[row, token].exp().tolist()
        p = teacher[row, token].exp().tolist()
        for a, b in zip([*p, 1 - sum(p)], [*q, 1 - sum(q)], strict=True):
            mixed = share * a + (1 - share) * b
            expected[row, token] += share * a * math.log(a / mixed)
            expected[row, token] += (1 - share) * b * math.log(b / mixed)

    torch.testing.assert_close(jsd(policy, teacher, share, mask), expected)


@pytest.mark.parametrize(("share", "forward"), [(1e-6, True), (1 - 1e-6, False)])
def test_at_its_ends_the_mixture_is_one_of_the_kls(share, forward):
    policy, teacher, _, _ = random_top(3)
    mask = torch.ones(2, 5, dtype=torch.bool)

    actual = jsd(policy, teacher, share) / 1e-6

    expected = top_k_kl(policy, teacher, mask, forward=forward).kl
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-6)


def test_the_jensen_shannon_divergence_is_symmetric_and_at_most_ln_2():
    policy, teacher, _, _ = random_top(3)
    apart = jsd(full([1.0 - 1e-9]), full([1e-9]), 0.5)

    torch.testing.assert_close(jsd(policy, teacher, 0.3), jsd(teacher, policy, 0.7))
    assert apart.item() == pytest.approx(math.log(2), abs=1e-4)


def test_gradients_of_the_mixture_are_right():
    policy, teacher, _, _ = random_top(3, seed=2)
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])

    assert torch.autograd.gradcheck(lambda x: jsd(x, teacher, 0.3, mask), policy.requires_grad_())


@pytest.mark.parametrize(
    "options",
    [
        {"direction": "jsd", "teacher_share": 0.5},
        {"divergence": "top_k", "direction": "jsd"},
        {"divergence": "top_k", "teacher_share": 0.5},
        {"divergence": "top_k", "direction": "jsd", "teacher_share": 1.0},
    ],
)
def test_a_share_belongs_to_the_mixture(options):
    with pytest.raises(ValueError, match=r"direction|less than 1"):
        DistillConfig(**options)
