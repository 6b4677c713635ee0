"""Where messages that name an option are raised, and who follows what they tell to do."""

FOLLOWED = {
    "rlhf_cli/data.py:check": "tokens without a model",
    "rlhf_config/checks/sleep_rules.py:check": "train: sleep beside rollouts ahead",
    "rlhf_core/capabilities.py:_check_need": "train: one sample for a group's estimator",
    "rlhf_plugin_inference/chat/command.py:chat": "chat with a dry run",
    "rlhf_plugin_plan/command.py:_image_tokens": "images of a text model",
    "rlhf_plugin_plan/model/configs.py:_find": "a plan without a model",
    "rlhf_plugin_reward_model/serving/command.py:_check_reach": "no such server",
    "rlhf_plugin_supervised/training/imitation/distill_options.py:_check": "distill: no teacher",
    "rlhf_plugin_supervised/training/imitation/distill_options.py:_check_rendering": (
        "distill: another rendering of images"
    ),
    "rlhf_plugin_supervised/training/imitation/sft_options.py:_check": (
        "sft: a smoothed target of another loss"
    ),
    "rlhf_plugin_supervised/training/reward_models/rm_options.py:_check": (
        "rm: margins of a loss without"
    ),
    "rlhf_plugin_tools/offered.py:_toolbox": "tools of no tool",
}
"""Module and function -> the case of ``test_advice_of_commands``, whose error is one of that place."""

ROWS = "it is said of a row of data, which the tests of the module write; the words of a command do not mend a row"
IMAGES = "it needs rows with images and a model that reads them, which the tests of the module have"
WEIGHTS = "it needs weights, or a GPU or several ranks, which the tests of the module have"
RUNNING = "it is said while a run, a server or a request goes on, after its start"
FOLDER = "it is about files that are there or gone, and the fix is another name; the tests of the module write them"
WORD = "it says which words an option of one word takes, and has no other advice"

REASONS = {
    "rlhf_cli/check.py": WORD,
    "rlhf_cli/env/": WORD,
    "rlhf_cli/gpus.py": WEIGHTS,
    "rlhf_cli/metrics_table.py": WORD,
    "rlhf_cli/new.py": WORD,
    "rlhf_cli/plugins_command.py": WORD,
    "rlhf_cli/quickstart/": FOLDER,
    "rlhf_cli/show.py": FOLDER,
    "rlhf_cli/show_metrics.py": FOLDER,
    "rlhf_cli/template.py": FOLDER,
    "rlhf_cli/training.py": WORD,
    "rlhf_config/checks/features.py:check_routes": WEIGHTS,
    "rlhf_config/flags.py": WORD,
    "rlhf_core/media/": IMAGES,
    "rlhf_core/plugins.py": "it is about what pip has installed",
    "rlhf_core/storage/": FOLDER,
    "rlhf_data/arrow_sets.py": ROWS,
    "rlhf_data/chat/": ROWS,
    "rlhf_data/forms/": ROWS,
    "rlhf_data/held_out/": ROWS,
    "rlhf_data/learned/": ROWS,
    "rlhf_data/made/": ROWS,
    "rlhf_data/prompts.py": ROWS,
    "rlhf_data/responses.py": ROWS,
    "rlhf_data/row_images.py": IMAGES,
    "rlhf_data/rows.py": ROWS,
    "rlhf_data/tokenizer.py": WEIGHTS,
    "rlhf_guard/environments/": RUNNING,
    "rlhf_plugin_agents/": RUNNING,
    "rlhf_plugin_algorithms/": RUNNING,
    "rlhf_plugin_deepspeed/": WEIGHTS,
    "rlhf_plugin_endpoint/": RUNNING,
    "rlhf_plugin_fsdp/": WEIGHTS,
    "rlhf_plugin_inference/chat/": RUNNING,
    "rlhf_plugin_inference/comparing/": FOLDER,
    "rlhf_plugin_inference/evaluate/": FOLDER,
    "rlhf_plugin_inference/generate/": FOLDER,
    "rlhf_plugin_inference/serving/": WEIGHTS,
    "rlhf_plugin_lab/": FOLDER,
    "rlhf_plugin_local/": WEIGHTS,
    "rlhf_plugin_loggers/": RUNNING,
    "rlhf_plugin_lora/": WEIGHTS,
    "rlhf_plugin_plan/machine/": WORD,
    "rlhf_plugin_plan/memory/": WEIGHTS,
    "rlhf_plugin_plan/model/": FOLDER,
    "rlhf_plugin_plan/prediction.py": WEIGHTS,
    "rlhf_plugin_ray/": WEIGHTS,
    "rlhf_plugin_reward_model/": WEIGHTS,
    "rlhf_plugin_sources/": FOLDER,
    "rlhf_plugin_supervised/training/drawn.py": FOLDER,
    "rlhf_plugin_supervised/training/imitation/distill.py": WEIGHTS,
    "rlhf_plugin_supervised/training/imitation/teacher_rendering.py": FOLDER,
    "rlhf_plugin_tools/offered.py:begin": ROWS,
    "rlhf_plugin_vllm/": WEIGHTS,
    "rlhf_plugin_vlm/": IMAGES,
    "rlhf_torch/": WEIGHTS,
    "rlhf_trainer/durable/": FOLDER,
    "rlhf_trainer/learning/": RUNNING,
    "rlhf_trainer/loop/": RUNNING,
    "rlhf_trainer/rollouts/": RUNNING,
}
"""Beginning of places -> why no command's words alone bring one of their messages about."""
