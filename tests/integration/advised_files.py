"""Files that bring a message about, and what its advice tells to do with them or with a command.

A case is prepared in a copy of the workspace of ``test_advice_by_place``. What the message tells to do is quoted,
and done by hand where no word of the command does it.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model
from rlhf_testing.tiny_vision import write_tiny_vision_model

Words = Sequence[str]


@dataclass(frozen=True, kw_only=True)
class FileCase:
    """A command that fails because of files."""

    words: str
    prepare: Callable[[], None] = lambda: None
    told: str = ""
    """What the message tells to do; empty: an option, which the words of the next attempt are taken from."""
    mend: Callable[[], None] = lambda: None
    """Does what was told."""
    then: str = ""
    """Words of the next attempt; empty: the same."""
    is_whole: bool = False
    """Whether runs go on once they are built."""


def _rows(name, *rows):
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def _change_weights():
    file = next(Path("model").glob("*.safetensors"))
    tensors = load_file(file)
    save_file({name: tensor + np.float32(1) for name, tensor in tensors.items()}, file)


def _evaluate(folder, *more):
    words = ["eval", "model", "--data", "rows.jsonl", "--reward", "reward.py:score"]
    assert main([*words, "--output", folder, "--rollout.max_new_tokens", "3", *more]) == 0


def _different_rows():
    _rows("rows.jsonl", *({"prompt": str(n), "response": "2"} for n in range(8)))


def _write_template():
    Path("mine.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")


TEMPLATED = "template check model --tools tools.json"
ADD = {"type": "function", "function": {"name": "add", "parameters": {}}}
STREAM = (
    "train --data.source jsonl_stream --data.jsonl_stream.path streamed.jsonl --reward reward.py:score "
    "--model model --steps 1 --rollout.batch_size 2 --rollout.n_samples_per_prompt 2 --rollout.max_new_tokens 3"
)
EVALUATED = "eval model --output evaluated --rollout.max_new_tokens 3"
GONE_ON = "train --output run --resume auto --observers.use token_files --log.samples 16"


TWO_GPUS = '[engine]\nname = "vllm"\n[engine.vllm.args]\ntensor_parallel_size = 2\n'
GENERATED = "generate --model model --data rows.jsonl --output generated --rollout.max_new_tokens 3"


def _generate():
    assert main(GENERATED.split()) == 0


def _spoil(folder):
    for file in Path(folder).glob("*.jsonl"):
        _cut_lines(file, 9)


def _cut_lines(file, length):
    """Cut each line of a file."""
    file.write_text("".join(f"{line[:length]}\n" for line in file.read_text().splitlines()))


def _cut_last_line(file):
    file.write_text(file.read_text()[:-9])


def _copy_model(without):
    """Copy the model, but not one of its files."""
    shutil.copytree("model", "bare")
    Path("bare", without).unlink()


def _drop_column():
    for file in Path("run").rglob("*.parquet"):
        table = parquet.read_table(file)
        parquet.write_table(table.drop_columns(["uid"]), file)


def _record(folder, adapter):
    """Do a run of one step under an adapter, and keep its tokens."""
    words = f"train --model model --data rows.jsonl --reward reward.py:score --steps 1 --output {folder}"
    small = "--rollout.batch_size 2 --rollout.n_samples_per_prompt 2 --rollout.max_new_tokens 3"
    kept = (
        f"--observers.use token_files --log.samples 16 --actor.adapter {adapter} --log.progress off"
    )
    assert main([*words.split(), *small.split(), *kept.split()]) == 0


def _add_token(source, folder):
    """Write a model whose tokenizer has a token more."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end>"]})
    model = AutoModelForCausalLM.from_pretrained(source)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _end_turns_by_a_token():
    """Write a teacher with a token that the student lacks, and a template that ends turns by it."""
    _add_token("model", "longer")
    Path("ended.jinja").write_text(
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ '<end>' if m.role == 'assistant' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )


def _spoil_state():
    """Write a step that is no number into the checkpoint, whose digests stay right."""
    for folder in Path("run/checkpoints").glob("step-*"):
        state = json.loads((folder / "state.json").read_text()) | {"made_with": 7}
        (folder / "state.json").write_text(json.dumps(state))
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"]["state.json"] = hashlib.sha256(
            (folder / "state.json").read_bytes()
        ).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(manifest))


def _save_set():
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_list([{"prompt": "1", "response": "2"}] * 8)
    DatasetDict(train=rows, test=rows).save_to_disk("saved")


FILES = {
    "rlhf_cli/template.py:_read_tools": [
        FileCase(
            words=TEMPLATED,
            told="expected a JSON file",
            mend=lambda: Path("tools.json").write_text(json.dumps([ADD])),
        ),
        FileCase(
            words=TEMPLATED,
            prepare=lambda: Path("tools.json").write_text(json.dumps(ADD)),
            told="expected a list of JSON schemas of tools",
            mend=lambda: Path("tools.json").write_text(json.dumps([ADD])),
        ),
    ],
    "rlhf_data/arrow_sets.py:open_folder": [
        FileCase(words="sft --data saved --data.split x", prepare=_save_set)
    ],
    "rlhf_data/files/other_files.py:refuse_slice": [
        FileCase(
            words="sft --data rows.jsonl[:50%]",
            told="Give rows.jsonl, with --data.max_samples",
            then="sft --data rows.jsonl --data.max_samples 8",
        )
    ],
    "rlhf_data/forms/recognizing.py:_usable": [
        FileCase(
            words="sft --data.form pair",
            told="expected a form of",
            then="sft --data.form response",
        )
    ],
    "rlhf_data/learned/weights.py:check_row": [
        FileCase(
            words="sft",
            prepare=lambda: _rows(
                "rows.jsonl", *[{"prompt": "1", "response": "2", "weight": 0}] * 8
            ),
            told="leave the row out",
            mend=lambda: _rows("rows.jsonl", *[{"prompt": "1", "response": "2", "weight": 1}] * 8),
        )
    ],
    "rlhf_plugin_lab/audit/sequences.py:_columns": [
        FileCase(
            words="audit run --step 1",
            prepare=_drop_column,
            told="expected a file of the observer token_files",
            mend=lambda: shutil.copytree("other", "run", dirs_exist_ok=True),
        )
    ],
    "rlhf_plugin_lab/traces/export.py:export_traces": [
        FileCase(
            words="view run --export-traces new.jsonl",
            prepare=lambda: shutil.rmtree("run/tokens"),
            told="Record them: rlhf train ... --observers.use token_files",
            mend=lambda: shutil.copytree("other", "run", dirs_exist_ok=True),
        )
    ],
    "rlhf_plugin_vlm/families/loading.py:require_no_limits": [
        FileCase(
            words="sft --model towered --model.vision vlm --data.chat true --data.image_key '' "
            "--model.vlm.max_pixels 9999",
            prepare=lambda: write_tiny_vision_model(Path("towered"), "llava"),
            told="leave min_pixels and max_pixels out",
            then="sft --model towered --model.vision vlm --data.chat true --data.image_key ''",
        )
    ],
    "rlhf_plugin_plan/model/configs.py:_by_role": [
        FileCase(
            words="plan --model-config bogus=model/config.json",
            told="expected FILE, or ROLE=FILE",
            then="plan --model-config policy=model/config.json",
        )
    ],
    "rlhf_plugin_supervised/training/imitation/teacher_rendering.py:_teacher_rendering": [
        FileCase(
            words="distill --data.chat true --teacher.path bare --teacher.chat_template model",
            prepare=lambda: _copy_model("chat_template.jinja"),
            told="Name a file with a template",
            mend=_write_template,
            then="distill --data.chat true --teacher.path bare --teacher.chat_template mine.jinja",
        ),
    ],
    "rlhf_plugin_vlm/families/internvl.py:_limit": [
        FileCase(
            words="sft --model tiled --model.vision vlm --data.chat true --data.image_key '' "
            "--model.vlm.min_pixels 900 --model.vlm.max_tiles 1",
            prepare=lambda: write_tiny_vision_model(Path("tiled"), "internvl"),
        )
    ],
    "rlhf_plugin_inference/comparing/pairing.py:_check_names": [
        FileCase(
            words="eval compare evaluated fewer",
            prepare=lambda: _evaluate("fewer", "--data.max_samples", "4"),
            told="with the same --data.max_samples",
            mend=lambda: _evaluate("again", "--data.max_samples", "4"),
            then="eval compare again fewer",
        )
    ],
    "rlhf_plugin_inference/evaluate/run.py:check_same_files": [
        FileCase(words=EVALUATED, prepare=_change_weights)
    ],
    "rlhf_plugin_inference/evaluate/records.py:_check_line": [
        FileCase(words=EVALUATED, prepare=_different_rows)
    ],
    "rlhf_plugin_inference/worklist/record_lines.py:record_of": [
        FileCase(words=EVALUATED, prepare=lambda: _cut_lines(Path("evaluated/episodes.jsonl"), 40)),
        FileCase(words=f"{GENERATED} --resume", prepare=lambda: (_generate(), _spoil("generated"))),
    ],
    "rlhf_plugin_inference/generate/records.py:check_same_prompts": [
        FileCase(words=f"{GENERATED} --resume", prepare=lambda: (_generate(), _different_rows()))
    ],
    "rlhf_plugin_sources/jsonl_stream.py:check_outside": [
        FileCase(
            words=STREAM,
            told="Begin it with a row",
            mend=lambda: _rows("streamed.jsonl", *[{"prompt": "1"}] * 8),
        )
    ],
    "rlhf_plugin_plan/memory/placement.py:_require_whole_bundles": [
        FileCase(
            words="plan -c two.toml --runtime ray --backend deepspeed --runtime.ray.gpus_per.engine 2 "
            "--runtime.ray.colocate none --nodes 2 --gpus-per-node 1",
            prepare=lambda: Path("two.toml").write_text(TWO_GPUS),
        )
    ],
    "rlhf_plugin_supervised/training/loaders.py:require_one_tokenizer": [
        FileCase(
            words="distill --teacher.path stranger",
            prepare=lambda: write_tiny_model(
                Path("stranger"), alphabet="0123", hidden_size=16, num_layers=1, num_heads=2
            ),
            told="Choose a teacher of the same family",
            then="distill --teacher.path model",
        )
    ],
    "rlhf_trainer/durable/plugin_record.py:report_changes": [
        FileCase(
            words=f"{GONE_ON} --resume.strict true --steps 3",
            prepare=lambda: Path("reward.py").write_text("def score(response):\n    return 1.0\n"),
        )
    ],
    "rlhf_plugin_lab/audit/command.py:_audit_before": [
        FileCase(
            words="audit run/config.toml --step 2",
            told="a configuration has its first step alone; name a run's folder",
            then="audit run --step 2",
        )
    ],
    "rlhf_plugin_lab/replay/command.py:_play_changed": [
        FileCase(
            words="replay run --from 1 --to 2 --rollout.filters dynamic_sampling",
            told="leave out the changed option that asks for other samples",
            is_whole=True,
            then="replay run --from 1 --to 2 --actor.adam.lr 0.01",
        )
    ],
    "rlhf_plugin_lab/audit/loading.py:require_plain_base": [
        FileCase(
            words="audit rounded --step 1",
            prepare=lambda: _record("rounded", "qlora"),
            told="Audit a step of the same options with --actor.adapter lora",
            is_whole=True,
            mend=lambda: _record("plain", "lora"),
            then="audit plain --step 1",
        )
    ],
    "rlhf_plugin_supervised/training/imitation/teacher_rendering.py:_ends": [
        FileCase(
            words="distill --data.chat true --teacher.path longer --teacher.chat_template ended.jinja",
            prepare=lambda: _end_turns_by_a_token(),
            told="Add the token to the student's tokenizer",
            mend=lambda: _add_token("model", "model"),
        ),
        FileCase(
            words="distill --data.chat true --teacher.path longer --teacher.chat_template ended.jinja",
            prepare=lambda: _end_turns_by_a_token(),
            told="choose another template",
            mend=_write_template,
            then="distill --data.chat true --teacher.path longer --teacher.chat_template mine.jinja",
        ),
    ],
    "rlhf_trainer/loop/resume.py:_understood": [
        FileCase(
            words=f"{GONE_ON} --steps 3",
            prepare=lambda: _spoil_state(),
            told="Resume from another checkpoint: --resume FOLDER",
            then="train --output elsewhere --resume other/checkpoints/step-00000002 --steps 3",
        )
    ],
    "rlhf_trainer/loop/listeners.py:build_observers": [
        FileCase(
            words="train --observers.use hears.py:Hears",
            prepare=lambda: Path("hears.py").write_text("class Hears:\n    pass\n"),
            told="derive it from rlhf_core.contracts.Observer",
            mend=lambda: Path("hears.py").write_text(
                "from rlhf_core.contracts import Observer\n\n\nclass Hears(Observer):\n    pass\n"
            ),
        )
    ],
    "rlhf_trainer/loop/resume.py:_newest": [
        FileCase(
            words=f"{GONE_ON} --steps 3",
            prepare=lambda: [
                _cut_last_line(file) for file in Path("run/checkpoints").glob("*/state.json")
            ],
        )
    ],
}
"""Place -> commands that fail there."""
