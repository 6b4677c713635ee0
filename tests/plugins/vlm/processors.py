"""Small models of the real families with the real classes of processors, and templates that do what their own do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from rlhf_testing.tiny_gemma3n import SEEN
from rlhf_testing.tiny_gemma3n import WORDS as GEMMA3N
from rlhf_testing.tiny_vision import (
    GEMMA_SIDE,
    MERGE,
    PATCH,
    QWEN,
    TILE,
    tiny_vision_config,
    write_image_processor,
)
from rlhf_testing.tiny_vision_families import GEMMA4_TOKENS, GLM_FAMILIES, MOST_TILES, PIXTRAL_PATCH

LLAVA = (
    "{% for m in messages %}{% if m['role'] != 'system' %}{{ m['role'].upper() + ': ' }}{% endif %}"
    "{% if m['content'] is string %}{{ m['content'] + ' ' }}{% else %}"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] + ' ' }}{% endfor %}"
    "{% endif %}{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""The family's own writes no end behind answers, and shows no content that is a string."""
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] | trim }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<start_of_image>' }}{% else %}{{ part['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}MARKER{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PADS = CHATML.replace("MARKER", "<|vision_start|><|image_pad|><|vision_end|>")
IDEFICS = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] | capitalize }}{{ ': ' }}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST]{% endif %}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}{{ '[IMG]' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% if m['role'] == 'user' %}[/INST]{% else %}{{ eos_token }}{% endif %}{% endfor %}"
)
TEMPLATES = {
    **dict.fromkeys(
        GLM_FAMILIES, CHATML.replace("MARKER", "<|begin_of_image|><|image|><|end_of_image|>")
    ),
    "idefics3": IDEFICS,
    "llava_next": LLAVA,
    "llava_onevision": CHATML.replace("MARKER", "<image>\n"),
    "mistral3": MISTRAL,
    "smolvlm": IDEFICS,
    "llava": LLAVA,
    "gemma3": GEMMA,
    "gemma3n": GEMMA.replace("<start_of_image>", "<image_soft_token>"),
    "gemma4": "{{ bos_token }}" + CHATML.replace("MARKER", "\n\n<|image|>\n\n"),
    "internvl": CHATML.replace("MARKER", "<IMG_CONTEXT>\n"),
    **dict.fromkeys(QWEN, PADS),
}
CUT = {
    "image_token": "<image>",
    "fake_image_token": "<fake_token_around_image>",
    "end_of_utterance_token": "<end_of_utterance>",
}
GLM = {
    "image_token": "<|image|>",
    "video_token": "<|video|>",
    **{
        f"{kind}_{end}_token": f"<|{word}_of_{kind}|>"
        for kind in ("image", "video")
        for end, word in (("start", "begin"), ("end", "end"))
    },
}
NAMED = {
    **dict.fromkeys(GLM_FAMILIES, GLM),
    "idefics3": CUT,
    "llava_next": {"image_token": "<image>"},
    "llava_onevision": {"image_token": "<image>", "video_token": "<video>"},
    "mistral3": {
        "image_token": "[IMG]",
        "image_break_token": "[IMG_BREAK]",
        "image_end_token": "[IMG_END]",
    },
    "smolvlm": {**CUT, "global_image_token": "<global-img>"},
    "llava": {"image_token": "<image>"},
    "gemma3": {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    },
    "gemma3n": {
        f"{kind}_token": word
        for kind, word in zip(("boi", "boa", "eoi", "image", "eoa", "audio"), GEMMA3N, strict=True)
    },
    "gemma4": {
        **{"boi_token": "<|image>", "image_token": "<|image|>", "eoi_token": "<image|>"},
        **{"boa_token": "<|audio>", "audio_token": "<|audio|>", "eoa_token": "<audio|>"},
        "video_token": "<|video|>",
    },
    "internvl": {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    },
    **{family: {} for family in QWEN},
}
"""Control tokens by the names under which a processor asks its tokenizer for them."""
WORDS = (
    *("<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)


def tokenizer_of(family: str) -> PreTrainedTokenizerFast:
    """A byte-pair tokenizer in which line breaks merge, and which begins texts with its first token where the family's
    does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        ["\n\nthe\n\n\ncat\n\n\n\nis a cat. \n\n the USER: red ASSISTANT: " * 40], trainer
    )
    if family in ("llava", "gemma3", "gemma3n", "gemma4", "idefics3", "llava_next", "mistral3"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        additional_special_tokens=list(WORDS),
        extra_special_tokens=NAMED[family],
    )
    made.add_special_tokens({"additional_special_tokens": [*WORDS, *NAMED[family].values()]})
    made.chat_template = TEMPLATES[family]
    return made


def write_model(folder: Path, family: str) -> Path:
    """Write what a model's folder has but the weights."""
    tokenizer = tokenizer_of(family)
    config = tiny_vision_config(
        family,
        tokenizer,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        vision_layers=2,
        initializer_range=0.02,
        tied=False,
    )
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_image_processor(folder, family)
    return folder


def processor_of(folder: Path, family: str) -> Any:
    """The real processor of a family, beside the model of ``write_model``."""
    from transformers import AutoImageProcessor, AutoTokenizer

    parts = {
        "image_processor": AutoImageProcessor.from_pretrained(folder, backend="pil"),
        "tokenizer": AutoTokenizer.from_pretrained(folder),
    }
    if family == "llava":
        from transformers import LlavaProcessor

        # As the files of LLaVA 1.5 say: the feature of the whole image is counted, and then left out.
        return LlavaProcessor(
            **parts,
            patch_size=PATCH * MERGE,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        )
    if family == "gemma3":
        from transformers import Gemma3Processor

        return Gemma3Processor(**parts, image_seq_length=(GEMMA_SIDE // PATCH // MERGE) ** 2)
    if family == "gemma3n":
        from transformers import Gemma3nAudioFeatureExtractor, Gemma3nProcessor

        hears = Gemma3nAudioFeatureExtractor()
        return Gemma3nProcessor(**parts, feature_extractor=hears, image_seq_length=SEEN)
    if family == "gemma4":
        from transformers import Gemma4AudioFeatureExtractor, Gemma4Processor, Gemma4VideoProcessor

        sides = {
            "patch_size": PATCH,
            "pooling_kernel_size": MERGE,
            "max_soft_tokens": GEMMA4_TOKENS,
        }
        return Gemma4Processor(
            **parts,
            feature_extractor=Gemma4AudioFeatureExtractor(),
            video_processor=Gemma4VideoProcessor(**sides),
        )
    if family == "internvl":
        from transformers import InternVLProcessor, InternVLVideoProcessor

        video = InternVLVideoProcessor(size={"height": TILE, "width": TILE})
        return InternVLProcessor(
            **parts, video_processor=video, image_seq_length=(TILE // PATCH // MERGE) ** 2
        )
    if family == "idefics3":
        from transformers import Idefics3Processor

        return Idefics3Processor(**parts, image_seq_len=(TILE // PATCH // MERGE) ** 2)
    if family == "smolvlm":
        from transformers import SmolVLMProcessor
        from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor

        return SmolVLMProcessor(
            **parts,
            video_processor=SmolVLMVideoProcessor(),
            image_seq_len=(TILE // PATCH // MERGE) ** 2,
        )
    if family == "mistral3":
        from transformers import PixtralProcessor

        return PixtralProcessor(**parts, patch_size=PIXTRAL_PATCH, spatial_merge_size=MERGE)
    if family == "llava_next":
        from transformers import LlavaNextProcessor

        return LlavaNextProcessor(
            **parts,
            patch_size=PATCH * MERGE,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        )
    if family == "llava_onevision":
        from transformers import LlavaOnevisionProcessor, LlavaOnevisionVideoProcessor

        return LlavaOnevisionProcessor(
            **parts,
            video_processor=LlavaOnevisionVideoProcessor(size={"height": TILE, "width": TILE}),
            num_image_tokens=(TILE // PATCH) ** 2,
            vision_feature_select_strategy="full",
            vision_aspect_ratio=f"anyres_max_{MOST_TILES}",
        )
    if family in GLM_FAMILIES:
        from transformers import Glm4vProcessor, Glm46VProcessor
        from transformers.models.glm4v.video_processing_glm4v import Glm4vVideoProcessor
        from transformers.models.glm46v.video_processing_glm46v import Glm46VVideoProcessor

        sides = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2}
        if family != "glm46v":
            return Glm4vProcessor(**parts, video_processor=Glm4vVideoProcessor(**sides))
        return Glm46VProcessor(**parts, video_processor=Glm46VVideoProcessor(**sides))
    from transformers import Qwen2_5_VLProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor

    video = Qwen2VLVideoProcessor(patch_size=PATCH, merge_size=MERGE, temporal_patch_size=2)
    if family == "qwen2_vl":
        return Qwen2VLProcessor(**parts, video_processor=video)
    if family == "qwen2_5_vl":
        return Qwen2_5_VLProcessor(**parts, video_processor=video)
    from transformers import Qwen3VLProcessor, Qwen3VLVideoProcessor

    return Qwen3VLProcessor(
        **parts,
        video_processor=Qwen3VLVideoProcessor(
            patch_size=PATCH, merge_size=MERGE, temporal_patch_size=2
        ),
    )
