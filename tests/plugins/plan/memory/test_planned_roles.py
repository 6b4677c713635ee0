import pytest

from rlhf_plugin_plan.memory.planned_roles import largest_micro_batch
from rlhf_plugin_plan.memory.workload import Workload


def workload(**changes):
    return Workload(
        **{
            "prompts": 32,
            "samples": 8,
            "prompt_tokens": 256,
            "response_tokens": 1024,
            "known_lengths": True,
        }
        | changes
    )


def test_known_lengths_are_cut_evenly_into_the_fewest_micro_batches():
    """256 sequences of 1280 tokens, 25 fit into 32 768: 11 micro-batches, the largest of 24."""
    batch, count = largest_micro_batch(256, workload(), 32_768)

    assert (count, batch.tokens, batch.actions, batch.several) == (11, 24 * 1280, 24 * 1024, True)


def test_they_are_cut_as_the_backends_cut_them():
    np = pytest.importorskip("numpy")
    from rlhf_torch.rows.microbatch import micro_batches

    for rows in (1, 7, 25, 26, 100, 256):
        parts = micro_batches(np.full(rows, 1280), 32_768)
        batch, count = largest_micro_batch(rows, workload(), 32_768)
        assert count == len(parts), rows
        assert batch.tokens == 1280 * max(map(len, parts)), rows


def test_unknown_lengths_may_fill_the_budget():
    batch, _ = largest_micro_batch(256, workload(known_lengths=False), 32_768)

    assert (batch.tokens, batch.actions) == (32_768, 26_214)


def test_a_sequence_longer_than_the_budget_is_a_micro_batch():
    for known in (True, False):
        batch, count = largest_micro_batch(4, workload(known_lengths=known), 1000)
        assert (batch.tokens, count) == (1280, 4)


def test_few_sequences_are_no_more_than_they_are():
    batch, count = largest_micro_batch(2, workload(known_lengths=False), 32_768)

    assert (batch.tokens, count, batch.several) == (2560, 1, False)


def test_prompts_that_are_shared_count_once():
    """A prompt with its 8 samples has 256 + 8 * 1024 = 8448 tokens: three of them and 7 samples more of a fourth, 256 +
    7 * 1024 = 7424, fill 32 768. That is 31 of 256 sequences, so 9 micro-batches, which 28 or 29 sequences suffice for.
    """
    batch, count = largest_micro_batch(256, workload(), 32_768, share_prompts=True)

    assert count == 9
    assert batch.tokens // 1280 in (28, 29)
    assert batch.repeated == (batch.tokens // 1280 - 4) * 256
    assert batch.computed == (batch.tokens // 1280) * 1024 + 4 * 256


@pytest.mark.parametrize("budget", [1000, 4_000, 9_000, 32_768, 400_000])
@pytest.mark.parametrize(("samples", "rows"), [(8, 256), (3, 60), (5, 32)])
def test_shared_prompts_are_cut_as_the_backends_cut_them(samples, rows, budget):
    np = pytest.importorskip("numpy")
    from rlhf_torch.rows.microbatch import Runs, micro_batches_in_order
    from rlhf_torch.rows.prompt_sharing import WORTH

    shared = np.where(np.arange(rows) % samples == 0, 0, 256)
    runs = Runs(lengths=np.full(rows, 1280), shared=shared, worth=WORTH)
    parts = micro_batches_in_order(runs, budget)
    computed = []
    for part in parts:
        saved = 256 * int(np.count_nonzero(part[1:] % samples))
        whole = 1280 * len(part)
        computed.append(whole - saved if saved >= WORTH * whole else whole)

    plan = workload(samples=samples, prompts=-(-rows // samples))
    batch, count = largest_micro_batch(rows, plan, budget, share_prompts=True)

    assert count == len(parts)
    assert batch.computed == max(computed)


def test_short_prompts_and_unknown_lengths_are_planned_whole():
    for changes in ({"prompt_tokens": 50}, {"samples": 1}, {"known_lengths": False}):
        batch, _ = largest_micro_batch(256, workload(**changes), 32_768, share_prompts=True)
        assert batch.repeated == 0, changes


def test_what_is_worth_sharing_is_what_the_backend_takes_for_it():
    from rlhf_plugin_plan.machine.assumptions import SHARING_IS_WORTH, SHARING_ROOM
    from rlhf_torch.rows.microbatch import ROOM
    from rlhf_torch.rows.prompt_sharing import WORTH

    assert SHARING_IS_WORTH == WORTH
    assert SHARING_ROOM == ROOM
