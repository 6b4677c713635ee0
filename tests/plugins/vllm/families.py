"""What was run of each family with the engine ``vllm``: the column of the table in docs/models.md.

A family that is not here was not tried. docs/vllm.md says with which version, on what, and how near it came.
"""

SERVED = (
    *(
        "gemma2",
        "gemma4_text",
        "glm",
        "gpt_oss",
        "granite",
        "mistral",
        "mixtral",
        "olmo3",
        "phi3",
        "qwen2",
        "qwen2_moe",
    ),
    *(
        "gemma4",
        "glm4v",
        "internvl",
        "llava",
        "llava_next",
        "llava_onevision",
        "mistral3",
        "qwen2_vl",
    ),
    *("qwen2_5_vl", "qwen3_vl_moe", "smolvlm"),
)
"""Families that ``test_families.py`` runs, in float32 on a CPU."""
RUN = {
    **dict.fromkeys(SERVED, "yes"),
    **dict.fromkeys(("gemma3_text", "llama", "qwen3", "qwen3_moe", "qwen3_vl"), "yes"),
    **dict.fromkeys(("lfm2", "qwen3_5"), "on a GPU"),
    "cohere2": "within its window",
    "gemma3": "on a GPU, within its window",
    **dict.fromkeys(("deepseek_v3", "gemma3n_text"), "no"),
}
NOT_TRIED = "not tried"
