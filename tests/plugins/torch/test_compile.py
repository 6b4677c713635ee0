"""torch.compile of the layers changes speed, not results."""

import pytest
import torch


@pytest.mark.slow
# Inductor itself uses what torch has deprecated.
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
@pytest.mark.parametrize("family", ["gemma3"])  # has both kinds of layers
def test_compiled_layers_train_alike(start, make_spec, make_batch, make_plan, models, family, refs):
    digests = []
    for compile_layers in (False, True):
        spec = make_spec(models[family], optimizer=refs.sgd, max_tokens_per_micro_batch=40)
        backend = start(spec, compile=compile_layers)
        for seed in range(2):
            batch = make_batch(seed=seed)
            backend.train_step(batch, make_plan(batch))
        weights = {name: w.detach().clone() for name, w in backend._model.named_weights()}
        digests.append((weights, backend.logprobs(batch.trajectories)))

    torch.testing.assert_close(digests[1][0], digests[0][0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(digests[1][1], digests[0][1], atol=1e-5, rtol=1e-4)
