"""The prompts as samplers see them are those of the run's tasks, and their randomness is the run's."""

import numpy as np

from rlhf_core.contracts import Task, Uid
from rlhf_trainer.rollouts.prompts import PromptsOfTasks


class ThreeTasks:
    indices = np.array([1, 4, 6])
    returning = True

    def __len__(self):
        return 3

    def order(self, epoch, seed):
        return np.roll(self.indices, epoch + seed)

    def task(self, index, epoch):
        return Task(uid=Uid(epoch, index), row={"answer": index})


def test_prompts_are_those_of_the_tasks_with_the_order_of_the_run():
    prompts = PromptsOfTasks(ThreeTasks(), seed=1)

    assert len(prompts) == 3
    assert prompts.indices.tolist() == [1, 4, 6]
    assert prompts.returning
    assert prompts.order(1).tolist() == [4, 6, 1]
    assert prompts.row(4) == {"answer": 4}


def test_generators_differ_by_seed_and_counters_alone():
    def drawn(seed, *counters):
        return PromptsOfTasks(ThreeTasks(), seed).generator(*counters).integers(2**60)

    assert drawn(1, 2) == drawn(1, 2)
    assert len({drawn(1, 2), drawn(1, 3), drawn(2, 2), drawn(1, 2, 0)}) == 4
