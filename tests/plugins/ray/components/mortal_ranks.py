"""The DeepSpeed backend, of which a rank gets a SIGKILL by the plan of ``mortal_components``."""

from mortal_components import enter, moment

from rlhf_plugin_deepspeed.backend import DeepSpeedBackend


class MortalDeepSpeed(DeepSpeedBackend):
    def __init__(self, config):
        super().__init__(config)
        enter("rank")

    def train_step(self, batch, plan):
        moment("rank.train")
        return super().train_step(batch, plan)
