"""What is left of a closed backend."""

import gc
import weakref


def test_a_closed_backend_holds_no_weights(start, make_spec, make_batch, make_plan, models):
    backend = start(make_spec(models["qwen3"]))
    batch = make_batch()
    backend.train_step(batch, make_plan(batch))
    backend.logprobs(batch.trajectories)
    weights = [weakref.ref(weight) for _, weight in backend._model.named_weights()]

    backend.close()
    gc.collect()  # Transformers' models refer to themselves

    assert [one for one in weights if one() is not None] == []
