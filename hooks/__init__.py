"""What happens between the loops of train, evaluate and predict."""

from hooks.base import Every as Every
from hooks.base import EverySecs as EverySecs
from hooks.base import EverySteps as EverySteps
from hooks.base import Hook as Hook
from hooks.base import HookContext as HookContext
from hooks.base import LoopView as LoopView
from hooks.base import Saver as Saver
from hooks.base import Writer as Writer
from hooks.checkpoint import CheckpointSaverHook as CheckpointSaverHook
from hooks.checkpoint import SaveListener as SaveListener
from hooks.functions import FinalOpsHook as FinalOpsHook
from hooks.functions import LambdaHook as LambdaHook
from hooks.garbage import GarbageCollectHook as GarbageCollectHook
from hooks.hyperparameters import HyperparameterSummaryHook as HyperparameterSummaryHook
from hooks.hyperparameters import TextWriter as TextWriter
from hooks.memory import MemoryHook as MemoryHook
from hooks.nan import NanHook as NanHook
from hooks.nan import NanLossError as NanLossError
from hooks.profile import ProfilerHook as ProfilerHook
from hooks.progress import ProgressHook as ProgressHook
from hooks.report import LoggingHook as LoggingHook
from hooks.report import ThroughputHook as ThroughputHook
from hooks.sequence import HookSequence as HookSequence
from hooks.stop import StopAfterSecsHook as StopAfterSecsHook
from hooks.stop import StopAtStepHook as StopAtStepHook
from hooks.summaries import SummaryHook as SummaryHook
