"""The digest of weights."""

import pytest
import torch

from rlhf_weights import digest_of_sums, held_bits_digest, num_words, read_sums, weights_digest
from rlhf_weights.digest import bits_digest


def some_weights(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(3, 5, generator=generator),
        "b": torch.randn(7, generator=generator).to(torch.bfloat16),
        "c": torch.tensor(2.0),
    }


def digest(weights):
    return weights_digest(weights.items())


def test_the_same_bits_have_the_same_digest_in_any_order_and_layout():
    weights = some_weights()
    moved = {"b": weights["b"].clone(), "c": weights["c"], "a": weights["a"].t().contiguous().t()}

    assert digest(moved) == digest(weights)


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_any_flipped_bit_shows(name):
    weights = some_weights()
    before = digest(weights)
    words = weights[name].view(torch.uint8) if weights[name].dim() else weights[name][None]
    flat = words.view(torch.uint8).flatten()

    for position in range(len(flat)):
        flat[position] ^= 1
        assert digest(weights) != before
        flat[position] ^= 1

    assert digest(weights) == before


def test_elements_that_changed_places_show():
    swapped = some_weights()
    swapped["a"] = swapped["a"].flip(0)

    assert digest(swapped) != digest(some_weights())


def test_names_shapes_and_types_show():
    tensor = torch.zeros(4, 2)
    digests = {
        digest({"a": tensor}),
        digest({"b": tensor}),
        digest({"a": tensor.view(2, 4)}),
        digest({"a": tensor.view(torch.int32)}),
        digest({"ab": tensor[:2], "a": tensor[2:]}),
    }

    assert len(digests) == 5


def test_views_that_start_between_words_are_read_right():
    whole = torch.arange(9, dtype=torch.float32)

    assert int(bits_digest(whole[1:])) == int(bits_digest(whole[1:].clone()))


STEP = 0x9E3779B97F4A7C15


def signed(value):
    value %= 1 << 64
    return value - (1 << 64) if value >> 63 else value


def key(position):
    """Output ``position`` of splitmix64 from state 0, with shifts that keep the sign, made odd."""
    value = signed((position + 1) * STEP)
    value = signed((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9)
    value = signed((value ^ (value >> 27)) * 0x94D049BB133111EB)
    return (value ^ (value >> 31)) | 1


def test_a_hand_computed_sum():
    """Words 5 and -2: 5 times the first key and -2 times the second."""
    words = torch.tensor([5, -2], dtype=torch.int32)

    assert int(bits_digest(words)) == signed(5 * key(0) - 2 * key(1))


def test_later_chunks_count_otherwise(monkeypatch):
    monkeypatch.setattr("rlhf_weights.digest.CHUNK", 4)
    words = torch.arange(1, 11, dtype=torch.int32)
    swapped = words[torch.tensor([4, 1, 2, 3, 0, 5, 6, 7, 8, 9])]

    expected = sum(word * key(i % 4) * STEP ** (i // 4) for i, word in enumerate(range(1, 11)))

    assert int(bits_digest(words)) == signed(expected)
    assert int(bits_digest(swapped)) != signed(expected)


def test_a_part_of_several_chunks_counts_as_in_the_whole(monkeypatch):
    monkeypatch.setattr("rlhf_weights.digest.CHUNK", 4)
    words = torch.arange(1, 11, dtype=torch.int32)
    held = torch.arange(10) % 3 == 0

    (one, held_words), (other, other_words) = (
        held_bits_digest(words, part) for part in (held, ~held)
    )

    assert signed(int(one) + int(other)) == int(bits_digest(words))
    assert int(held_words) + int(other_words) == 10


def test_a_tensor_without_elements_has_a_digest():
    assert int(bits_digest(torch.zeros(0, 3))) == 0
    assert digest({"none": torch.zeros(0, 3)}) != digest({})


def test_many_sums_are_read_at_once():
    assert read_sums([torch.tensor(3), torch.tensor(-1)]) == [3, -1]
    assert read_sums([]) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cut", [4, 8])
def test_the_sums_of_parts_add_up_to_that_of_the_whole(dtype, cut):
    weight = torch.randn(6, 16).to(dtype)
    parts = [torch.zeros(6, 16, dtype=torch.bool) for _ in range(3)]
    parts[0][:2] = True
    parts[1][2:, :cut] = True
    parts[2][2:, cut:] = True

    sums, words = zip(*(held_bits_digest(weight, part) for part in parts), strict=True)

    assert sum(map(int, words)) == num_words(weight.nbytes)
    total = ("w", str(dtype), (6, 16), sum(map(int, sums)))
    assert digest_of_sums([total]) == weights_digest([("w", weight)])


def test_what_lies_outside_of_a_part_does_not_matter_to_it():
    weight, part = torch.randn(5, 4), torch.zeros(5, 4, dtype=torch.bool)
    part[1:3] = True
    other = torch.where(part, weight, torch.randn(5, 4))

    assert [int(x) for x in held_bits_digest(other, part)] == [
        int(x) for x in held_bits_digest(weight, part)
    ]
    other[1, 0] += 1
    assert int(held_bits_digest(other, part)[0]) != int(held_bits_digest(weight, part)[0])


def test_a_word_that_is_held_in_part_does_not_count():
    weight, part = torch.randn(8).to(torch.bfloat16), torch.zeros(8, dtype=torch.bool)
    part[1:5] = True  # words of two numbers: one half, one whole, one half

    assert int(held_bits_digest(weight, part)[1]) == 1


def test_the_last_word_counts_though_it_is_not_full():
    weight = torch.randn(5).to(torch.bfloat16)

    total, words = held_bits_digest(weight, torch.ones(5, dtype=torch.bool))

    assert int(words) == num_words(weight.nbytes) == 3
    assert int(total) == int(bits_digest(weight))
