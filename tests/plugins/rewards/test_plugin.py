import subprocess
import sys


def test_registering_imports_nothing_heavy():
    heavy = "{'torch', 'transformers', 'datasets', 'sympy', 'math_verify', 'regex'}"
    code = f"import sys, rlhf_plugin_rewards; print(sorted({heavy} & {{*sys.modules}}))"

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


def test_the_function_reward_says_that_it_wraps_code(plugins):
    assert plugins.get("rlhf_rewards", "rewards:function").component.provides == {"wraps_code"}
