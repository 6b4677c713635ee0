"""Where messages that name an option are raised, and who follows what they tell to do."""

FOLLOWED = {
    "rlhf_cli/data.py:check": "tokens without a model",
    "rlhf_config/checks/sleep_rules.py:check": "train: sleep beside rollouts ahead",
    "rlhf_core/capabilities.py:_check_need": "train: one sample for a group's estimator",
    "rlhf_plugin_inference/chat/command.py:chat": "chat with a dry run",
    "rlhf_plugin_plan/run_prediction.py:_image_tokens": "images of a text model",
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
"""Module and function -> the case of ``test_advice_of_commands``, whose error is one of that place. Those that are
followed by their place are in ``advised_calls``."""

ROWS = "what has to be mended is a row, a split, a chat template or a tokenizer, and no word of the command"
IMAGES = "what has to be mended is an image, or it is about a family of models; the tests of the module have it"
WEIGHTS = "it needs weights of a kind, such as a quantized base or experts, which the tests of the module have"
RUNNING = "it is said while a run, a server or a request goes on, after its start"
FOLDER = "it is about files that are there or gone, and the fix is another name; the tests of the module write them"
VALUE = "it says that a value is not there; which other one is meant is the user's to say"
GPUS = "it needs GPUs of this machine"
PACKAGE = "it needs DeepSpeed, FSDP, Ray or vLLM at work, which the tests of the package have"

REASONS = {
    "rlhf_cli/env/": VALUE,
    "rlhf_cli/gpus.py": GPUS,
    "rlhf_cli/quickstart/": FOLDER,
    "rlhf_cli/show.py": FOLDER,
    "rlhf_config/checks/features.py:check_routes": WEIGHTS,
    "rlhf_core/plugins.py": "it is about what pip has installed",
    "rlhf_data/chat/": ROWS,
    "rlhf_data/learned/": ROWS,
    "rlhf_data/made/": ROWS,
    "rlhf_data/prompts.py": ROWS,
    "rlhf_data/tokenizer.py": WEIGHTS,
    "rlhf_guard/environments/": RUNNING,
    "rlhf_plugin_agents/": RUNNING,
    "rlhf_plugin_algorithms/": RUNNING,
    "rlhf_plugin_deepspeed/": PACKAGE,
    "rlhf_plugin_endpoint/": RUNNING,
    "rlhf_plugin_fsdp/": PACKAGE,
    "rlhf_plugin_inference/chat/": RUNNING,
    "rlhf_plugin_inference/comparing/": FOLDER,
    "rlhf_plugin_inference/evaluate/": FOLDER,
    "rlhf_plugin_inference/serving/": WEIGHTS,
    "rlhf_plugin_lab/": FOLDER,
    "rlhf_plugin_local/": WEIGHTS,
    "rlhf_plugin_loggers/": RUNNING,
    "rlhf_plugin_lora/": WEIGHTS,
    "rlhf_plugin_plan/memory/": WEIGHTS,
    "rlhf_plugin_ray/": PACKAGE,
    "rlhf_plugin_reward_model/": WEIGHTS,
    "rlhf_plugin_sources/": FOLDER,
    "rlhf_plugin_supervised/training/drawn.py": FOLDER,
    "rlhf_plugin_supervised/training/imitation/teacher_rendering.py": FOLDER,
    "rlhf_plugin_vllm/": PACKAGE,
    "rlhf_plugin_vlm/": IMAGES,
    "rlhf_torch/": WEIGHTS,
    "rlhf_trainer/durable/": FOLDER,
    "rlhf_trainer/learning/": RUNNING,
    "rlhf_trainer/loop/": RUNNING,
    "rlhf_trainer/rollouts/": RUNNING,
}
"""Beginning of places -> why no command's words alone bring one of their messages about."""
