"""Who shares what with whom, before there is a cluster."""

import pytest

from rlhf_core import ConfigError
from rlhf_plugin_ray.config import RayRuntimeConfig
from rlhf_plugin_ray.layout import plan_layout, require_room
from rlhf_testing.errors import has_code

ROLES = ["policy", "reference"]


def plan(*, roles=ROLES, has_gpus=False, **options):
    return plan_layout(RayRuntimeConfig(**options), roles, has_gpus=has_gpus)


def test_everything_shares_one_bundle_unless_told_otherwise():
    layout = plan()

    (part,) = layout.colocations
    assert part.names == ("policy", "reference", "engine")
    assert part.bundle == {"CPU": 1.0}
    assert part.cpus_per_process == 0.3333  # ten-thousandths, rounded down: 3 of them must fit


def test_a_set_has_as_many_bundles_as_its_largest_member():
    layout = plan(ranks={"policy": 4}, engines=2, has_gpus=True)

    (part,) = layout.colocations
    assert part.num_bundles == 4
    assert part.bundle == {"CPU": 1.0, "GPU": 1.0}
    assert layout.counts == {"policy": 4, "reference": 1, "engine": 2}


def test_what_is_in_no_set_is_placed_alone():
    layout = plan(colocate=("policy+reference",), has_gpus=True, gpus_per={"engine": 2.0})

    assert [part.names for part in layout.colocations] == [("policy", "reference"), ("engine",)]
    assert layout.of("engine").gpus_per_process == 2.0
    assert layout.of("reference").gpus_per_process == 0.5


def test_no_sets_place_everything_apart():
    assert [part.names for part in plan(colocate=()).colocations] == [
        ("policy",),
        ("reference",),
        ("engine",),
    ]


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (
            {"ranks": {"polcy": 2}},
            r"ranks names polcy; this run has policy, reference",
            "ray/unknown-process",
        ),
        ({"ranks": {"engine": 2}}, r"ranks names engine", "ray/unknown-process"),
        ({"gpus_per": {"critic": 1}}, r"gpus_per names critic", "ray/unknown-process"),
        ({"colocate": ("policy+critic",)}, r"colocate names critic", "ray/unknown-process"),
        (
            {"colocate": ("policy", "policy+engine")},
            r"names policy more than once",
            "ray/colocated-twice",
        ),
        ({"gpus_per": {"engine": 2}}, r"policy 0, reference 0, engine 2", "ray/unequal-shares"),
        (
            {"gpus_per": {"engine": 2, "policy": 2, "reference": 2}},
            r"would share 2 GPUs a process",
            "ray/several-gpus",
        ),
    ],
)
def test_contradictions_are_refused(options, message, code):
    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        plan(**options)


def test_asking_for_the_gpu_that_everybody_has_is_no_contradiction():
    layout = plan(gpus_per={"engine": 1}, has_gpus=True)

    assert layout.colocations[0].bundle == {"CPU": 1.0, "GPU": 1.0}


def test_a_cluster_that_is_too_small_is_told_what_is_missing():
    layout = plan(ranks={"policy": 3}, colocate=("policy+engine",), gpus_per={"reference": 1})

    require_room(layout, {"CPU": 4.0, "GPU": 1.0})
    with pytest.raises(
        ConfigError,
        match=r"needs 4 CPUs, the Ray cluster has 2",
        check=has_code("ray/too-few-resources"),
    ) as told:
        require_room(layout, {"CPU": 2.0, "GPU": 1.0})
    assert "policy x3 + engine x1: 3 x (1 CPU)" in str(told.value)
    with pytest.raises(
        ConfigError,
        match=r"needs 1 GPUs, the Ray cluster has 0",
        check=has_code("ray/too-few-resources"),
    ):
        require_room(layout, {"CPU": 8.0})


def test_rollout_workers_are_a_set_of_their_own_without_gpus():
    config = RayRuntimeConfig(rollout_workers=3, cpus_per={"rollout": 2})

    layout = plan_layout(config, ["policy"], has_gpus=True)

    workers = layout.of("rollout")
    assert (workers.names, workers.num_bundles, workers.bundle) == (("rollout",), 3, {"CPU": 2.0})
    assert workers.spread
    assert layout.of("policy").names == ("policy", "engine")
    assert layout.of("policy").gpus == 1.0


def test_rollout_workers_are_named_only_where_there_are_some():
    for options in ({"cpus_per": {"rollout": 2}}, {"colocate": ("policy+rollout",)}):
        with pytest.raises(
            ConfigError, match=r"rollout.*policy, engine", check=has_code("ray/unknown-process")
        ):
            plan_layout(RayRuntimeConfig(**options), ["policy"], has_gpus=False)


def test_without_an_engine_there_are_roles_alone():
    config = RayRuntimeConfig(ranks={"policy": 2}, engines=3, rollout_workers=4)

    layout = plan_layout(config, ["policy"], has_gpus=True, has_engine=False)

    assert layout.counts == {"policy": 2}
    (part,) = layout.colocations
    assert (part.names, part.num_bundles) == (("policy",), 2)
    assert part.bundle == {"CPU": 1.0, "GPU": 1.0}


@pytest.mark.parametrize(
    "options",
    [{"gpus_per": {"engine": 1}}, {"cpus_per": {"engine": 1}}, {"colocate": ("policy+engine",)}],
)
def test_an_engine_that_the_run_has_not_is_not_named(options):
    with pytest.raises(ConfigError, match=r"engine.*policy", check=has_code("ray/unknown-process")):
        plan_layout(RayRuntimeConfig(**options), ["policy"], has_gpus=False, has_engine=False)


def test_options_for_engines_are_options():
    assert RayRuntimeConfig().for_engines <= RayRuntimeConfig.model_fields.keys()
