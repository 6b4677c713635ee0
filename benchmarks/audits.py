"""What ``rlhf audit`` names: faults planted in a sampler's recorded log-probs, and healthy runs, not to be blamed.

    python benchmarks/audits.py --seed 1
    python benchmarks/audits.py --seed 1 --faults 0 --healthy 100

The runs are real steps of ``rlhf train``. A fault replaces the sampler's column by what a perturbed engine computes
(``audit_engines.py``, and ``audit_pixels.py`` for models that see, which share nothing with the audit), with a
parameter that the seed draws from a range. Three are planted otherwise: ``top-p`` is a run whose engine truncates while
its ``config.toml`` is made to say that it does not; ``adapter`` a run with an adapter whose sampler's column is of the
base; ``tokenizer`` a run whose recorded ids are those of another vocabulary, with the trainer's log-probs of these.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import audit_pixels
import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from audit_engines import Engine, Fault, faults_of, noisy, plain
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from rlhf_cli.main import main as rlhf
from rlhf_testing.tiny import write_tiny_model
from rlhf_testing.tiny_vision import write_tiny_vision_model

TOKENS = "tokens/step-00000001.parquet"
FAMILIES = ("qwen3", "llama", "gemma3", "qwen3_moe", "qwen3_5")
TURNS = "--executor multi_turn --env echo_after_hint --rollout.max_length 40 --data.max_prompt_tokens 16"
ROWS = (
    "--data.train {task}/rows.jsonl --reward.use {task}/reward.py:score --rollout.max_new_tokens 8"
)
Table = dict[str, list[object]]


def write_tasks(folder: Path, seed: int) -> None:
    """Write prompts of 4 to 13 tokens, a reward, a model of each family, and an adapter of the first."""
    draw = random.Random(seed)
    rows = ["".join(draw.choices("0123456789", k=draw.randint(3, 12))) + "=" for _ in range(64)]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": row}) + "\n" for row in rows))
    (folder / "reward.py").write_text(
        "def score(prompts, responses, **_):\n    return [float(len(each) % 3) for each in responses]\n"
    )
    for family in FAMILIES:
        path = folder / family
        write_tiny_model(path, family, hidden_size=64, initializer_range=0.2, tied=False, seed=seed)
    write_adapter(folder, seed)


def write_adapter(folder: Path, seed: int) -> None:
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        options = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"])
        adapted = get_peft_model(load(folder / "qwen3"), options)
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.data.normal_(std=0.05)
        adapted.save_pretrained(folder / "adapter")


def load(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def train(task: Path, run: Path, options: Sequence[str], family: str = "qwen3") -> None:
    """Run one step that records tokens with the log-probs of sampler and trainer."""
    if family != "seeing":
        options = [*ROWS.format(task=task).split(), *options]
    words = f"""train --model.path {task}/{family} --train.steps 1
        --rollout.batch_size 6 --rollout.n_samples_per_prompt 8
        --rollout.compared_share 1 --algo.loss.old_logprobs recompute
        --observers.use token_files --log.samples 48 --checkpoint.at_end false
        --checkpoint.export false --log.progress off --log.summary false --output {run}"""
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        code = rlhf([*words.split(), *options])
    if code:
        raise RuntimeError(f"{options}: {quiet.getvalue()}")


def rewrite(run: Path, change: Callable[[Table, list[int]], bool]) -> None:
    """Change the rows of each sequence of a run; those for which False is returned are left out."""
    table: Table = parquet.read_table(run / TOKENS).to_pydict()
    kept: list[int] = []
    for uid in dict.fromkeys(table["uid"]):
        rows = [row for row, each in enumerate(table["uid"]) if each == uid]
        if change(table, rows):
            kept += rows
    whole = {name: [column[row] for row in kept] for name, column in table.items()}
    parquet.write_table(pa.table(whole), run / TOKENS)


def write_column(
    table: Table, rows: list[int], name: str, model: PreTrainedModel, engine: Engine
) -> None:
    """Replace a column of a sequence by an engine's log-probs."""
    ids = [table["token_id"][row] for row in rows]
    prompt = next(at for at, row in enumerate(rows) if table["action"][row])
    with torch.no_grad():
        logprobs = engine(model, ids, prompt)
    for at, row in enumerate(rows):
        if table["action"][row]:
            table[name][row] = float(logprobs[at - 1, ids[at]])


def plant(run: Path, model: PreTrainedModel, fault: Fault) -> None:
    """Replace the sampler's log-probs by those of a fault's engine."""

    def change(table: Table, rows: list[int]) -> bool:
        if fault.skips & {table["token_id"][row] for row in rows}:
            return False  # an engine that cannot sample a token has no sequence with it
        write_column(table, rows, "rollout_logprob", model, fault.engine)
        return True

    rewrite(run, change)


def plant_ids(run: Path, model: PreTrainedModel, mapping: Sequence[int]) -> None:
    """Replace the recorded ids by those of another vocabulary, and the trainer's log-probs by those of the new ids."""

    def change(table: Table, rows: list[int]) -> bool:
        for row in rows:
            table["token_id"][row] = mapping[table["token_id"][row]]
        write_column(table, rows, "trainer_logprob", model, plain)
        return True

    rewrite(run, change)


def plant_base(run: Path, model: PreTrainedModel) -> None:
    """Replace the sampler's log-probs by those of the base."""

    def change(table: Table, rows: list[int]) -> bool:
        write_column(table, rows, "rollout_logprob", model, plain)
        return True

    rewrite(run, change)


def audited(run: Path, *options: str) -> tuple[list[dict[str, object]], float]:
    """Return the verdicts of the command, and the seconds it took."""
    output, started = io.StringIO(), time.perf_counter()
    with contextlib.redirect_stdout(output):
        rlhf(["audit", str(run), "--json", *options])
    return json.loads(output.getvalue()), time.perf_counter() - started


def show(name: str, detail: str, right: str, run: Path, *options: str) -> bool:
    """Print the row of a fault, and return whether it was named rightly and the trainer not blamed."""
    (sampler, trainer), seconds = audited(run, *options)
    named = sampler["cause"] or "none"
    ok = named == right and trainer["gap"] <= trainer["allowed"]
    said = f"{named}: {sampler['detail']}" if sampler["cause"] else named
    also = f" (also {', '.join(sampler['also'])})" if sampler["also"] else ""
    print(
        f"| {name} | {detail} | {said}{also} | {sampler['gap']:.2g} | {sampler['left']:.2g} | {seconds:.1f} | "
        f"{'yes' if ok else 'NO'} |".replace(str(run.parent) + "/", ""),
        flush=True,
    )
    return ok


def planted(base: Path, seed: int, only: Sequence[str]) -> None:
    """Print a row for each fault."""
    draw = random.Random(seed)
    model = load(base / "qwen3")
    models = {"qwen3": model, "qwen3_moe": load(base / "qwen3_moe")}
    stale = copy.deepcopy(model)
    noisy(stale, draw.uniform(0.02, 0.1), seed)
    stale.save_pretrained(base / "stale")
    other = ("--other", str(base / "stale"))
    for family in models:
        train(base, base / f"run_{family}", ["--seed", str(seed)], family)
    config = model.config
    longest = 13
    torch.manual_seed(seed)
    found = []
    for name, fault in faults_of(
        draw, stale, config.eos_token_id, config.pad_token_id, longest
    ).items():
        if only and name not in only:
            continue
        run = base / "faulty"
        shutil.copytree(base / f"run_{fault.family}", run, dirs_exist_ok=True)
        plant(run, models[fault.family], fault)
        found.append(
            show(name, fault.detail, fault.cause, run, *(other if fault.family == "qwen3" else ()))
        )
    found += elsewhere(base, draw, model, other) if not only else []
    found += seeing(base, seed, only)
    print(f"seed {seed}: {sum(found)} of {len(found)} named rightly")


def seeing(base: Path, seed: int, only: Sequence[str]) -> list[bool]:
    """Print the rows of faults in what a model sees, and return whether they were named."""
    folder = base / "seeing"
    write_tiny_vision_model(folder, hidden_size=64, initializer_range=0.2, seed=seed)
    train_seeing(base, base / "seen", seed)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for name, (detail, fault) in audit_pixels.faults_of(random.Random(seed)).items():
        if only and name not in only:
            continue
        shutil.copytree(base / "seen", base / "faulty_seen", dirs_exist_ok=True)
        plant_pixels(base / "faulty_seen", model, audit_pixels.eye_of(folder, **fault))
        found.append(show(name, detail, "pixels", base / "faulty_seen"))
    return found


def train_seeing(base: Path, run: Path, seed: int) -> None:
    """Run one step of the environment ``shapes``, whose pictures the seed draws."""
    words = f"""--model.vision vlm --executor multi_turn --env shapes --env.shapes.size 16 --env.shapes.most 4
        --env.shapes.style letters --rollout.max_new_tokens 4 --rollout.max_length 96 --seed {seed}"""
    train(base, run, words.split(), "seeing")


def plant_pixels(run: Path, model: PreTrainedModel, eye: audit_pixels.Eye) -> None:
    """Replace the sampler's log-probs by those of a model that sees by an eye."""
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    files = {each["uid"]: [run / image["file"] for image in each["images"]] for each in samples}
    seen = list(dict.fromkeys(path for paths in files.values() for path in paths))

    def change(table: Table, rows: list[int]) -> bool:
        paths = files[str(table["uid"][rows[0]])]
        other = [seen[(seen.index(path) + eye.step) % len(seen)] for path in paths]
        pictures = [audit_pixels.opened(path) for path in other]
        engine: Engine = lambda model, ids, prompt: eye.logprobs(model, ids, pictures)  # noqa: E731
        write_column(table, rows, "rollout_logprob", model, engine)
        return True

    rewrite(run, change)


def elsewhere(
    base: Path, draw: random.Random, model: PreTrainedModel, other: tuple[str, str]
) -> list[bool]:
    """Print the rows of faults that are not an engine's, and return whether they were named."""
    found = []
    top_p = round(draw.uniform(0.5, 0.95), 3)
    train(base, base / "top_p", ["--rollout.top_p", str(top_p)])
    config = (base / "top_p/config.toml").read_text()
    if f"top_p = {top_p}" not in config:
        raise RuntimeError("config.toml has another form of top_p")
    (base / "top_p/config.toml").write_text(config.replace(f"top_p = {top_p}", "top_p = 1.0"))
    found.append(show("top-p", str(top_p), "top_p", base / "top_p", *other))

    adapter = ("--model", str(base / "adapter"))
    lora = ["--actor.adapter", "lora", "--actor.lora.init_from", str(base / "adapter")]
    train(base, base / "adapted", lora)
    plant_base(base / "adapted", model)
    found.append(show("adapter", "missing", "adapter", base / "adapted", *adapter))

    size = model.config.vocab_size
    offset = draw.randint(1, 12)
    shuffled = list(range(size))
    draw.shuffle(shuffled)
    for name, mapping in (
        (f"off by {offset}", [(each + offset) % size for each in range(size)]),
        ("shuffled", shuffled),
    ):
        shutil.copytree(base / "run_qwen3", base / "faulty", dirs_exist_ok=True)
        plant_ids(base / "faulty", model, mapping)
        found.append(show("tokenizer", name, "tokenizer", base / "faulty", *other))
    return found


def healthy_options(draw: random.Random, base: Path) -> tuple[list[str], str, list[str]]:
    """Return options of a healthy run, its family, and options of its audit."""
    family = draw.choice(FAMILIES)
    words = [
        "--seed",
        str(draw.randrange(10**6)),
        "--rollout.temperature",
        f"{draw.uniform(0.5, 1.5):.3f}",
    ]
    for name, values in (
        ("top_p", ("0.8", "0.95")),
        ("top_k", ("3", "20")),
        ("min_p", ("0.02", "0.1")),
    ):
        if draw.random() < 0.3:
            words += [f"--rollout.{name}", draw.choice(values)]
    if draw.random() < 0.3:
        words += TURNS.split()
    if draw.random() < 0.3:
        words += ["--model.dtype", "bfloat16"]
    if family == "qwen3" and draw.random() < 0.5:
        words += ["--actor.adapter", "lora", "--actor.lora.init_from", str(base / "adapter")]
        return words, family, ["--model", str(base / "adapter")]
    return words, family, []


def healthy(base: Path, seed: int, count: int) -> None:
    """Print how many of healthy runs are blamed, and which."""
    draw, blamed, done = random.Random(seed), 0, 0
    for number in range(count):
        words, family, options = healthy_options(draw, base)
        run = base / f"healthy{number}"
        train(base, run, words, family)
        verdicts, seconds = audited(run, *options)
        done += 1
        wrong = [each for each in verdicts if each["gap"] > each["allowed"]]
        if wrong:
            blamed += 1
            print(f"blamed: {family} {' '.join(words)} {wrong} {seconds:.1f} s", flush=True)
        shutil.rmtree(run)
    print(f"seed {seed}: {done} healthy runs, {blamed} blamed")


def main() -> None:
    own = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    own.add_argument("--seed", type=int, default=0)
    own.add_argument("--faults", type=int, choices=(0, 1), default=1)
    own.add_argument("--only", nargs="*", default=[], help="names of faults")
    own.add_argument("--healthy", type=int, default=0)
    given = own.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        write_tasks(base, given.seed)
        if given.faults:
            planted(base, given.seed, given.only)
        if given.healthy:
            healthy(base, given.seed, given.healthy)


if __name__ == "__main__":
    main()
