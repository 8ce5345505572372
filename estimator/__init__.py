"""Trains, evaluates, predicts with and exports JAX models from two functions."""

import hooks as hooks
import input_pipeline as input_pipeline
from estimator import checkpoints as checkpoints
from estimator import debug as debug
from estimator import distributed as distributed
from estimator import export as export
from estimator.checkpoints import CheckpointError as CheckpointError
from estimator.checkpoints import CheckpointMismatchError as CheckpointMismatchError
from estimator.checkpoints import WarmStart as WarmStart
from estimator.checkpoints import WriterConflictError as WriterConflictError
from estimator.config import KeepBest as KeepBest
from estimator.config import RunConfig as RunConfig
from estimator.describe_sharding import describe_sharding as describe_sharding
from estimator.device_config import DeviceConfig as DeviceConfig
from estimator.estimator import Estimator as Estimator
from estimator.hosts import HostError as HostError
from estimator.hosts import HostLostError as HostLostError
from estimator.input_config import InputPipelineConfig as InputPipelineConfig
from estimator.model import Functional as Functional
from estimator.model import ModelContext as ModelContext
from estimator.preemption import PreemptedError as PreemptedError
from estimator.preemption import exit_on_preemption as exit_on_preemption
from estimator.schedule import EvalSpec as EvalSpec
from estimator.schedule import ScheduleResult as ScheduleResult
from estimator.schedule import TrainSpec as TrainSpec
from estimator.schedule import evaluate_continuously as evaluate_continuously
from estimator.schedule import train_and_evaluate as train_and_evaluate
from estimator.spec import EstimatorSpec as EstimatorSpec
from estimator.spec import ModeKeys as ModeKeys
from estimator.watchdog import WatchdogError as WatchdogError
from hooks import NanLossError as NanLossError
