"""Tokens, masks, images, features and positions line up for random mixes of text and images, cut ones too.

Rows to learn from are cut to random lengths, before, in and behind images; episodes show images in every turn and end
where there is no room. What is compared with is in ``mixes``, and the plain model of Transformers, unpacked.
"""

import asyncio
import random
from collections.abc import Sequence as Sequences
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tests.plugins.vlm.mixes import (
    Message,
    Scripted,
    Sequence,
    Shown,
    Writer,
    asked,
    conversation,
    limit_of,
    random_image,
    random_words,
    write_row,
)

import rlhf_core.media.reader as media_reader
import rlhf_data.learned.conversations as learned_conversations
import rlhf_data.learned.images as learned_images
import rlhf_plugin_vlm.families.qwen_vl as qwen_vl
import rlhf_torch.rows.packed_rows as packed_rows
from rlhf_core import RLHFError
from rlhf_core.contracts import TrajectoryColumns
from rlhf_core.media import ImageReader, MediaStore, decode
from rlhf_core.media.spans import Expanded, MediaSpan, expanded
from rlhf_data import ConversationColumns, SequenceOptions, load_conversations
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_testing.tiny_vision import QWEN, VISION_FAMILIES
from rlhf_torch.packed.packing import PackedLayout
from rlhf_torch.vision.pictures import PictureReader

CPU = torch.device("cpu")


@dataclass
class Mix:
    """Rows, and what they have to be."""

    rows: TrajectoryColumns
    expected: list[Sequence]


@pytest.fixture(scope="module")
def writer(stage) -> Writer:
    return Writer(stage)


def learned(stage, writer: Writer, folder, draw: random.Random, count: int) -> Mix:
    """Conversations as ``rlhf sft`` reads them, each cut to a length of its own."""
    parts, expected = [], []
    # A file of one conversation may be one without an image.
    images = ImageReader(stage.images.loader, stage.images.tokens, "")
    for index in range(count):
        messages = conversation(draw)
        whole = writer.conversation(messages)
        limit = limit_of(draw, whole)
        found = load_conversations(
            [str(write_row(folder, messages))],
            ConversationColumns(messages_key="messages"),
            SequenceOptions(max_length=limit, on_too_long="truncate"),
            stage.renderer,
            eos=stage.renderer.tokenizer.eos_token_id,
            images=images,
        )
        parts.append(replace(found.columns, uid=np.array([[0, index, 0, 0]])))
        expected.append(whole.cut(limit))
    return Mix(TrajectoryColumns.concatenate(parts), expected)


def played(stage, writer: Writer, draw: random.Random, count: int) -> Mix:
    """Episodes of two samples each, whose observations have images; some end for want of room."""
    shown = {prompt: [asked(draw) for _ in range(draw.randint(1, 3))] for prompt in range(count)}
    # The same tokens, and other images: these two prompts are neighbors, and share nothing behind the first image.
    shown[0] = [Message("user", ("ab", random_image(draw), "cd")), *shown[0][1:]]
    shown[1] = [twin(message, draw) for message in shown[0]]
    answers = {
        (prompt, sample, turn): random_words(draw)
        for prompt, turns in shown.items()
        for sample in range(2)
        for turn in range(len(turns))
    }
    longest = max(len(writer.conversation(turns[:1], asks=True).tokens) for turns in shown.values())
    room = longest + 1 + draw.randrange(60)
    rows = asyncio.run(
        stage.episodes(
            Scripted(writer, answers),
            prompts=count,
            samples=2,
            max_length=room,
            environment=lambda: Shown(shown),
        )
    )
    expected = [
        episode(
            writer,
            shown[prompt],
            [answers[prompt, sample, turn] for turn in range(len(shown[prompt]))],
            room,
        )
        for prompt in range(count)
        for sample in range(2)
    ]
    return Mix(rows, expected)


def twin(message: Message, draw: random.Random) -> Message:
    """The message with other images of the same sizes."""
    shift = draw.randrange(1, 256)
    return Message(
        message.role,
        tuple(
            part if isinstance(part, str) else part.point(lambda value: (value + shift) % 256)
            for part in message.parts
        ),
    )


def episode(writer: Writer, shown: list[Message], answers: list[str], room: int) -> Sequence:
    """The last turn that was asked for: before it there was room, and its answer is as long as it is."""
    messages: list[Message] = []
    reached = Sequence()
    for turn, (question, answer) in enumerate(zip(shown, answers, strict=True)):
        if turn and len(writer.conversation([*messages, question], asks=True).tokens) >= room:
            break
        messages += [question, Message("assistant", (answer,))]
        reached = writer.conversation(messages)
        reached.tokens.pop()  # the line break behind an answer comes with the next question
    return reached


def check_rows(mix: Mix, stage, writer: Writer) -> None:
    """Tokens, masks and images of each row are those of the reference."""
    store = MediaStore(stage.media)
    assert len(mix.rows) == len(mix.expected)
    masks = np.split(mix.rows.action_mask, mix.rows.token_offsets[1:-1])
    for row, expected in enumerate(mix.expected):
        assert mix.rows.tokens_of(row).tolist() == expected.ids, row
        assert masks[row].tolist() == [one.is_learned for one in expected.tokens], row
        spans = mix.rows.media_of(row)
        assert len(spans) == len(expected.images), row
        owners = [None] * len(expected.tokens)
        for number, (span, image) in enumerate(zip(spans, expected.images, strict=True)):
            assert decode(store.read(span.image)).tobytes() == image.tobytes(), (row, number)
            owners[span.start : span.end] = [number] * span.length
        assert owners == [one.image for one in expected.tokens], row


def check_packed(
    mix: Mix, stage, writer: Writer, rows: Sequences[int], *, share_prompts: bool
) -> None:
    """Each feature in packed rows stands on its token, positions are the model's, and what is shared is equal."""
    reader = PictureReader(stage.family, MediaStore(stage.media))
    packed = packed_rows.pack_rows(
        mix.rows, np.array(rows), CPU, share_prompts=share_prompts, reader=reader
    )
    expected = [mix.expected[row] for row in rows]
    flat = [(row, one) for row, sequence in enumerate(expected) for one in sequence.tokens]
    kept = list(range(len(flat)))
    if hasattr(packed.layout, "place"):
        place, kept = packed.layout.place.tolist(), packed.layout.kept.tolist()
        read = [prefix for sequence in expected for prefix in prefixes(sequence)]
        assert [read[kept[place[index]]] for index in range(len(flat))] == read
    assert packed.input_ids.tolist() == [flat[index][1].token for index in kept]
    positions = torch.cat([writer.positions(sequence) for sequence in expected], dim=-1)
    assert torch.equal(packed.position_ids, positions[..., kept])
    # Pixels of the feature on each token, and which of the image's features it is.
    found: dict[int, tuple[dict[str, torch.Tensor], int]] = {}
    if packed.images is not None:
        made = [
            (one.inputs, number)
            for one in packed.images.pictures
            for number in range(one.num_features)
        ]
        pairs = zip(packed.images.places.tolist(), packed.images.sources.tolist(), strict=True)
        found = {place: made[source] for place, source in pairs}
    wanted = {place for place, index in enumerate(kept) if flat[index][1].feature is not None}
    assert found.keys() == wanted
    for place, (inputs, number) in found.items():
        row, one = flat[kept[place]]
        assert number == one.feature
        for name, pixels in writer.pixels(expected[row].images[one.image]).items():
            assert torch.equal(inputs[name], pixels), (row, place)
    check_blocks(packed, flat, reader.family.looks_ahead)


def prefixes(sequence: Sequence) -> list[int]:
    """For each token what was read up to it, as a number."""
    read = 0
    found = []
    for one in sequence.tokens:
        image = None if one.image is None else sequence.images[one.image].tobytes()
        read = hash((read, one.token, image, one.feature))
        found.append(read)
    return found


def check_blocks(packed, flat, looks_ahead: bool) -> None:
    """Where a family looks ahead, the features of an image are one block, and nothing else is in one."""
    if not isinstance(packed.layout, PackedLayout):
        return
    blocks = packed.layout.blocks
    if not looks_ahead or packed.images is None:
        assert blocks is None
        return
    own: dict[int, set] = {}
    for block, (row, one) in zip(blocks.numbers.tolist(), flat, strict=True):
        assert (block >= 0) == (one.feature is not None)
        if block >= 0:
            own.setdefault(block, set()).add((row, one.image))
    images = {name for names in own.values() for name in names}
    assert all(len(names) == 1 for names in own.values())
    assert len(images) == len(own)


def check(mix: Mix, stage, writer: Writer, draw: random.Random) -> None:
    check_rows(mix, stage, writer)
    order = list(range(len(mix.rows)))
    check_packed(mix, stage, writer, order, share_prompts=False)
    check_packed(mix, stage, writer, order, share_prompts=True)
    some = sorted(draw.sample(order, (len(order) + 1) // 2))
    check_packed(mix, stage, writer, some, share_prompts=False)


def test_random_mixes_line_up(stage, writer, tmp_path):
    draw = random.Random(20)

    check(learned(stage, writer, tmp_path, draw, 3), stage, writer, draw)
    check(played(stage, writer, draw, 2), stage, writer, draw)


@pytest.mark.slow
def test_rows_are_cut_everywhere_around_images(writer):
    draw = random.Random(3)
    found = set()
    for _ in range(60):
        whole = writer.conversation(conversation(draw))
        limit = limit_of(draw, whole)
        ends = [
            whole.tokens[index].image for index in (limit - 1, limit) if index < len(whole.tokens)
        ]
        found.add(tuple(one is not None for one in ends))
        found.add("in" if len(whole.cut(limit).tokens) < limit else "elsewhere")

    before, behind, nowhere, none = (False, True), (True, False), (False,), (False, False)
    assert found >= {before, behind, nowhere, none, "in"}


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "rounds"), [(1, 1), pytest.param(2, 6, marks=pytest.mark.matrix)])
def test_more_mixes_line_up_and_give_what_transformers_gives(
    stage, backend, writer, tmp_path, seed, rounds
):
    """Log-probs of packed rows are those of the plain model on each sequence alone: a feature that stood elsewhere, or
    an image of another row, would move them."""
    draw = random.Random(seed)
    for _ in range(rounds):
        for mix in (learned(stage, writer, tmp_path, draw, 8), played(stage, writer, draw, 4)):
            check(mix, stage, writer, draw)
            own = stage.own_logprobs(mix.rows)
            np.testing.assert_allclose(backend.logprobs(mix.rows), own, atol=1e-5)
            shared = stage.backend(TorchBackendConfig(device="cpu", share_prompts=True))
            np.testing.assert_allclose(shared.logprobs(mix.rows), own, atol=1e-5)


def expanded_twice(token_ids, images, tokens):
    """The images' tokens are expanded by both sides."""
    once = expanded(token_ids, images, tokens)
    ids, spans = [], []
    behind = 0
    for span in once.spans:
        ids += once.token_ids[behind : span.start]
        own = once.token_ids[span.start : span.end] * 2
        spans.append(MediaSpan(start=len(ids), length=len(own), image=span.image))
        ids += own
        behind = span.end
    return Expanded((*ids, *once.token_ids[behind:]), tuple(spans))


def half_an_image(right):
    """A row is cut wherever the limit is, and the image goes with half of its tokens left."""

    def cut(tokens, options):
        whole = right(replace(tokens, media=()), options)
        limit = len(whole.token_ids)
        return replace(whole, media=tuple(span for span in tokens.media if span.end <= limit))

    return cut


def features_of_the_next_image(right):
    """Each image gets the features of another one of the micro-batch."""

    def packed(rows, device):
        images = right(rows, device)
        if images is None:
            return None
        turned = (*images.pictures[1:], *images.pictures[:1])
        return replace(images, pictures=turned)

    return packed


def features_a_token_late(right):
    def packed(rows, device):
        images = right(rows, device)
        return None if images is None else replace(images, places=images.places + 1)

    return packed


def one_block(right):
    """All images of a row see each other ahead."""

    def blocks(self, rows, num_tokens, device):
        own = right(self, rows, num_tokens, device)
        return None if own is None else own._replace(numbers=own.numbers.clamp(max=0))

    return blocks


def positions_of_text(self, num_tokens, spans, pictures):
    return torch.arange(num_tokens).expand(3, -1)


FAULTS = {
    "expanded twice": (media_reader, "expanded", lambda right: expanded_twice),
    "half an image": (learned_conversations, "cut_to", half_an_image),
    "learned turns stay where they were": (
        learned_images,
        "moved",
        lambda right: lambda places, spans: places,
    ),
    "features of the next image": (packed_rows, "packed_images", features_of_the_next_image),
    "features a token late": (packed_rows, "packed_images", features_a_token_late),
    "positions of text": (qwen_vl.QwenVl, "positions", lambda right: positions_of_text),
    "all images are one block": (PictureReader, "blocks", one_block),
    "images have no names": (
        TrajectoryColumns,
        "tokens_with_images",
        lambda right: (
            lambda self: [self.tokens_of(row).astype(np.int64) for row in range(len(self))]
        ),
    ),
}


ONLY = {"positions of text": QWEN, "all images are one block": ("gemma3",)}
"""Families that have what a fault breaks, where not all do."""
PLANTED = [
    # Each family comes with a third of the faults, and each fault with a third of the families that have it.
    pytest.param(
        family, fault, marks=[] if fault in ONLY or (row + column) % 3 == 0 else pytest.mark.matrix
    )
    for row, fault in enumerate(FAULTS)
    for column, family in enumerate(VISION_FAMILIES)
    if family in ONLY.get(fault, VISION_FAMILIES)
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "fault"), PLANTED, indirect=["family"])
def test_a_planted_fault_is_found(stage, writer, tmp_path, monkeypatch, fault):
    owner, name, plant = FAULTS[fault]
    monkeypatch.setattr(owner, name, plant(getattr(owner, name)))
    draw = random.Random(20)

    with pytest.raises((AssertionError, RLHFError)):  # noqa: PT012  # either kind of rows may show it
        check(learned(stage, writer, tmp_path, draw, 4), stage, writer, draw)
        check(played(stage, writer, draw, 2), stage, writer, draw)
