"""The chunked head against plain logits."""

import weakref

import pytest
import torch

from rlhf_torch.building.compiling import compiled
from rlhf_torch.heads.action_head import action_scores
from rlhf_torch.heads.fused_head import head_grad, head_scores
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.models.modeling import LogitForm


@pytest.fixture(params=["qwen3", "gemma3"])
def lm(request, models):
    lm = load_causal_lm(str(models[request.param]), dtype="float32")
    if request.param == "gemma3":
        lm.logit_form = LogitForm(softcap=2.0)  # a softcap shows in every gradient
    return lm


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(13, 32, generator=generator) * 3
    return hidden.requires_grad_(), torch.randint(0, 100, (13,), generator=generator)


# Two more tokens at each position; the last one is sometimes the action itself.
OTHERS = torch.tensor([[3 * row % 100, (7 * row + 1) % 100] for row in range(13)])


def plain(lm, hidden, targets, temperature):
    """Log-probs of the targets, entropies, log-probs of the other tokens."""
    scaled = lm.logits(hidden) / temperature
    probs = scaled.softmax(-1)
    ids = torch.cat([targets[:, None], OTHERS], dim=1)
    rows = [scaled[i, row] - scaled[i].exp().sum().log() for i, row in enumerate(ids)]
    logprobs = torch.stack(rows)
    return logprobs[:, 0], -(probs * probs.log()).sum(-1), logprobs[:, 1:]


def columns(scores):
    """The scores in the order of ``plain``."""
    return scores.logprobs, scores.entropies, scores.others


@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
@pytest.mark.parametrize("chunk", [1, 4, 13, 100])
def test_values_do_not_depend_on_the_chunks(lm, inputs, temperature, chunk):
    expected = plain(lm, *inputs, temperature)

    actual = action_scores(lm, *inputs, temperature=temperature, chunk=chunk, others=OTHERS)

    torch.testing.assert_close(columns(actual), expected, atol=1e-5, rtol=1e-5)


def test_other_tokens_are_only_there_when_asked_for(lm, inputs):
    scores = action_scores(lm, *inputs, temperature=1.0, chunk=4)

    assert scores.others is None
    assert scores.logprobs.shape == (13,)


@pytest.mark.parametrize("use", ["logprobs", "entropy", "others", "all"])
@pytest.mark.parametrize("chunk", [4, 100])
def test_gradients_are_those_of_plain_autograd(lm, inputs, use, chunk):
    hidden, targets = inputs
    parameters = [hidden, *lm.model.get_output_embeddings().parameters()]
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(*shape, generator=generator) for shape in ((13,), (13,), (13, 2))]

    def loss(results):
        parts = [(weight * result).sum() for weight, result in zip(weights, results, strict=True)]
        by_name = dict(zip(("logprobs", "entropy", "others"), parts, strict=True))
        return by_name.get(use, sum(parts))

    scores = action_scores(lm, hidden, targets, temperature=0.7, chunk=chunk, others=OTHERS)
    actual = torch.autograd.grad(loss(columns(scores)), parameters)
    expected = torch.autograd.grad(loss(plain(lm, hidden, targets, 0.7)), parameters)

    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("chunk", "products"), [(13, 1), (12, 4), (5, 6)])
def test_the_products_of_one_chunk_are_kept_for_the_backward_pass(lm, inputs, chunk, products):
    calls = []
    lm.model.get_output_embeddings().register_forward_hook(lambda *_: calls.append(1))

    action_scores(lm, *inputs, temperature=1.0, chunk=chunk).logprobs.sum().backward()

    assert len(calls) == products


def test_logits_of_one_chunk_are_gone_when_those_of_the_next_are_made(lm, inputs, monkeypatch):
    hidden, targets = inputs
    made, alive = [], []
    plain_logits = lm.raw_logits

    def watched(states):
        alive.append(sum(made_before() is not None for made_before in made))
        logits = plain_logits(states)
        made.append(weakref.ref(logits))
        return logits

    monkeypatch.setattr(type(lm), "raw_logits", lambda self, states: watched(states))
    scores = action_scores(lm, hidden, targets, temperature=1.0, chunk=4)
    made.clear()
    alive.clear()

    (scores.logprobs.sum() + scores.entropies.sum()).backward()

    assert alive == [0, 0, 0, 0]


def test_no_products_are_kept_where_nobody_asks_for_a_gradient(lm, inputs):
    hidden, targets = inputs
    lm.requires_grad_(False)
    kept = []
    lm.model.get_output_embeddings().register_forward_hook(
        lambda _, __, output: kept.append(output.requires_grad)
    )

    action_scores(lm, hidden.detach(), targets, temperature=1.0, chunk=100)

    assert kept == [False]


def test_uniform_logits_have_the_entropy_of_the_vocabulary(lm):
    scores = action_scores(lm, torch.zeros(2, 32), torch.tensor([3, 50]), temperature=1.0, chunk=8)

    # log 100 = 4.60517
    torch.testing.assert_close(scores.entropies.detach(), torch.full((2,), 4.6051702))
    torch.testing.assert_close(scores.logprobs.detach(), torch.full((2,), -4.6051702))


def test_a_frozen_head_gets_no_gradient_but_lets_it_through(lm, inputs):
    hidden, targets = inputs
    lm.requires_grad_(False)

    action_scores(lm, hidden, targets, temperature=1.0, chunk=5).logprobs.sum().backward()

    assert all(p.grad is None for p in lm.parameters())
    assert float(hidden.grad.abs().max()) > 0


def test_the_entropy_of_three_logits_is_openrlhfs():
    """Logits (0, 1, 2): its run gave 0.832396."""

    class ThreeLogits:
        model = torch.nn.Linear(1, 1)
        logit_form = LogitForm()

        def raw_logits(self, hidden):
            return torch.tensor([[0.0, 1.0, 2.0]]).expand(len(hidden), 3)

    head = ThreeLogits()
    head.model.get_output_embeddings = lambda: torch.nn.Identity()

    scores = action_scores(head, torch.zeros(1, 1), torch.tensor([2]), temperature=1.0, chunk=4)

    assert scores.entropies.item() == pytest.approx(0.832396, abs=1e-6)


FORMS = [
    LogitForm(),
    LogitForm(temperature=0.7),
    LogitForm(scale=0.5, temperature=1.3),
    LogitForm(softcap=2.0),
    LogitForm(scale=2.0, softcap=3.0, temperature=0.9),
]


@pytest.mark.parametrize("form", FORMS)
def test_the_functions_that_a_gpu_compiles_are_log_softmax_and_its_gradient(form):
    generator = torch.Generator().manual_seed(2)
    raw = (torch.randn(6, 11, generator=generator) * 4).requires_grad_()
    action = torch.randint(0, 11, (6,), generator=generator)
    of_logprob, of_entropy = torch.randn(2, 6, generator=generator)
    logprobs = form.apply(raw).log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    chosen = logprobs[torch.arange(6), action]
    (chosen * of_logprob + entropy * of_entropy).sum().backward()

    with torch.no_grad():
        found, entropies, logsumexp = head_scores(raw, action[:, None], form)
        grad = head_grad(raw, action, form, logsumexp, of_logprob, of_entropy, entropies)

    torch.testing.assert_close(found[:, 0], chosen)
    torch.testing.assert_close(entropies, entropy)
    torch.testing.assert_close(grad, raw.grad, atol=1e-5, rtol=1e-5)


def test_the_compiled_functions_survive_logits_of_a_thousand():
    raw = torch.tensor([[1000.0, -1000.0, 999.0]])

    logprobs, entropies, logsumexp = head_scores(raw, torch.tensor([[1]]), LogitForm())
    grad = head_grad(
        raw, torch.tensor([1]), LogitForm(), logsumexp, torch.ones(1), torch.ones(1), entropies
    )

    assert logprobs.item() == pytest.approx(-2000.31326, rel=1e-6)
    assert torch.isfinite(grad).all()


def test_where_nothing_can_be_compiled_the_plain_function_is_used(monkeypatch, caplog):
    from torch._dynamo.exc import TorchDynamoException

    def failing(function):
        def call(*arguments):
            raise TorchDynamoException("Failed to find C compiler.\nmore")

        return call

    monkeypatch.setattr(torch, "compile", failing)

    def double(x):
        return 2 * x

    assert [compiled(double)(x) for x in (1, 2)] == [2, 4]
    assert [record.getMessage() for record in caplog.records] == [
        "double is not compiled, so it is slower and needs more memory: Failed to find C compiler."
    ]


@pytest.mark.parametrize("chunk", [4, 13])
def test_other_tokens_may_have_a_temperature_of_their_own(lm, inputs, chunk):
    """Values and gradients, beside those of the action and the entropy at the first temperature."""
    hidden, targets = inputs
    scores = action_scores(
        lm, hidden, targets, temperature=0.7, chunk=chunk, others=OTHERS, others_temperature=2.0
    )
    first, tempered = plain(lm, hidden, targets, 0.7), plain(lm, hidden, targets, 2.0)
    expected = (*first[:2], tempered[2])

    torch.testing.assert_close(columns(scores), expected, atol=1e-5, rtol=1e-5)
    _assert_equal_gradients(lm, hidden, columns(scores), expected)


@pytest.mark.parametrize("chunk", [4, 13])
@pytest.mark.parametrize("never", [(), (0, 97)])
def test_the_mean_log_prob_is_over_ids_that_have_a_probability(lm, inputs, chunk, never):
    lm.never_sample(never)
    hidden, targets = inputs
    targets = torch.where(torch.isin(targets, torch.tensor(never)), 5, targets)
    scores = action_scores(lm, hidden, targets, temperature=0.7, chunk=chunk, with_mean=True)
    logprobs = (lm.logits(hidden) / 0.7).log_softmax(-1)
    sampled = torch.tensor([token for token in range(logprobs.shape[1]) if token not in never])
    expected = (
        logprobs.gather(1, targets[:, None])[:, 0],
        logprobs[:, sampled].mean(-1),
    )

    actual = (scores.logprobs, scores.mean_logprobs)

    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    _assert_equal_gradients(lm, hidden, actual, expected)


def _assert_equal_gradients(lm, hidden, actual, expected):
    """Compare the gradients of both, weighted with fixed random numbers, to the hidden states and to the head."""
    leaves = [hidden, *lm.model.get_output_embeddings().parameters()]
    found = []
    for columns_ in (actual, expected):
        draw = torch.Generator().manual_seed(3)
        total = sum((torch.rand(part.shape, generator=draw) * part).sum() for part in columns_)
        found.append(torch.autograd.grad(total, leaves))
    torch.testing.assert_close(found[0], found[1], atol=2e-5, rtol=1e-4)
