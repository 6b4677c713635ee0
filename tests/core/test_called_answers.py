"""Answers of components that are called: no number for each action token is an error that names the component."""

import numpy as np
import pytest
import torch

from rlhf_core import PluginError
from rlhf_core.called import Checked
from rlhf_core.contracts import Advantages, Correction, LossInputs, Metric, TokenLoss
from rlhf_testing.errors import has_code

MASK = torch.tensor([[True, True], [True, False]])
WRONG = has_code("plugin/wrong-answer")


def inputs(**columns):
    zeros = torch.zeros(2, 2)
    policy = torch.zeros(2, 2, requires_grad=True)
    given = {"policy_logprobs": policy, "old_logprobs": zeros, "advantages": zeros}
    return LossInputs(**given, action_mask=MASK, **columns)


def loss_of(make, **columns):
    return Checked(make, TokenLoss, "mine:loss (mine 1.0)")(inputs(**columns))


async def loss_later(inputs):
    return TokenLoss(loss=inputs.policy_logprobs)


def unawaited(inputs):
    answer = loss_later(inputs)
    answer.close()  # so that nothing warns that it was never awaited
    return answer


def test_a_right_answer_comes_back_as_it_is():
    metrics = {
        "a": Metric(1),
        "b": Metric(torch.tensor(2.0), np.float32(3.0)),
        "c": Metric(torch.tensor([2.0]), torch.tensor(3)),
    }
    answer = TokenLoss(loss=torch.zeros(2, 2, requires_grad=True), metrics=metrics)

    assert loss_of(lambda _: answer) is answer
    correction = Correction(weights=torch.ones(2, 2), keep=MASK)
    assert Checked(lambda *_: correction, Correction, "it")(0, 0, MASK) is correction
    assert Checked(torch.exp, torch.Tensor, "it")(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda _: None, r"returned None \(NoneType\); expected TokenLoss$"),
        (lambda given: given.policy_logprobs, r"returned tensor.*\(Tensor\); expected TokenLoss$"),
        (lambda _: "none", r"returned 'none' \(str\); expected TokenLoss$"),
        (unawaited, r"\(coroutine\); expected TokenLoss. Write it without async"),
        (
            lambda given: TokenLoss(loss=given.policy_logprobs.mean()),
            r"returned loss of shape \(\); expected \(2, 2\), a number for each action token, which the core averages$",
        ),
        (lambda given: TokenLoss(loss=given.policy_logprobs.sum(1)), r"shape \(2,\)"),
        (lambda given: TokenLoss(loss=np.zeros((2, 2))), r"\(ndarray\); expected a torch.Tensor"),
        (
            lambda given: TokenLoss(loss=given.policy_logprobs.to("meta")),
            r"loss of device meta; expected cpu",
        ),
        (
            lambda given: TokenLoss(loss=given.policy_logprobs.detach() - 1),
            r"loss of no gradient; expected one by policy_logprobs",
        ),
    ],
)
def test_another_answer_is_refused_with_the_component_and_what_was_expected(make, says):
    with pytest.raises(PluginError, match=rf"(?s)^mine:loss \(mine 1\.0\) .*{says}", check=WRONG):
        loss_of(make)


def test_a_component_that_cannot_be_called_is_refused_before_it_is_needed():
    with pytest.raises(
        PluginError,
        match=r"^mine:loss \(mine 1\.0\): its factory returned 3 \(int\)",
        check=WRONG,
    ):
        Checked(3, TokenLoss, "mine:loss (mine 1.0)")


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        ([1.0], r"metrics of \[1.0\] \(list\); expected Metric by name"),
        ({"a/b": 1.0}, r"metrics\['a/b'\] of 1.0 \(float\); expected .*Metric\(total, count\)"),
        ({"a/b": Metric("high")}, r"metrics\['a/b'\] of Metric"),
        ({"a/b": Metric(torch.zeros(2, 2))}, r"metrics\['a/b'\] of Metric"),
        ({"a/b": Metric(1.0, None)}, r"metrics\['a/b'\] of Metric"),
    ],
)
def test_metrics_that_are_none_are_refused_by_name(metrics, says):
    def loss(given):
        answer = TokenLoss(loss=given.policy_logprobs)
        object.__setattr__(answer, "metrics", metrics)  # tests check the types that it is made with
        return answer

    with pytest.raises(PluginError, match=says, check=WRONG):
        loss_of(loss)


def test_every_column_of_every_kind_is_checked():
    batch = inputs()
    short = Advantages(advantages=torch.zeros(2, 2), returns=torch.zeros(2))
    for answer, name in (
        (Advantages(advantages=torch.zeros(1, 2)), "advantages"),
        (short, "returns"),
    ):
        with pytest.raises(PluginError, match=rf"returned {name} of shape", check=WRONG):
            Checked(lambda _, answer=answer: answer, Advantages, "it")(batch)
    with pytest.raises(PluginError, match=r"a number for each action token$", check=WRONG):
        Checked(lambda _: short, Advantages, "it")(batch)
    with pytest.raises(
        PluginError, match=r"keep of torch.float32.*expected torch.bool", check=WRONG
    ):
        Checked(
            lambda *_: Correction(weights=torch.ones(2, 2), keep=torch.ones(2, 2)), Correction, "it"
        )(0, 0, MASK)
    for estimate in (3, torch.zeros(())):
        with pytest.raises(PluginError, match="expected", check=WRONG):
            Checked(lambda _, estimate=estimate: estimate, torch.Tensor, "it")(torch.zeros(3))


def notes_of(make, raised=TypeError):
    with pytest.raises(raised) as caught:
        loss_of(make)
    return getattr(caught.value, "__notes__", [])


def test_a_column_that_was_not_asked_for_is_named_where_the_component_stumbles():
    (note,) = notes_of(lambda given: TokenLoss(loss=given.policy_logprobs - given.ref_logprobs))

    assert "ref_logprobs" in note
    assert "the needs of mine:loss (mine 1.0)" in note
    assert "old_logprobs" not in note
    assert "is_weights" not in note, "no word of needs brings it"


def test_an_error_that_speaks_of_no_column_has_no_note_on_columns():
    assert notes_of(lambda given: len(3)) == []
    assert notes_of(lambda given: given.no_such_column, AttributeError) == []


def test_zeros_without_a_gradient_train_on_where_nothing_is_to_be_learned():
    """Such as of a micro-batch whose advantages are all 0. Padding counts for nothing."""
    given = inputs()
    policy = given.policy_logprobs

    zeros = torch.tensor([[0.0, 0.0], [0.0, torch.nan]])
    loss = Checked(lambda _: TokenLoss(loss=zeros), TokenLoss, "it")(given).loss

    (grad,) = torch.autograd.grad(loss.sum(), policy)
    assert loss.tolist() == grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_a_loss_without_a_gradient_is_right_where_nothing_is_learned():
    with torch.no_grad():
        given = inputs()
    answer = Checked(lambda _: TokenLoss(loss=torch.ones(2, 2)), TokenLoss, "it")(
        LossInputs(
            policy_logprobs=given.policy_logprobs.detach(),
            old_logprobs=given.old_logprobs,
            advantages=given.advantages,
            action_mask=MASK,
        )
    )

    assert answer.loss.tolist() == [[1.0, 1.0], [1.0, 1.0]]


class RunningMean:
    """An estimator that would forget its mean on a resume, without a word."""

    def __call__(self, batch):
        return Advantages(advantages=batch.token_rewards)

    def state_dict(self):
        return {"mean": 0.5}


def test_a_state_that_no_checkpoint_keeps_is_refused():
    with pytest.raises(PluginError, match="state_dict", check=WRONG):
        Checked(RunningMean(), Advantages, "mine:it (mine 1.0)")


def test_a_module_of_torch_may_be_an_answerer():
    Checked(torch.nn.Identity(), Advantages, "it")


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_numbers_that_are_cut_to_integers_are_refused(dtype):
    """The estimator's advantages of 0.5 would all be trained as 0."""
    batch = inputs()
    cut = Advantages(advantages=torch.full((2, 2), 0.5).to(dtype))

    with pytest.raises(PluginError, match="a floating-point dtype", check=WRONG):
        Checked(lambda _: cut, Advantages, "mine:it (mine 1.0)")(batch)
