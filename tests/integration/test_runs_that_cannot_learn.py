"""Runs of the command line that cannot learn: each sign is named once in ``run.log``, with its cause and an option."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_testing.tiny import write_tiny_model

STEPS = 12


def say_always(folder, text):
    """Change a model so that whatever it reads, its next token is that of ``text`` (end-of-sequence for None).

    Every layer adds 0, and every token's embedding is the same vector, but that of the one is twice as long: with tied
    embeddings its logit is twice that of all others.
    """
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    token = tokenizer.eos_token_id if text is None else tokenizer.convert_tokens_to_ids(text)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.norm.weight.fill_(10.0)
        model.get_input_embeddings().weight.fill_(1.0)
        model.get_input_embeddings().weight[token].fill_(2.0)
    model.save_pretrained(folder)


def warnings_of(workspace):
    log = (workspace / "run/run.log").read_text().splitlines()
    return [line for line in log if "learns nothing" in line]


def only(lines, said):
    (line,) = [line for line in lines if said in line]
    return line


@pytest.mark.slow
def test_answers_that_end_with_their_first_token_are_named(train, workspace):
    say_always(workspace / "model", None)

    train("run", "--reward", "vary.py:vary", "--steps", str(STEPS))

    line = only(warnings_of(workspace), "every answer ended with its first token")
    assert "in each of the last 10 steps, up to step 10" in line
    assert "--data.template" in line


@pytest.mark.slow
def test_one_answer_to_everything_is_named_as_cut_off_and_as_without_entropy(train, workspace):
    say_always(workspace / "model", "1")

    train("run", "--reward", "vary.py:vary", "--steps", str(STEPS))

    lines = warnings_of(workspace)
    assert "--rollout.max_new_tokens" in only(lines, "every answer was cut off at its limit")
    assert "--algo.loss.entropy_target" in only(lines, "the entropy is below 0.01 nats per token")
    assert "up to step 10" in only(lines, "gradient of norm 0")


@pytest.mark.slow
def test_a_policy_that_jumps_away_from_its_reference_is_named(train, workspace):
    """The reference gives the tokens of a policy after such updates a probability of e^-30 or so."""
    write_tiny_model(
        workspace / "model",
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        initializer_range=8.0,
        seed=7,
    )
    kl = ["--algo.kl.mode", "loss", "--algo.kl.estimator", "k2", "--algo.kl.coef", "1e-9"]

    train("run", "--reward", "vary.py:vary", "--steps", str(STEPS), "--actor.adam.lr", "0.5", *kl)

    line = only(warnings_of(workspace), "the KL to the reference is above 10 nats per token")
    assert "in each of the last 3 steps" in line
    assert "--algo.kl.coef too low" in line
