"""``serve_rm`` becomes a command line, which ``rlhf serve-rm`` takes."""

import shlex

from rlhf_plugin_migrate.openrlhf.printed.serve_rm import migrate
from rlhf_plugin_reward_model.config import ServeConfig
from rlhf_plugin_reward_model.serving.flags import parse_flags


def test_the_command_line_is_one_of_serve_rm():
    flags = (
        "--reward.model_name_or_path m --port 5001 --ds.param_dtype bf16 --reward.normalize_enable"
    )
    flags += " --data.max_len 1000 --batch_size 16 --ds.attn_implementation flash_attention_2"
    line, out = migrate(flags.split())

    words = shlex.split(line)
    parsed = parse_flags(ServeConfig, words[2:], command="", positional="path", about="")

    assert words[:2] == ["rlhf", "serve-rm"]
    assert (parsed.path, parsed.port, parsed.host) == ("m", 5001, "0.0.0.0")
    assert (parsed.dtype, parsed.normalize, parsed.max_length) == ("bfloat16", "model", 1000)
    assert (parsed.overlong, parsed.batch_tokens) == ("cut_end", 16000)
    assert len(list(out.rows())) == 7


def test_the_command_prints_it(run, workspace):
    migrated = run("--", "python", "-m", "openrlhf.cli.serve_rm", "--reward_pretrain", "m")

    assert migrated.code == 0
    assert "rlhf serve-rm m " in migrated.report
