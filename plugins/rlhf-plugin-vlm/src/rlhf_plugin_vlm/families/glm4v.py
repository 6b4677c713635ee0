"""GLM-4.1V to GLM-4.6V, with experts too: as the Qwen families, with words of their own and areas of all frames.

The processor counts an image as the frames of a video that one patch spans, and its ``size`` bounds the area of all of
them.
"""

from __future__ import annotations

from .qwen_vl import QwenVl


class Glm4v(QwenVl):
    """Implements ``rlhf_torch.vision.family.VisionFamily`` for GLM-4.1V and what has its architecture.

    Raises:
        ConfigError: the processor or the tokenizer is missing, or another model's.
    """

    WORDS = ("<|image|>", "<|video|>")

    @property
    def counted(self) -> int:
        return int(self.processor.temporal_patch_size)
