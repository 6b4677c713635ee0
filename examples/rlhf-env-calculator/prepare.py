"""Write a tiny model with random weights whose chat template knows tools, and demonstrations of calls.

    python examples/rlhf-env-calculator/prepare.py

The tokenizer has a token for each digit and operator, control tokens around a call, one for the whole description of
the tool, and a token for each piece of JSON between the arguments of a call: with one for each character a call would
be 75 tokens long.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_env_calculator.config import CalculatorConfig
from rlhf_env_calculator.environment import Calculator
from rlhf_testing.tiny import tiny_config, tiny_tokenizer
from rlhf_tools import Toolbox

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ALPHABET = "0123456789+-*"
ROLES = ["<|user|>", "<|assistant|>", "<|tool|>"]
CALL = ["<tool_call>", "</tool_call>"]
PIECES = ['{"name": "calculate", "arguments": {"left": ', ', "operator": "', '", "right": ', "}}"]
TEMPLATE = (
    "{%- for tool in tools or [] -%}{{ tool | tojson }}{%- endfor -%}"
    "{%- for message in messages -%}<|{{ message.role }}|>{{ message.content or '' }}"
    "{%- for call in message.tool_calls or [] -%}<tool_call>"
    '{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}'
    "</tool_call>{%- endfor -%}"
    "{%- if message.role == 'assistant' -%}<eos>{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)


def main() -> None:
    arguments = parsed_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    write_model(arguments.output / "model", arguments.seed)
    write_demonstrations(arguments.output / "demonstrations.jsonl", arguments.demonstrations)
    print(f"{arguments.output}: a model, and {arguments.demonstrations} demonstrations")


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write the model and demonstrations of the recipe."
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).parent / "data",
        help="folder for model/ and demonstrations.jsonl",
    )
    parser.add_argument("--demonstrations", type=int, default=2048, help="number of demonstrations")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights")
    return parser.parse_args()


def tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer, with a chat template that knows tools."""
    from tokenizers import AddedToken

    made = tiny_tokenizer(ALPHABET)
    made.add_special_tokens({"additional_special_tokens": ROLES})
    described = [json.dumps(tool, ensure_ascii=False) for tool in tools()]
    made.add_tokens([AddedToken(text, normalized=False) for text in [*CALL, *PIECES, *described]])
    made.chat_template = TEMPLATE
    return made


def tools() -> list[dict[str, Any]]:
    """Return the description of the calculator, as the environment shows it."""
    return [dict(tool) for tool in Toolbox([Calculator(CalculatorConfig()).calculate]).schemas]


def write_model(folder: Path, seed: int) -> None:
    """Write the tokenizer and a model with random weights, as Transformers folders are."""
    import torch
    from transformers import AutoModelForCausalLM

    words = tokenizer()
    config = tiny_config(
        "qwen3",
        vocab_size=len(words),
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        initializer_range=0.08,
    )
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    words.save_pretrained(folder)


def write_demonstrations(path: Path, count: int) -> None:
    """Write conversations in which each problem is computed by one right call."""
    tasks = Calculator(CalculatorConfig(digits=2)).tasks("train")
    # The last tasks: training begins with the first.
    rows = [demonstration(tasks[len(tasks) - 1 - index]) for index in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def demonstration(row: dict[str, Any]) -> dict[str, Any]:
    """Return the conversation about a problem of two numbers."""
    left, operator, right = row["problem"].split(" ")
    given = {"left": int(left), "operator": operator, "right": int(right)}
    call = {"type": "function", "function": {"name": "calculate", "arguments": given}}
    return {
        "messages": [
            {"role": "user", "content": f"{left}{operator}{right}"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "calculate", "content": row["answer"]},
            {"role": "assistant", "content": row["answer"]},
        ],
        "tools": tools(),
    }


if __name__ == "__main__":
    main()
