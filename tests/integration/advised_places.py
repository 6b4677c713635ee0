"""Where messages that name an option are raised, and who follows what they tell to do."""

FOLLOWED = {
    "rlhf_cli/data.py:check": "tokens without a model",
    "rlhf_config/train.py:_check_sleep": "train: sleep beside rollouts ahead",
    "rlhf_core/capabilities.py:_check_bound": "train: one sample for a group's estimator",
    "rlhf_plugin_inference/chat/command.py:chat": "chat with a dry run",
    "rlhf_plugin_plan/run_prediction.py:_image_tokens": "images of a text model",
    "rlhf_plugin_plan/run_prediction.py:_spread": "a spread of no lengths",
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
followed by their place are in ``advised_calls``, and those of calls in ``advised_theme``."""

GPU = "DeepCompile works on NVIDIA GPUs alone, and there alone are layers compiled as one graph"
CLUSTER = "it is said on a machine that is no node of a cluster of other machines"

EXCUSED = {
    "rlhf_plugin_deepspeed/compile/deep_compile.py:_compiling": GPU,
    "rlhf_plugin_ray/cluster/joining.py:require_welcome": CLUSTER,
}
"""Place -> why no test follows its message. Each is here by its own name: what needs neither a GPU nor a cluster of
several machines is followed."""
