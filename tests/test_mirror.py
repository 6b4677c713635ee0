"""Each module of the loop, the objective, the backends and the configuration has a test file of its name.

``core/src/rlhf_core/loop/trainer.py`` is tested in ``tests/core/loop/test_trainer.py``. A module whose behavior is that
of a larger whole names the file that tests the whole; one without logic says so.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"

ROOMS = {
    **{
        f"core/src/rlhf_core/{room}": f"core/{room}"
        for room in ("config", "durable", "learning", "loop", "objective", "rollouts")
    },
    "plugins/rlhf-torch/src/rlhf_torch": "plugins/torch",
    "plugins/rlhf-plugin-local/src/rlhf_plugin_local": "plugins/local",
    "plugins/rlhf-plugin-deepspeed/src/rlhf_plugin_deepspeed": "plugins/deepspeed",
}
"""Room of the source -> its mirror below ``tests``."""

WITHOUT_LOGIC = {
    "core/config/run.py": "options with their ranges; docs/options.md is compared with them",
    "core/config/resolved.py": "dataclasses, whose look-ups are used by every test of test_resolve.py",
    "core/loop/course.py": "protocols and dataclasses, which test_driver.py uses",
    "core/config/train.py": "a table, which test_selection.py goes through",
    "core/objective/scores.py": "a dataclass",
    "plugins/local/config.py": "options with their ranges",
    "plugins/local/engine/config.py": "options with their ranges",
}
"""Module -> why there is nothing to test in a file of its own."""

ONE_RANK, TWO_RANKS = "plugins/deepspeed/test_one_rank.py", "plugins/deepspeed/test_two_ranks.py"
DEEP_COMPILE = "plugins/deepspeed/compile/test_deep_compile.py"

IN_A_LARGER_WHOLE = {
    "core/config/checks/eval_names.py": "core/config/checks/test_rules.py",
    "core/config/checks/in_process.py": "integration/test_python_api.py",
    "core/config/checks/sleep_rules.py": "core/loop/memory/test_decision.py",
    "core/config/problems.py": "core/config/test_resolve.py",
    "core/learning/parts.py": "core/loop/test_session.py",
    "core/learning/process.py": "integration/test_built_from_the_spec.py",
    "core/loop/describe.py": "cli/test_train.py",
    "core/loop/saving/exporting.py": "core/loop/test_driver.py",
    "core/loop/saving/skipping.py": "core/loop/test_driver.py",
    "core/rollouts/images.py": "integration/test_images.py",
    "core/objective/built.py": "core/objective/test_policy.py",
    "core/rollouts/players.py": "core/rollouts/test_source.py",
    "core/rollouts/worker.py": "integration/test_built_from_the_spec.py",
    "plugins/torch/adapters/beside.py": "plugins/torch/models/test_adapted.py",
    "plugins/torch/adapters/fitting.py": "plugins/inference/merge/test_merge.py",
    "plugins/torch/adapters/merging.py": "plugins/inference/merge/test_merge.py",
    "plugins/torch/adapters/score_head.py": "integration/test_rm.py",
    "plugins/torch/building/compiling.py": "plugins/torch/heads/test_action_head.py",
    "plugins/torch/building/triton_modules.py": "plugins/torch/heads/test_on_gpu.py",
    "plugins/torch/training/sum_kernel.py": "plugins/torch/training/test_gradient_sums.py",
    "plugins/torch/heads/fused_head.py": "plugins/torch/heads/test_action_head.py",
    "plugins/torch/models/loading.py": "plugins/torch/models/test_modeling.py",
    "plugins/torch/models/long_positions.py": "plugins/torch/packed/test_rope.py",
    "plugins/torch/models/quiet.py": "plugins/torch/models/test_modeling.py",
    "plugins/torch/models/role_model.py": "plugins/torch/test_train_step.py",
    "plugins/torch/models/shared_base.py": "plugins/lora/test_shared_base.py",
    "plugins/torch/models/verification.py": "plugins/torch/models/test_architectures.py",
    "plugins/torch/packed/attention.py": "plugins/torch/models/test_architectures.py",
    "plugins/torch/packed/score_matrix.py": "plugins/torch/packed/test_packing.py",
    "plugins/torch/packed/whole_graph.py": "plugins/torch/test_compile.py",
    "plugins/torch/models/vision_lm.py": "plugins/vlm/test_agreement.py",
    "plugins/torch/vision/family.py": "plugins/vlm/test_agreement.py",
    "plugins/torch/vision/pictures.py": "plugins/vlm/test_agreement.py",
    "plugins/torch/vision/processor_files.py": "plugins/vlm/test_processors.py",
    "plugins/torch/rows/batch_columns.py": "plugins/torch/test_train_step.py",
    "plugins/torch/scoring/scoring_backend.py": "plugins/torch/scoring/test_scores.py",
    "plugins/local/torch_backend.py": "plugins/torch/test_train_step.py",
    "plugins/local/engine/decode.py": "plugins/local/engine/test_batch.py",
    "plugins/local/engine/next_token/drawing.py": "plugins/local/engine/test_batch.py",
    "plugins/local/engine/memory.py": "plugins/local/engine/test_embedded.py",
    "plugins/local/engine/precast.py": "plugins/local/engine/test_precisions.py",
    "plugins/local/engine/prefill.py": "plugins/local/engine/test_batch.py",
    "plugins/local/engine/sequence.py": "plugins/local/engine/test_batch.py",
    "plugins/local/engine/resident/attention.py": "plugins/local/engine/resident/test_kernels.py",
    "plugins/local/engine/resident/attention_kernel.py": "plugins/local/engine/resident/test_kernels.py",
    "plugins/local/engine/resident/draw_kernel.py": "plugins/local/engine/resident/test_kernels.py",
    "plugins/local/engine/resident/paged_cache.py": "plugins/local/engine/resident/test_batch.py",
    "plugins/local/engine/resident/resumed.py": "plugins/local/engine/resident/test_batch.py",
    "plugins/local/engine/resident/rows.py": "plugins/local/engine/resident/test_batch.py",
    "plugins/local/engine/resident/step.py": "plugins/local/engine/resident/test_batch.py",
    # With DeepSpeed, what one module computes shows only where ranks compute together.
    "plugins/deepspeed/backend.py": ONE_RANK,
    "plugins/deepspeed/library.py": ONE_RANK,
    "plugins/deepspeed/partitioned_model.py": TWO_RANKS,
    "plugins/deepspeed/scoring.py": TWO_RANKS,
    "plugins/deepspeed/compile/graph_passes.py": DEEP_COMPILE,
    "plugins/deepspeed/compile/head_beside_graph.py": DEEP_COMPILE,
    "plugins/deepspeed/compile/rehearsal.py": DEEP_COMPILE,
    "plugins/deepspeed/files/export.py": TWO_RANKS,
    "plugins/deepspeed/files/loading.py": TWO_RANKS,
    "plugins/deepspeed/files/offloading.py": ONE_RANK,
    "plugins/deepspeed/files/state_files.py": "plugins/deepspeed/test_other_ranks.py",
    "plugins/deepspeed/files/weights.py": TWO_RANKS,
    "plugins/deepspeed/parallel/passes.py": TWO_RANKS,
    "plugins/deepspeed/parallel/rank_group.py": TWO_RANKS,
    "plugins/deepspeed/parallel/ranks.py": TWO_RANKS,
    "plugins/deepspeed/zero/collecting.py": TWO_RANKS,
    "plugins/deepspeed/zero/engine_config.py": "plugins/deepspeed/test_config.py",
    "plugins/deepspeed/zero/fragments.py": "plugins/deepspeed/zero/test_whole_updates.py",
    "plugins/deepspeed/zero/replicated_training.py": TWO_RANKS,
    "plugins/deepspeed/zero/zero_training.py": TWO_RANKS,
}
"""Module -> the file that tests what it does, from outside."""


def modules() -> dict[str, Path]:
    """Name of each module of the rooms, by its place in the mirror, such as ``core/loop/trainer.py``."""
    return {
        f"{mirror}/{path.relative_to(ROOT / room)}": path
        for room, mirror in ROOMS.items()
        for path in sorted((ROOT / room).rglob("*.py"))
        if path.name != "__init__.py"
    }


def has_mirror(module: str) -> bool:
    """Whether the tests have a file of the module's name, in the folder of its name."""
    place = TESTS / module
    return place.with_name(f"test_{place.name}").is_file()


def test_the_rooms_are_there():
    assert len(modules()) > 120
    assert [room for room in ROOMS if not (ROOT / room).is_dir()] == []
    assert has_mirror("core/loop/trainer.py")
    assert not has_mirror("core/loop/nowhere.py")


def test_every_module_has_a_test_file_of_its_name_or_a_reason():
    excused = WITHOUT_LOGIC.keys() | IN_A_LARGER_WHOLE.keys()
    missing = [module for module in modules() if not has_mirror(module) and module not in excused]

    assert missing == [], "expected a test file of its name for each, or a reason above"


def test_no_reason_outlives_its_need():
    """A module that is gone, or that has a file by now, needs none; and nobody needs two."""
    excused = WITHOUT_LOGIC.keys() | IN_A_LARGER_WHOLE.keys()

    assert sorted(WITHOUT_LOGIC.keys() & IN_A_LARGER_WHOLE.keys()) == []
    assert sorted(excused - modules().keys()) == []
    assert sorted(filter(has_mirror, excused)) == []


@pytest.mark.parametrize("file", sorted({*IN_A_LARGER_WHOLE.values()}))
def test_the_file_that_tests_a_larger_whole_is_there(file):
    assert (TESTS / file).is_file()
    assert Path(file).name.startswith("test_")
