"""Words of commands that bring a message about, by the place that raises it: whoever follows the message gets further.

A place is here once, with a case for each of its messages that can be followed. What words do not bring about is called
in the modules that ``advised_theme`` lists.
"""

from .advised_files import FILES
from .advised_functions import CALLED

COMMON = {
    "sft": "--model model --data rows.jsonl --steps 1 --train.batch_size 2",
    "dpo": "--model model --data rows.jsonl --steps 1 --train.batch_size 2",
    "distill": "--model model --data rows.jsonl --steps 1 --train.batch_size 2 --teacher.path model",
    "train": "--model model --data rows.jsonl --reward reward.py:score --steps 1 --rollout.batch_size 2 "
    "--rollout.n_samples_per_prompt 2 --rollout.max_new_tokens 3",
    "eval": "--data rows.jsonl --reward reward.py:score",
    "plan": "--model model --data rows.jsonl --reward reward.py:score --steps 1",
}
"""Command -> options that a case has too where it does not set them itself; with an environment, rows and rewards are
none of them."""
PLAYED = "train --executor multi_turn --rollout.max_length 2048 --env"

PLAIN = {"prompt": "1", "response": "2"}
SEEING = "sft --model seeing --model.vision vlm"
AGENT = "train --executor endpoint --rollout.max_length 2048 --rollout.endpoint.agent agents.py:"

LOOKS = " --model seeing --model.vision vlm --data.image_key ''"

TOOLS = {
    "rlhf_cli/check.py:_hooks": ["check exact --kind bogus"],
    "rlhf_cli/check.py:_of_file": ["check reward.py:score"],
    "rlhf_cli/data.py:_format": [
        "data check rows.jsonl --template {prompt} --system-prompt x",
        "data show rows.jsonl --template {prompt} --system-prompt x",
    ],
    "rlhf_cli/env/trying.py:_answers": ["env try frozen_lake --policy x"],
    "rlhf_cli/env/trying.py:_task": [
        "env try frozen_lake --policy constant:left --split x",
        "env try frozen_lake --policy constant:left --task 99999999",
    ],
    "rlhf_cli/gpus.py:_count": ["train --check --gpus 0"],
    "rlhf_cli/metrics_table.py:chosen": ["show run --metrics ,", "show run --metrics men"],
    "rlhf_cli/new.py:_package": ["new plugin other --kind bogus"],
    "rlhf_cli/new.py:write_package": ["new plugin mine --kind reward"],
    "rlhf_cli/plugins_command.py:_hook_of": ["plugins --kind bogus"],
    "rlhf_cli/show.py:_samples_file": ["show nowhere"],
    "rlhf_cli/show.py:copy_images": ["show run --images model/config.json"],
    "rlhf_cli/show.py:read_samples": ["show run --step 9"],
    "rlhf_cli/show.py:show": ["show run --metrics reward/mean --step 1", "show run --table csv"],
    "rlhf_cli/show_metrics.py:_records": ["show nowhere --metrics reward/mean"],
    "rlhf_cli/show_metrics.py:show_metrics": [
        "show run --metrics reward/mean --plot --json",
        "show run --metrics reward/mean --table csv --json",
    ],
    "rlhf_cli/training.py:split_arguments": ["train --check --gpus"],
    "rlhf_config/flags.py:_path": ["train --.x 3 --check"],
    "rlhf_config/flags.py:parse_flags": ["train model --check", "train -x 3 --check"],
    "rlhf_data/forms/recognizing.py:check_name": ["data check rows.jsonl --form bogus"],
    "rlhf_plugin_inference/chat/options.py:_check": [
        "chat model --rollout.min_new_tokens 9 --rollout.max_new_tokens 5 --check"
    ],
    "rlhf_plugin_inference/comparing/command.py:compare": [
        "eval compare evaluated evaluated --level 2",
        "eval compare evaluated evaluated --seed -1",
    ],
    "rlhf_plugin_inference/comparing/results.py:read_results": ["eval compare evaluated nowhere"],
    "rlhf_plugin_lab/command.py:_require_replaceable": [
        "view run --export model",
        "view run --export nowhere/a.html",
        "view run --export rows.jsonl",
    ],
    "rlhf_plugin_lab/audit/command.py:audit": ["audit run --step 2"],
    "rlhf_plugin_lab/audit/command.py:main": ["audit run --samples 0"],
    "rlhf_plugin_lab/audit/loading.py:load": ["audit run --step 1 --model nowhere"],
    "rlhf_plugin_lab/audit/sequences.py:read_sequences": ["audit run --step 9 --model model"],
    "rlhf_plugin_lab/replay/command.py:main": ["replay run --from 1 --to 1 --out model"],
    "rlhf_plugin_lab/replay/options.py:_refuse_given": ["replay run --from 1 --to 1 --output x"],
    "rlhf_plugin_lab/replay/span.py:find_span": [
        "replay run --from 2 --to 1",
        "replay run --from 1 --to 99",
    ],
    "rlhf_plugin_lab/command.py:_wanted": ["view run --export new.html --steps x"],
    "rlhf_plugin_lab/command.py:main": [
        "view run --export new.html --max-mb 0",
        "view run --export new.html --port 99999",
        "view run --export-traces new.jsonl --export new.html",
    ],
    "rlhf_plugin_lab/traces/export.py:export_traces": [
        "view run --export-traces nowhere/new.jsonl",
        "view run --export-traces rows.jsonl",
        "view run --export-traces new.jsonl --steps 9",
    ],
    "rlhf_plugin_lab/paper/contents.py:require_run": [
        "view nowhere --export new.html",
        "view model --export new.html",
    ],
    "rlhf_plugin_loggers/curve_command.py:_drawn": ["curve nowhere"],
    "rlhf_plugin_plan/machine/hardware.py:find_fleet": ["plan --gpus x"],
    "rlhf_plugin_plan/machine/hardware.py:find_gpu": ["plan --gpu x"],
    "rlhf_plugin_plan/memory/placement.py:_kinds_of": [
        "plan --runtime ray --backend deepspeed --runtime.ray.gpus_per.policy 2 --runtime.ray.colocate none --nodes 1"
    ],
    "rlhf_trainer/loop/sleeping.py:asleep_while_it_learns": [
        "train --runtime ray --backend deepspeed --runtime.sleep always --runtime.ray.colocate none --dry-run"
    ],
    "rlhf_plugin_plan/memory/placement.py:place": [
        "plan --runtime ray --backend deepspeed --runtime.ray.ranks.policy 64 --nodes 2"
    ],
    "rlhf_plugin_plan/prediction.py:require_sane": [
        "plan --prompt-tokens 90000 --response-tokens 90000"
    ],
    "rlhf_plugin_plan/prediction.py:with_sleep": [
        "plan --runtime ray --backend deepspeed --runtime.sleep always --runtime.ray.colocate none"
    ],
}
"""Commands that end by themselves, in a folder with a run and an evaluation."""

STARTS = {
    "rlhf_cli/gpus.py:gpu_layers": ["train --gpus 4"],
    "rlhf_core/storage/run_folder.py:claim": ["train --output run"],
    "rlhf_trainer/loop/resume.py:_point": [
        "train --output run --resume.checkpoint other/checkpoints/step-00000002"
    ],
    "rlhf_data/made/splits.py:_evaluated": [f"{PLAYED} played.py:Endless"],
    "rlhf_data/made/splits.py:training_parts": [f"{PLAYED} played.py:Untrained"],
    "rlhf_plugin_algorithms/optimizers/muon.py:parameter_groups": [
        "train --optim muon --actor.muon.adam_names weight"
    ],
    "rlhf_plugin_algorithms/samplers/by_column.py:begin": [
        f"{PLAYED} played.py:Endless --eval.max_samples 2 --data.sampler by_column --data.by_column.key n"
    ],
    "rlhf_plugin_algorithms/samplers/curriculum.py:begin": [
        f"{PLAYED} played.py:Endless --eval.max_samples 2 --data.sampler curriculum"
    ],
    "rlhf_plugin_inference/evaluate/jobs.py:_made_sets": [
        "eval model --env frozen_lake --eval.environment_split x --rollout.max_length 999"
    ],
    "rlhf_plugin_local/engine/resident/sizing.py:cache_pages": [
        "train --engine.embedded.decode resident --engine.embedded.kv_cache_gib 1e-5"
    ],
    "rlhf_plugin_loggers/wandb_logger.py:__init__": ["train --log.to wandb"],
    "rlhf_plugin_vlm/model.py:family": ["sft --model.vision vlm --data.chat true"],
    "rlhf_torch/models/device.py:choose_device": ["train --backend.torch.device cuda"],
    "rlhf_torch/packed/rope.py:require_constant": ["train --model dynamic"],
    "rlhf_trainer/loop/resume.py:_compare": ["train --output run --resume auto --seed 3"],
    "rlhf_trainer/loop/session.py:_eval_metrics": [
        f"{PLAYED} frozen_lake --eval.every 2 --eval.environment_split x"
    ],
    "rlhf_trainer/loop/session.py:total_steps_of": [
        f"{PLAYED} played.py:Endless --eval.max_samples 2 --steps none"
    ],
}
"""Runs, which end here when roles and engine are built."""

ASKED = {"role": "user", "content": "1"}
ANSWERED = {"role": "assistant", "content": "2"}
SYSTEM = {"role": "system", "content": "3"}
ADD = {"type": "function", "function": {"name": "add", "parameters": {}}}

SHOWN = {"role": "user", "content": [{"type": "image", "image": "x.png"}]}
IMAGE = {**PLAIN, "image": "x.png"}


def some_with_x(row):
    """Return a row with the column x, and one without: a column that no row has is refused before rows are read."""
    return [{**row, "x": row.get("tools", "1")}, row]


ROWS = {
    "rlhf_core/media/inspecting.py:_check_size": [
        (f"{SEEING} --data.chat true --data.max_image_pixels 9", IMAGE)
    ],
    "rlhf_data/learned/messages.py:check_chat": [
        ("sft --model seeing --data.chat true", {"messages": [SHOWN, ANSWERED]})
    ],
    "rlhf_plugin_algorithms/samplers/by_column.py:_number": [
        ("train --data.sampler by_column --data.by_column.key n", {"prompt": "1", "n": "x", "m": 1})
    ],
    "rlhf_core/media/given.py:_from_text": [
        (f"{SEEING} --data.chat true", {**PLAIN, "image": "http://127.0.0.1:9/x.png"})
    ],
    "rlhf_core/media/inspecting.py:check_bytes": [
        (f"{SEEING} --data.chat true --data.max_image_bytes 9", IMAGE)
    ],
    "rlhf_core/media/inspecting.py:check_count": [
        (
            f"{SEEING} --data.chat true --data.max_images 1",
            {**PLAIN, "images": ["x.png", "x.png"]},
        )
    ],
    "rlhf_data/held_out/sides.py:refuse_trained_rows": [("sft --eval.data rows.jsonl", PLAIN)],
    "rlhf_data/learned/conversations.py:answer": [
        ("sft --data.tools_key tools", {**PLAIN, "tools": [ADD]})
    ],
    "rlhf_data/learned/messages.py:tools_of": [
        ("sft --data.tools_key x", some_with_x({"messages": [ASKED, ANSWERED], "tools": "[]"}))
    ],
    "rlhf_data/learned/messages.py:value_of": [
        ("sft --data.response_key x", some_with_x({"prompt": "1", "answer": "2"}))
    ],
    "rlhf_data/learned/pairs.py:sequences": [
        (
            "dpo --data.max_length 4 --data.on_too_long truncate",
            {"prompt": "1", "chosen": "2345678", "rejected": "234567"},
        )
    ],
    "rlhf_data/learned/pairs.py:shared_messages": [
        (
            "dpo",
            {
                "question": "1",
                "chosen": [ANSWERED],
                "rejected": [{"role": "assistant", "content": "3"}],
            },
        )
    ],
    "rlhf_data/learned/renderings/two_renderings.py:texts": [
        ("distill --teacher.system_prompt x", PLAIN)
    ],
    "rlhf_data/learned/sequences.py:cut_to": [
        ("sft --data.max_length 4", {"prompt": "12", "response": "345678"})
    ],
    "rlhf_data/responses.py:response_of": [
        ("train --algo.terms.use sft --supervised.data rows.jsonl", {"prompt": "1", "answer": "2"})
    ],
    "rlhf_data/responses.py:_sequence": [
        (
            "train --algo.terms.use sft --supervised.data rows.jsonl --data.max_prompt_tokens 4 "
            "--train.max_tokens_per_micro_batch 9",
            {"prompt": "1", "response": "2" * 20},
        )
    ],
    "rlhf_data/row_images.py:_prompt": [
        (SEEING, IMAGE),
        (SEEING, {"prompt": "<image> 1", "response": "2"}),
    ],
    "rlhf_data/row_images.py:_refuse_unread": [
        (
            f"{SEEING} --data.chat true",
            {"prompt": "<audio> 1", "response": "2", "audios": ["x.wav"]},
        )
    ],
    "rlhf_data/row_images.py:check_seen": [
        (f"{SEEING} --data.chat true", {**PLAIN, "picture": "x.png"})
    ],
    "rlhf_data/row_images.py:column": [
        (f"{SEEING} --data.chat true", {**IMAGE, "picture": "x.png", "images": ["x.png"]})
    ],
    "rlhf_data/rows.py:__post_init__": [
        ("sft --data.template {prompt} --data.system_prompt x", PLAIN)
    ],
    "rlhf_data/rows.py:_column": [("train --data.prompt_key x", some_with_x({"question": "1"}))],
    "rlhf_data/rows.py:prompt": [("train --data.system_prompt x", PLAIN)],
    "rlhf_data/rows.py:with_system_prompt": [
        ("sft --data.system_prompt x", {"messages": [SYSTEM, ASKED, ANSWERED]})
    ],
    "rlhf_plugin_vlm/families/loading.py:require_no_tiles": [
        (f"{SEEING} --data.chat true --model.vlm.max_tiles 3", IMAGE)
    ],
    "rlhf_plugin_vlm/families/qwen_vl.py:_limit": [
        (f"{SEEING} --data.chat true --model.vlm.min_pixels 9999 --model.vlm.max_pixels 99", IMAGE)
    ],
}
"""As ``STARTS``, each with the row of which there are eight."""

EPISODES = {
    "rlhf_plugin_agents/budgets.py:bounded": [
        f"{PLAYED} played.py:Slow --rollout.multi_turn.turn_timeout_s 0.0001"
    ],
    "rlhf_plugin_agents/observing.py:first_prompt": [
        "train --executor multi_turn --rollout.max_length 20 --eval.max_samples 1 --env frozen_lake"
    ],
    "rlhf_plugin_agents/observing.py:first_tokens": [f"{PLAYED} played.py:Silent"],
    "rlhf_plugin_algorithms/shapers/overlong.py:shape": [
        "train --reward.shapers overlong --reward.overlong.buffer 1000"
    ],
    "rlhf_plugin_tools/offered.py:begin": [
        "train --executor multi_turn --rollout.max_length 2048 --env tools --env.tools.sandboxed_python true "
        "--data rows.jsonl --reward reward.py:score"
    ],
    "rlhf_plugin_endpoint/dialects/request_images.py:_check_detail": [AGENT + "detailed" + LOOKS],
    "rlhf_plugin_endpoint/dialects/request_images.py:_check_rest": [AGENT + "sized" + LOOKS],
    "rlhf_plugin_endpoint/dialects/sampling.py:check_overrides": [AGENT + "hot"],
    "rlhf_plugin_endpoint/executor.py:_check": [AGENT + "silent"],
    "rlhf_plugin_endpoint/routes.py:_model": [AGENT + "misnamed"],
    "rlhf_plugin_endpoint/routes.py:_with_effort": [AGENT + "eager"],
    "rlhf_trainer/learning/advantages.py:has_penalty_counted": [
        "train --algo.kl.mode reward --algo.kl.coef 0.1 --estimator blind.py:blind"
    ],
    "rlhf_trainer/learning/learner.py:require_agreement": ["train --rollout.max_mismatch 1e-12"],
}
"""Runs of one step."""

CASES = TOOLS | CALLED | FILES | STARTS | ROWS | EPISODES
"""Place -> words of commands, with a row where one is needed; the error of each is one of that place."""

VALUES = {
    "--actor.ema": "0.9",
    "--backend.deepspeed.sequence_parallel": "1",
    "--data": "rows.jsonl",
    "--data.by_column.key": "m",
    "--chat": "",
    "--data.allow_image_urls": "true",
    "--data.chat": "true",
    "--data.image_key": "picture",
    "--data.max_length": "99",
    "--data.max_samples": "4",
    "--data.prompt_key": "question",
    "--data.response_key": "answer",
    "--data.split": "train",
    "--data.tools_key": "tools",
    "--data.train": "rows.jsonl",
    "--eval.data": "held.jsonl",
    "--eval.max_samples": "2",
    "--export": "new.html",
    "--export-traces": "new.jsonl",
    "--gpus-per-node": "64",
    "--images": "pictures",
    "--kind": "reward",
    "--metrics": "reward/mean",
    "--model": "model",
    "--nodes": "8",
    "--model.tokenizer": "model",
    "--model.vision": "vlm",
    "--out": "again",
    "--output": "elsewhere",
    "--overwrite": "",
    "--reward": "reward.py:score",
    "--rollout.endpoint.max_requests": "9",
    "--rollout.endpoint.max_tokens": "99",
    "--rollout.endpoint.models": "gpt",
    "--rollout.sample_padding": "true",
    "--split": "train",
    "--step": "1",
    "--task": "1",
    "--reward.overlong.max_tokens": "2000",
    "--rollout.max_length": "2048",
    "--rollout.max_mismatch": "1",
    "--rollout.multi_turn.turn_timeout_s": "60",
    "--steps": "1",
    "--supervised.response_key": "answer",
    "a run's --output": "run",
    "the --output of rlhf eval": "evaluated",
}
"""Flag -> what the user of this workspace writes where a message leaves it open."""
