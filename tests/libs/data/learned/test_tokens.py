"""Which tokens of a text are learned, for tokenizers of every sort."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from rlhf_core.errors import DataError
from rlhf_data.chat.control_words import ControlText
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_data.learned.learned_text import LearnedText, Span, plain_text
from rlhf_data.learned.tokens import SpanTokenizer
from rlhf_data.rows import RowProblem
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import tiny_tokenizer

SPECIAL = ["<unk>", "<bos>", "<eos>"]
CORPUS = ["the cat sat on the mat. the cat said hi\n", "hello the cat, hello\n\n"] * 10


def fast(tokenizer):
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>"
    )


def byte_level(*, trim=False):
    """The tokens of GPT-2 and most others; with ``trim`` a token's characters leave out the blank before them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=350, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return fast(tokenizer)


def metaspace():
    """The tokens of Llama 2 and Mistral: blanks are a letter, and one is put before the text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=60, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
        ),
    )
    return fast(tokenizer)


def lower_case():
    """Words of lower case alone, as in BERT."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(vocab_size=80, special_tokens=SPECIAL, show_progress=False),
    )
    return fast(tokenizer)


TOKENIZERS = {
    "characters": tiny_tokenizer,
    "byte level": byte_level,
    "byte level, trimmed": lambda: byte_level(trim=True),
    "metaspace": metaspace,
    "lower case": lower_case,
}
MADE = {name: make() for name, make in TOKENIZERS.items()}


def tokenize(tokenizer, *texts, eos=2):
    return SpanTokenizer(TokenizerRenderer(tokenizer), eos=eos).tokenize(texts)


def learned(text, *parts):
    """A text and the places of parts of it."""
    spans = [Span(text.index(part), text.index(part) + len(part)) for part in parts]
    return LearnedText(text=text, spans=tuple(spans))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_tokens_of_a_part_are_the_part(name):
    text = learned("<bos>hello the cat<bos> the cat sat<eos>hi", " the cat sat<eos>")

    (tokens,) = tokenize(MADE[name], text)

    (start, end) = tokens.turns[0]
    shown = MADE[name].decode(tokens.token_ids[start:end])
    assert shown.strip() == "the cat sat<eos>" or (
        name == "lower case" and shown == "the cat sat <eos>"
    )
    assert tokens.overhang[0, 1] == 0


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_ids_are_those_of_the_whole_text(name):
    """Of several texts at once, each alone."""
    texts = ["<bos>the cat<eos>", "hello<eos>", "the   cat\n\nsat  <eos> "]

    found = tokenize(MADE[name], *(learned(text, "<eos>") for text in texts))

    for text, tokens in zip(texts, found, strict=True):
        ids = MADE[name](text, add_special_tokens=False)["input_ids"]
        assert tokens.token_ids.tolist() == ids
        assert tokens.turns.tolist() == [[ids.index(2), ids.index(2) + 1]]


def slow_mask(tokenizer, text, span):
    """Whether a character of the span is one of the token's, token by token."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask, behind = [], 0
    for start, end in encoded["offset_mapping"]:
        own = range(min(start, behind), end)
        mask.append(any(span.start <= character < span.end for character in own))
        behind = max(behind, end)
    return mask


parts = st.text(alphabet=st.sampled_from(" thecasi\n.é😀ñ"), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("name", ["byte level", "byte level, trimmed"])
@given(before=parts, part=parts.filter(str.strip), after=parts)
def test_any_part_has_the_tokens_that_hold_a_character_of_it(name, before, part, after):
    """Also letters of several bytes, each a token, and blanks that no token has."""
    text = LearnedText(
        text=before + part + after, spans=(Span(len(before), len(before) + len(part)),)
    )
    expected = slow_mask(MADE[name], text.text, text.spans[0])

    (tokens,) = tokenize(MADE[name], text)

    if isinstance(tokens, RowProblem):
        # A letter's bytes may be split by a merge with the text beside it.
        assert tokens.kind == "tokens of another text"
        return
    mask = np.zeros(len(expected), dtype=bool)
    mask[slice(*tokens.turns[0])] = True
    assert mask.tolist() == expected


@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_a_tokenizer_does_not_know_is_no_problem(name):
    text = learned("<bos>The Cat<bos> Ångström ﬁ 漢<eos>", " Ångström ﬁ 漢<eos>")

    (tokens,) = tokenize(MADE[name], text)

    assert not isinstance(tokens, RowProblem)
    assert tokens.turns[0, 1] == len(tokens.token_ids)


def test_tokens_that_swallow_blanks_belong_to_the_template():
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [AddedToken("<|a|>", rstrip=True, special=True)]}
    )

    (tokens,) = tokenize(tokenizer, learned("<|a|>\n\nhi<eos>", "\nhi<eos>"))

    assert tokenizer.decode(tokens.token_ids[slice(*tokens.turns[0])]) == "hi<eos>"


def test_two_turns_never_share_a_token():
    """The tokenizer joins the end of one with the beginning of the other; the token is the first one's."""
    tokenizer = MADE["byte level"]
    text = LearnedText(text="hello the", spans=(Span(1, 7), Span(7, 9)))

    (tokens,) = tokenize(tokenizer, text)

    if isinstance(tokens, RowProblem):
        assert tokens.kind == "no token"
    else:
        assert tokens.turns[0, 1] <= tokens.turns[1, 0]


def test_the_characters_that_a_turns_last_token_has_behind_it_are_counted():
    text = LearnedText(text="hello", spans=(Span(1, 3),))

    (tokens,) = tokenize(MADE["byte level"], text)

    assert tokens.token_ids.tolist() == MADE["byte level"].encode("hello")
    assert tokens.overhang.tolist() == [[1, 2]]


def test_a_turn_without_a_token_is_a_problem():
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [AddedToken("<|a|>", rstrip=True, special=True)]}
    )

    good, bad = tokenize(tokenizer, learned("<|a|>hi", "hi"), learned("<|a|>   hi", "   "))

    assert good.turns.tolist() == [[1, 3]]
    assert isinstance(bad, RowProblem)
    assert bad.kind == "no token"


def test_a_text_without_any_token_is_a_problem():
    """BERT's tokenizers drop control characters."""
    (problem,) = tokenize(MADE["lower case"], plain_text(ControlText(text="\x01\x02")))

    assert isinstance(problem, RowProblem)
    assert problem.kind == "no token"


def test_plain_text_is_started_and_ended_once():
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 1)]
    )
    plain = tokenizer("hello cat", add_special_tokens=False)["input_ids"]

    texts = [("hello cat", 5), ("<bos>hello cat<eos>", 10)]
    found = tokenize(
        tokenizer, *(plain_text(ControlText(text=text), start) for text, start in texts)
    )

    for tokens in found:
        assert tokens.token_ids.tolist() == [1, *plain, 2]
        assert tokens.turns.tolist() == [[2, len(plain) + 2]]


class Shifted:
    """A tokenizer that says of each token that it is one character further on."""

    def __call__(self, *args, **options):
        encoded = super().__call__(*args, **options)
        if options.get("return_offsets_mapping"):
            encoded["offset_mapping"] = [
                [(start + 1, end + 1) for start, end in row] for row in encoded["offset_mapping"]
            ]
        return encoded


def test_a_tokenizer_that_misplaces_its_tokens_is_found_out():
    tokenizer = tiny_tokenizer()
    tokenizer.__class__ = type("ShiftedTokenizer", (Shifted, type(tokenizer)), {})

    (problem,) = tokenize(tokenizer, learned("hellocat<eos>", "cat<eos>"))

    assert isinstance(problem, RowProblem)
    assert "the answer is 'cat<eos>'; the tokenizer misplaces its tokens" in problem.reason


class Letters(PreTrainedTokenizer):
    """A tokenizer written in Python, which does not say where its tokens are."""

    def __init__(self, **options):
        super().__init__(unk_token="?", **options)

    @property
    def vocab_size(self):
        return 128

    def get_vocab(self):
        return {chr(index): index for index in range(128)} | self.added_tokens_encoder

    def _tokenize(self, text):
        return list(text)

    def _convert_token_to_id(self, token):
        return ord(token) % 128

    def _convert_id_to_token(self, index):
        return chr(index)


def test_a_tokenizer_without_characters_is_refused():
    with pytest.raises(DataError, check=has_code("tokenizer/no-offsets")):
        SpanTokenizer(TokenizerRenderer(Letters()), eos=0)


def test_nothing_is_tokenized_to_nothing():
    assert tokenize(MADE["characters"]) == []
