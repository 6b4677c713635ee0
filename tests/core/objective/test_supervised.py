"""The terms on supervised rows."""

import numpy as np
import pytest
import torch

from rlhf_core.contracts import Normalizers
from rlhf_core.objective import ActionGrid, ActionScores

TOTALS = Normalizers(num_actions=6, num_sequences=3, max_actions=4)
GRID = ActionGrid.of(np.array([2, 1, 3]), torch.device("cpu"))


def test_the_terms_on_supervised_rows_alone_count(built, leaves, term, refs):
    objective = built(
        entropy_bonus=True,
        kl_estimator=refs.k3,
        terms=(term(rows="supervised", weight=0.5), term(rows="rollouts", weight=7.0)),
    )
    logprobs, entropies = leaves()

    loss, metrics = objective.supervised(
        ActionScores(logprobs=logprobs, entropies=entropies), GRID, TOTALS
    )
    loss.backward()

    # 0.5 * mean of l^2 over 6 tokens; the gradient is l / 6.
    assert loss.item() == pytest.approx(0.5 * logprobs.detach().square().mean().item())
    torch.testing.assert_close(logprobs.grad, logprobs.detach() / 6)
    assert entropies.grad is None
    assert metrics["loss/square"].value() == pytest.approx(logprobs.detach().square().mean().item())
    assert "loss/policy" not in metrics


def test_tokens_to_imitate_have_the_advantage_1_and_the_policys_own_old_log_probs(
    built, leaves, term, refs
):
    objective = built(terms=(term(loss=refs.loss, rows="supervised", weight=1.0),))
    logprobs, entropies = leaves()

    loss, _ = objective.supervised(
        ActionScores(logprobs=logprobs, entropies=entropies), GRID, TOTALS
    )
    loss.backward()

    assert loss.item() == pytest.approx(-1.0)
    torch.testing.assert_close(logprobs.grad, torch.full((6,), -1 / 6, dtype=torch.float64))


@pytest.mark.parametrize(
    "aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
def test_it_does_not_depend_on_the_micro_batches(built, leaves, term, aggregation):
    objective = built(terms=(term(rows="supervised", aggregation=aggregation),))
    whole, cut = leaves(), leaves()
    objective.supervised(ActionScores(logprobs=whole[0], entropies=whole[1]), GRID, TOTALS)[
        0
    ].backward()

    for rows, span in (([2, 1], slice(0, 3)), ([3], slice(3, 6))):
        scores = ActionScores(logprobs=cut[0][span], entropies=cut[1][span])
        grid = ActionGrid.of(np.array(rows), torch.device("cpu"))
        objective.supervised(scores, grid, TOTALS)[0].backward()

    torch.testing.assert_close(cut[0].grad, whole[0].grad, atol=1e-12, rtol=1e-9)
