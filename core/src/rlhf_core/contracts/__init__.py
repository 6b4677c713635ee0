"""Protocols and data types that plugins and core exchange. One file for each kind of component; none imports torch."""

from ..batch.metric import Metric, Metrics, merge_metrics, metric_values
from ..batch.task import Message, Task, Uid
from ..batch.token_columns import Block, DeferredTokens, TokenColumns, Tokens
from ..batch.trajectory import Stop, Trajectory, Turn
from ..batch.trajectory_columns import TrajectoryColumns
from ..component import ComponentRef
from ..observer import RolloutSample, RunInfo, RunResult
from .advantage import AdvantageEstimator, Advantages, RewardBatch
from .backend import (
    PREPARED,
    Aggregation,
    LossTerm,
    Normalizers,
    PolicyObjective,
    RoleSpec,
    ScheduleSpec,
    Statistic,
    StepOutcome,
    StepPlan,
    TopTokens,
    TrainBackend,
    TrainBatch,
    ValueObjective,
)
from .correction import Correction, IsCorrection
from .engine import (
    Completion,
    Engine,
    EngineSpec,
    GenerationRequest,
    LinkedEngine,
    SamplingParams,
    WeightSource,
    WeightSync,
)
from .environment import Action, Environment, Observation, StepResult
from .executor import Generator, Renderer, RolloutContext, RolloutExecutor
from .group import FinishedGroup, GroupPlayer, GroupSettings
from .layout import ENGINE, ROLLOUT, Colocation, ProcessLayout, WeightWay
from .learner import Learner, LearnOutcome, LearnRequest
from .loss import LossInputs, PolicyLoss, PreparingLoss, StepColumns, TokenLoss
from .model_adapter import ModelAdapter
from .optimizer import NamedParameters, Optimizer, ParameterGroup, norm_parameters
from .preference import AnswerLogprobs, PreferenceInputs, PreferenceLoss, PreferenceResult
from .reward import (
    Reward,
    RewardRequest,
    RewardResult,
    RewardShaper,
    RolloutInfo,
    SampleFilter,
)
from .runtime import (
    Placement,
    PlansPlacement,
    RewardSpec,
    RoleHandle,
    RolloutSpec,
    Runtime,
    RuntimeSpec,
)

__all__ = [
    "ENGINE",
    "PREPARED",
    "ROLLOUT",
    "Action",
    "AdvantageEstimator",
    "Advantages",
    "Aggregation",
    "AnswerLogprobs",
    "Block",
    "Colocation",
    "Completion",
    "ComponentRef",
    "Correction",
    "DeferredTokens",
    "Engine",
    "EngineSpec",
    "Environment",
    "FinishedGroup",
    "GenerationRequest",
    "Generator",
    "GroupPlayer",
    "GroupSettings",
    "IsCorrection",
    "LearnOutcome",
    "LearnRequest",
    "Learner",
    "LinkedEngine",
    "LossInputs",
    "LossTerm",
    "Message",
    "Metric",
    "Metrics",
    "ModelAdapter",
    "NamedParameters",
    "Normalizers",
    "Observation",
    "Optimizer",
    "ParameterGroup",
    "Placement",
    "PlansPlacement",
    "PolicyLoss",
    "PolicyObjective",
    "PreferenceInputs",
    "PreferenceLoss",
    "PreferenceResult",
    "PreparingLoss",
    "ProcessLayout",
    "Renderer",
    "Reward",
    "RewardBatch",
    "RewardRequest",
    "RewardResult",
    "RewardShaper",
    "RewardSpec",
    "RoleHandle",
    "RoleSpec",
    "RolloutContext",
    "RolloutExecutor",
    "RolloutInfo",
    "RolloutSample",
    "RolloutSpec",
    "RunInfo",
    "RunResult",
    "Runtime",
    "RuntimeSpec",
    "SampleFilter",
    "SamplingParams",
    "ScheduleSpec",
    "Statistic",
    "StepColumns",
    "StepOutcome",
    "StepPlan",
    "StepResult",
    "Stop",
    "Task",
    "TokenColumns",
    "TokenLoss",
    "Tokens",
    "TopTokens",
    "TrainBackend",
    "TrainBatch",
    "Trajectory",
    "TrajectoryColumns",
    "Turn",
    "Uid",
    "ValueObjective",
    "WeightSource",
    "WeightSync",
    "WeightWay",
    "merge_metrics",
    "metric_values",
    "norm_parameters",
]
