"""What was run of each family with the engine ``vllm``: the column of the table in docs/models.md.

A family that is not here was not tried. docs/vllm.md says with which version, on what, and how near it came.
"""

RUN = {
    **dict.fromkeys(("gemma3_text", "llama", "qwen3", "qwen3_moe", "qwen2_moe"), "yes"),
    **dict.fromkeys(("internvl", "qwen2_5_vl", "qwen3_vl"), "yes"),
    **dict.fromkeys(("deepseek_v3", "gemma3", "llava", "mixtral"), "no"),
}
NOT_TRIED = "not tried"
