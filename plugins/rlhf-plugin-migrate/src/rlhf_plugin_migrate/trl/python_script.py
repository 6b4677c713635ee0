"""A Python script that calls a trainer of TRL, as the keys of TRL's YAML files. It is read, and not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rlhf_core import ConfigError

from ..table.source import Written
from .arguments import REST, arguments_of, called, is_named, is_none, shown, text_of
from .names import Change, Names
from .own_functions import OwnFunctions
from .script_keys import PythonScript
from .script_sets import set_held_out, set_train
from .unsloth import Unsloth

_SCRIPTS = {"GRPO": "grpo", "SFT": "sft", "DPO": "dpo"}
_POSITIONS = {
    "GRPO": (
        *("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
        *("reward_processing_classes", "callbacks", "optimizers", "quantization_config"),
        *("peft_config", "tools", "rollout_func", "environment_factory"),
    ),
    "SFT": (
        *("model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class"),
        *("compute_loss_func", "compute_metrics", "callbacks", "optimizers"),
        *("optimizer_cls_and_kwargs", "preprocess_logits_for_metrics", "quantization_config"),
        *("peft_config", "formatting_func"),
    ),
    "DPO": (
        *("model", "ref_model", "args", "data_collator", "train_dataset", "eval_dataset"),
        *("processing_class", "compute_metrics", "callbacks", "optimizers", "quantization_config"),
        "peft_config",
    ),
}
"""Arguments of a trainer of TRL 1.16, in their order."""
_LORA = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "target_parameters": "lora_target_parameters",
    **{name: name for name in ("lora_alpha", "lora_dropout", "use_rslora", "use_dora")},
}
"""Argument of PEFT's ``LoraConfig`` -> key of TRL's scripts."""
_PEFT_DEFAULTS: dict[str, object] = {"lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0}
"""Defaults of PEFT 0.21, which a script has; TRL's own scripts have 16, 32 and 0.05."""
_MODEL = {
    "dtype": "dtype",
    "torch_dtype": "dtype",
    "revision": "model_revision",
    "attn_implementation": "attn_implementation",
    "trust_remote_code": "trust_remote_code",
}
"""Argument of ``from_pretrained`` -> key of TRL's scripts."""
_LOADS_THE_SAME = frozenset(
    {"device_map", "low_cpu_mem_usage", "use_cache", "cache_dir", "token", "local_files_only"}
)
_FORMER = {"max_seq_length": "max_length"}
"""Name that an argument had in earlier releases of TRL -> today's."""
_OF_OLD_TRAINERS = frozenset(
    {"max_seq_length", "dataset_text_field", "packing", "dataset_num_proc"}
)
"""Arguments that trainers had before they were those of the configuration."""
_READY = "trl.rewards"
_PADDING = frozenset({"pad_token", "pad_token_id", "padding_side"})
"""Attributes of a tokenizer that change no token that counts."""
_INSTEAD = {
    "configuration": "write it into the configuration",
    "trainer": "give it to the trainer",
    "tokenizer": "put it into the tokenizer's folder, and set model.tokenizer",
}
"""Object that is changed once it is made -> where to put the value."""


def read_script(text: str, name: str, script: str | None = None) -> PythonScript:
    """Return what a script gives TRL's trainer and its configuration.

    Args:
        name: the file, in words.
        script: the algorithm, where the script has several; None: it has one.

    Values are literals, or names that are bound once, to a literal that nothing changes. All others are left out, each
    with the reason.

    Raises:
        ConfigError: the text is no Python, or makes no such configuration.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(
            f"rlhf migrate: {name}, line {error.lineno}: not valid Python: {error.msg}",
            code="migrate/invalid-python",
        ) from error
    return _Reader(Names(tree), name, script, OwnFunctions(tree, text, name)).read()


class _Reader:
    def __init__(
        self, names: Names, name: str, script: str | None, functions: OwnFunctions
    ) -> None:
        self._names = names
        self._functions = functions
        self._name = name
        self._script = script
        self._unsloth = Unsloth(names)

    def read(self) -> PythonScript:
        calls = self._names.calls
        trainers = [(call, kind) for call in calls if (kind := _kind(call, "Trainer"))]
        config, kind = self._config(trainers)
        out = PythonScript(_SCRIPTS[kind], self._names)
        for key, value in arguments_of(config, ("output_dir",), self._names, keeps_none=True):
            out.set(_FORMER.get(key, key), value)
        own = [call for call, its_kind in trainers if its_kind == kind]
        trainer = next((call for call in own if self._has(call, kind, config)), (*own, None)[0])
        self._leave_others_out(out, config, trainer)
        arguments = [] if trainer is None else arguments_of(trainer, _POSITIONS[kind], self._names)
        for change in self._names.changes:
            self._leave_change_out(out, change, config, trainer, dict(arguments))
        self._set_trainer(out, arguments, config)
        for call in self._names.calls:
            if not isinstance(call.func, ast.Attribute) or call.func.attr != "train":
                continue
            if trainer is not None and self._names.may_be(call.func.value, trainer):
                for key, value in arguments_of(call, ("resume_from_checkpoint",), self._names):
                    out.set(key, value)
        return out

    def _config(self, trainers: list[tuple[ast.Call, str]]) -> tuple[ast.Call, str]:
        """Return the one configuration; that of a trainer which has none is empty."""
        calls = self._names.calls
        configs = [
            (call, kind)
            for call in calls
            if (kind := _kind(call, "Config")) and self._script in (None, _SCRIPTS[kind])
        ]
        if not configs and len(trainers) == 1:
            call, kind = trainers[0]
            given = arguments_of(call, _POSITIONS[kind], self._names)
            hidden = any(key == REST or isinstance(value, ast.Starred) for key, value in given)
            if "args" not in dict(given) and not hidden:
                configs = [(ast.Call(ast.Name(f"{kind}Config"), [], []), kind)]
        if len(configs) != 1:
            raise ConfigError(
                f"rlhf migrate: {self._name}: expected one call of GRPOConfig, SFTConfig or DPOConfig, found "
                f"{len(configs)}. Of several choose one by its algorithm: --script grpo. Of a script that reads its "
                "options from the command line, migrate the launch: rlhf migrate --from trl -- accelerate launch "
                "SCRIPT.py --FLAGS",
                code="migrate/number-of-configurations",
            )
        return configs[0]

    def _has(self, trainer: ast.Call, kind: str, config: ast.Call) -> bool:
        """Return whether a trainer may have a configuration."""
        args = dict(arguments_of(trainer, _POSITIONS[kind], self._names)).get("args")
        return args is not None and self._names.may_be(args, config)

    def _leave_others_out(
        self, out: PythonScript, config: ast.Call, trainer: ast.Call | None
    ) -> None:
        """Leave out other trainers, and calls of something else that are given the configuration."""
        for call in self._names.calls:
            args = next((one.value for one in call.keywords if one.arg == "args"), None)
            takes_it = args is not None and self._names.may_be(args, config)
            if (
                call is not trainer
                and called(call) != "dict"
                and (takes_it or _kind(call, "Trainer"))
            ):
                problem = "it is no trainer of TRL that is read; its arguments set nothing"
                if trainer is not None:
                    problem = f"one trainer is migrated, that of line {trainer.lineno}"
                out.leave_out_node(call, problem)

    def _leave_change_out(
        self,
        out: PythonScript,
        change: Change,
        config: ast.Call,
        trainer: ast.Call | None,
        arguments: dict[str, ast.expr],
    ) -> None:
        """Leave out what is set in an object once it is made: whether, and when, is not read."""
        tokenizer = self._names.resolved(arguments.get("processing_class", ast.Constant(None)))
        for found, name in _parts(change):
            is_args = isinstance(found, ast.Attribute) and found.attr == "args"
            made = ""
            if is_args or self._names.may_be(found, config):
                out.keys.pop(name, None)
                made = "configuration"
            elif trainer is not None and self._names.may_be(found, trainer):
                made = "trainer"
            elif isinstance(tokenizer, ast.Call) and self._names.may_be(found, tokenizer):
                made = "" if name in _PADDING else "tokenizer"
            if made:
                problem = f"it is changed after the {made} is made; {_INSTEAD[made]}"
                out.leave_out_node(change.statement, problem)
                return

    def _set_trainer(
        self, out: PythonScript, arguments: list[tuple[str, ast.expr]], config: ast.Call
    ) -> None:
        named = dict(arguments)
        for key, value in arguments:
            found = self._names.resolved(value)
            if key == "args":
                if found is not config:
                    problem = (
                        f"the text does not show that it is the configuration of line {config.lineno}, whose values "
                        "are taken"
                    )
                    out.leave_out(key, value, problem)
            elif key == "model":
                self._set_model(out, found)
            elif key == "train_dataset":
                set_train(out, found)
            elif key == "eval_dataset":
                set_held_out(out, found, named.get("train_dataset"))
            elif key == "reward_funcs":
                self._set_rewards(out, found)
            elif key == "peft_config" and called(found) == "LoraConfig":
                self._set_adapter(out, found)
            elif key in ("processing_class", "tokenizer"):
                self._check_tokenizer(out, found, named.get("model"))
            elif key in _OF_OLD_TRAINERS:
                out.set(_FORMER.get(key, key), value)
            else:
                out.leave_out(key, value)

    def _set_model(self, out: PythonScript, found: ast.expr) -> None:
        """Set the model: its name, or what ``AutoModel.from_pretrained(NAME, ...)`` loads."""
        if self._unsloth.is_used:
            self._unsloth.set(out)
            return
        if called(found) != "from_pretrained":
            out.set("model_name_or_path", found)
            return
        out.keys["dtype"] = (
            "auto"  # of Transformers 5; TRL loads what it is told by name in float32
        )
        for key, value in arguments_of(found, ("pretrained_model_name_or_path",), self._names):
            if key == "pretrained_model_name_or_path":
                out.set("model_name_or_path", value)
            elif key in _MODEL:
                out.set(_MODEL[key], self._dtype(value) if _MODEL[key] == "dtype" else value)
            elif key not in _LOADS_THE_SAME:
                out.leave_out(f"model, {key}", value)

    def _dtype(self, value: ast.expr) -> ast.expr:
        """Return the name of ``torch.bfloat16`` as a literal; else the expression itself."""
        found = self._names.resolved(value)
        if isinstance(found, ast.Attribute) and shown(found.value) == "torch":
            return ast.copy_location(ast.Constant(found.attr), found)
        return found

    def _set_adapter(self, out: PythonScript, found: ast.expr) -> None:
        out.keys |= {"use_peft": True, **_PEFT_DEFAULTS}
        for key, value in arguments_of(found, ("task_type",), self._names, keeps_none=True):
            is_default = key == "bias" and text_of(self._names.resolved(value)) == "none"
            if key in _LORA:
                out.set(_LORA[key], value)
            elif key != "task_type" and not is_default and not is_none(value, self._names):
                problem = "TRL's scripts have no such key" if is_named(key) else ""
                out.leave_out(f"peft_config, {key}", value, problem)

    def _check_tokenizer(self, out: PythonScript, found: ast.expr, model: ast.expr | None) -> None:
        """Leave a tokenizer out unless it is that of the model."""
        if self._unsloth.is_used:
            if self._unsloth.has_own_template:
                problem = f"it gets another chat template; {_INSTEAD['tokenizer']}"
                out.leave_out("processing_class", found, problem)
        elif not self._is_of(found, model):
            problem = (
                "the text does not show that it is the model's; another one is model.tokenizer"
            )
            out.leave_out("processing_class", found, problem)

    def _is_of(self, tokenizer: ast.expr, model: ast.expr | None) -> bool:
        names = [self._loaded(one) for one in (tokenizer, model) if one is not None]
        return called(tokenizer) == "from_pretrained" and len(names) == 2 and names[0] == names[1]

    def _loaded(self, value: ast.expr) -> str:
        """Return the text of the name of what is loaded, or of the name itself."""
        found = self._names.resolved(value)
        if called(found) == "from_pretrained":
            positions = ("pretrained_model_name_or_path",)
            given = dict(arguments_of(found, positions, self._names))
            found = self._names.resolved(given.get(positions[0], found))
        return shown(found)

    def _set_rewards(self, out: PythonScript, value: ast.expr) -> None:
        """Set the functions that a module has, and those of the script itself that can be copied into one."""
        listed = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        found = []
        for one in listed:
            if isinstance(one, ast.Name) and one.id in self._names.modules:
                path = self._names.modules[one.id]
                found.append(one.id if path == f"{_READY}.{one.id}" else path)
            elif isinstance(one, ast.Constant) and isinstance(one.value, str):
                found.append(one.value)
            elif isinstance(one, ast.Name) and (own := self._functions.copy(one.id)):
                found.append(own)
            elif one is value and isinstance(one, ast.Name) and one.id not in self._names.functions:
                out.leave_out("reward_funcs", one)
            else:
                text = ast.unparse(one)
                problem = (
                    f"line {one.lineno}: the script is not run, and this uses what it computes; write it into a file "
                    f"as a function of response and columns, and add it to reward.use as FILE.py:{text}"
                )
                out.left_out.append(Written(f"reward_funcs: {text}", (), problem))
        if found:
            out.keys["reward_funcs"] = found
        if self._functions.text:
            out.files[f"{self._functions.module}.py"] = self._functions.text


def _parts(change: Change) -> Iterator[tuple[ast.expr, str]]:
    """Yield each object that a change sets a part of, from the inmost on, with the attribute of it that is changed."""
    found, name = change.of, change.name
    yield found, name
    while isinstance(found, ast.Attribute | ast.Subscript):
        name = found.attr if isinstance(found, ast.Attribute) else name
        found = found.value
        yield found, name


def _kind(call: ast.Call, suffix: str) -> str:
    """Return ``GRPO`` of a call of ``GRPOConfig``, with the suffix ``Config``; empty for other calls."""
    name = called(call)
    kind = name.removesuffix(suffix)
    return kind if kind in _SCRIPTS and name != kind else ""
