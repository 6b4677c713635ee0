"""Scripts as bash splits them; a slow test asks bash itself."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.deadlines import HANG_S

from rlhf_core import ConfigError
from rlhf_plugin_migrate.shell.script import commands
from rlhf_testing.errors import has_code

FOLDER = Path("/scripts/here")


def words(text, **variables):
    return [list(command.words) for command in commands(text, variables, FOLDER)]


SCRIPTS = {
    "plain": "show a b  c",
    "continuation": "show a \\\n  b\\\nc",
    "continuation_at_the_end": "show a \\",
    "comment": "show a # b\n# show c\nshow d#e",
    "quotes": """X=1; show 'a $X b' "c \\"d\\" $X" e'f'"g" '' """,
    "ansi": "show $'User: {}\\nAssistant: '",
    "variables": 'X=1; Y="two words"; show $X ${X}y "$Y" $Y $X$X',
    "empty": 'X=; show a $X b "$X" c',
    "default": 'show ${NOT_SET:-a b} "${NOT_SET:-c d}" ${X-e}',
    "array": 'X=1; A=(a \'b c\'\n # comment\n  $X d)\nshow ${A[@]} "e" "${A[@]}" "<${A[*]}>"',
    "empty_array": 'A=(); show a "${A[@]}" b "${A[@]}c" ""',
    "append": "A=(a); A+=(b c); X=1; X+=2; show ${A[@]} $X",
    "separators": "show a; show b && show c\nshow e | cat; show g & wait",
    "redirections": "show a 2> /dev/null; show b < /dev/null 2>&1; cat /dev/null &>> /dev/null; show c",
    "here_document": "X=1\nread -r -d '' TEXT <<EOF\nfirst \\\n second \"$X\"\nEOF\nshow $TEXT",
    "quoted_here_document": "read -r -d '' TEXT <<'EOF'\nfirst $X\nEOF\nshow \"$TEXT\"",
    "export": "export X=1 Y=2; readonly Z='a b'; show $X $Y \"$Z\"",
    "nested": """X=1; bash -c "show $X 'a b' && show c" """,
    "escapes": "show a\\ b \\$X \\\\",
    "equals": "HOME_=1; show --flag=$HOME_ --x='a b'",
    "default_assigned": ': "${A:="b c"}" ${D:=4}; E=; : ${E=f} ${E:=g}; show "$A" $D "$E"',
    "default_of_a_branch_not_taken": "if [ 1 = 2 ]; then : ${A:=b}; fi; show ${A:-c}",
    "default_of_empty": 'X=; show "${X:-a}" "<${X-b}>"; Y=; Y=${Y:-c}; show $Y',
    "arithmetic": "N=3; M=N; show $((1024 * 2)) $(((N + 1) * 2 / 3)) $(( $N - ${M} )) $((-7 / 2)) $((-7 % 2))",
    "if": 'X=1; if [ "$X" = 1 ]; then show a; Y=b; else show c; Y=d; fi; show $Y',
    "elif": 'X=2; if [[ $X == 1 ]]; then show a; elif [ "$X" -gt 1 ] && [ -n "$X" ]; then show b; else show c; fi',
    "branch_of_array": "A=(a); if [ 1 = 2 ]; then A+=(b); else A+=(c); fi; show ${A[@]}",
    "nested_if": "if [ 1 != 1 ]; then if [ 1 = 1 ]; then show a; fi; show b; fi; show c",
    "case": 'X=npu; case "$X" in\n gpu | cpu) Y=1 ;;\n npu)\n  Y=2\n  A=(x)\n  ;;\n *) Y=3 ;;\nesac; show $Y ${A[@]}',
    "case_else": 'case "${X:-other}" in gpu) show a ;; o*) show b ;; *) show c ;; esac; show d',
    "not": "if [ ! = = ] || ! [ 1 = 1 ]; then show a; else show b; fi",
    "pwd": "show $(pwd) `pwd` $(cd .. && pwd)",
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash to compare with")
@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_words_are_those_of_bash(text, tmp_path, monkeypatch):
    """``show`` prints its words; what runs it is bash itself."""
    monkeypatch.chdir(tmp_path)
    prelude = "show() { printf '<%s>' \"$@\"; echo; }; export -f show\n"
    run = subprocess.run(
        ["bash", "-c", prelude + text],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    ours = [command[1:] for command in words(text) if command[0] == "show"]
    shown = "".join("".join(f"<{word}>" for word in command) + "\n" for command in ours)

    assert shown == run.stdout
    assert "<" in shown


def test_variables_of_the_caller_are_known():
    assert words("show $MODEL", MODEL="a") == [["show", "a"]]


def test_the_script_knows_its_folder():
    script = 'D="$(dirname "$0")"; W=$(cd "$D/../.." && pwd); show $D $W'

    assert words(script) == [["show", "/scripts/here", "/"]]


def test_what_only_a_shell_knows_stays_and_is_named():
    (command,) = commands("show $(date +%s) ${UNKNOWN} $1 x", {}, FOLDER)

    assert command.words == ("show", "$(date +%s)", "${UNKNOWN}", "$1", "x")
    assert command.unresolved == ("$(date +%s)", "${UNKNOWN}", "$1")


@pytest.mark.parametrize(
    "text",
    [
        "A=$UNKNOWN/a; show $A",
        "A=(x $UNKNOWN/a); show ${A[@]}",
        "show ${B:-$UNKNOWN/a}",
        'bash -c "show $UNKNOWN/a"',
        "read -r -d '' A <<EOF\n$UNKNOWN/a \\\nEOF\nshow $A",
    ],
)
def test_what_a_variable_took_from_the_shell_is_named_where_it_is_used(text):
    found = commands(text, {}, FOLDER)

    assert found[-1].words[0] == "show"
    assert found[-1].words[-1] == "$UNKNOWN/a"
    assert found[-1].unresolved == ("$UNKNOWN",)


def test_a_place_that_is_not_known_is_not_made_up():
    assert words('D=$(dirname "$UNKNOWN/x"); show $D/y') == [["show", '$(dirname "$UNKNOWN/x")/y']]


def test_assignments_before_a_command_are_apart():
    (command,) = commands("A=1 B=2 show c", {}, FOLDER)

    assert (command.environment, command.words) == (("A=1", "B=2"), ("show", "c"))


def test_a_command_knows_its_line():
    lines = [command.line for command in commands("# one\nshow a \\\n b\n\nshow c\n", {}, FOLDER)]

    assert lines == [2, 5]


@pytest.mark.parametrize(
    "text", ["show 'a", 'show "a', "show $(a", "A=(a b", "show ${A", "read X <<EOF\nno end"]
)
def test_what_does_not_end_is_refused(text):
    with pytest.raises(ConfigError):
        commands(text, {}, FOLDER)


@given(st.text(st.sampled_from("ab=$(){}[]@'\"`\\\n \t;&|<>#-:0é"), max_size=40))
def test_any_text_is_read_or_refused(text):
    try:
        commands(text, {"a": "x y"}, FOLDER)
    except ConfigError:
        return


def test_a_loop_of_substitutions_ends():
    with pytest.raises(ConfigError, check=has_code("migrate/nested-commands")):
        commands('bash -c "$X"', {"X": 'bash -c "$X"'}, FOLDER)


def test_a_part_that_only_a_shell_knows_splits_no_word():
    assert words("N=run_$(date +%Y_%m %H); show name=$N x") == [
        ["show", "name=run_$(date +%Y_%m %H)", "x"]
    ]
    assert words('N="a=$HOME/a  b=2"; show $N x') == [["show", "a=$HOME/a", "b=2", "x"]]


def test_a_probe_of_the_machine_is_taken_to_fail_and_is_named():
    script = "D=${D:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}; show $D"
    (command,) = commands(script, {}, FOLDER)

    assert command.words == ("show", "gpu")
    ((probe, how),) = command.assumed
    assert (probe.startswith("$(python3"), how) == (True, "the machine is not probed: gpu is taken")
    assert words(script, D="npu") == [["show", "npu"]]


def test_an_undecided_case_takes_its_first_branch():
    script = "case $1 in\na) X=1 ;;\nb) X=2 ;;\nesac\nshow $X"
    (command,) = commands(script, {}, FOLDER)

    assert command.words == ("show", "1")
    assert [what for what, _ in command.assumed] == ["line 1: case $1"]


def test_all_branches_of_an_undecided_if_count():
    script = "if [ -f x ]; then\nshow a\nelse\nshow b\nX=1\nfi\nshow c"
    found = commands(script, {}, FOLDER)

    assert [command.words[1] for command in found] == ["a", "b", "c"]
    assert [what for what, _ in found[-1].assumed] == ["line 1: if [ -f x ]"]


@pytest.mark.parametrize("text", ["$((2 ** 3))", "$((X + 1))", "$((1 / 0))", "$((1 +))"])
def test_what_is_not_computed_stays(text):
    assert words(f"show {text}") == [["show", text]]


def test_a_given_value_counts_whatever_the_script_assigns():
    (command,) = commands('NAME="run_$(date +%m)"\nNAME+=x\ntrl $NAME', {"NAME": "mine"}, Path("/"))

    assert command.words == ("trl", "mine")
    assert command.unresolved == ()


def test_the_working_directory_is_known():
    (command,) = commands("trl $PWD/out ${PWD} $(pwd)", {}, Path("/"))

    here = str(Path.cwd())
    assert command.words == ("trl", f"{here}/out", here, here)
    assert command.unresolved == ()
