"""From whatever input_fn returns to stacks of numpy batches; knows no device and no estimator."""

from input_pipeline.adapters import make_source as make_source
from input_pipeline.batch_axes import BatchAxes as BatchAxes
from input_pipeline.columns import Columns as Columns
from input_pipeline.combined import CombinedSource as CombinedSource
from input_pipeline.dataset import Dataset as Dataset
from input_pipeline.elsewhere import ElsewhereSource as ElsewhereSource
from input_pipeline.layout import tensor_name as tensor_name
from input_pipeline.packing import Packing as Packing
from input_pipeline.queue import ClosableQueue as ClosableQueue
from input_pipeline.queue import QueueClosed as QueueClosed
from input_pipeline.source import InputContext as InputContext
from input_pipeline.source import Position as Position
from input_pipeline.source import PositionError as PositionError
from input_pipeline.source import RegroupedInputError as RegroupedInputError
from input_pipeline.source import Source as Source
from input_pipeline.source import Stack as Stack
