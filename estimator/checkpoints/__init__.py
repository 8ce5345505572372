"""Checkpoints: listed, read and described with or without the devices that saved them."""

from estimator.checkpoints.arrays import load_variable as load_variable
from estimator.checkpoints.arrays import load_variables as load_variables
from estimator.checkpoints.arrays import variable_shapes as variable_shapes
from estimator.checkpoints.describing import Description as Description
from estimator.checkpoints.describing import describe as describe
from estimator.checkpoints.layout import LAYOUT as LAYOUT
from estimator.checkpoints.layout import Checkpoint as Checkpoint
from estimator.checkpoints.layout import CheckpointError as CheckpointError
from estimator.checkpoints.layout import CheckpointMismatchError as CheckpointMismatchError
from estimator.checkpoints.layout import as_path as as_path
from estimator.checkpoints.layout import directory as directory
from estimator.checkpoints.layout import existing as existing
from estimator.checkpoints.layout import global_step as global_step
from estimator.checkpoints.layout import input_position as input_position
from estimator.checkpoints.layout import latest as latest
from estimator.checkpoints.layout import list as list
from estimator.checkpoints.lock import WriterConflictError as WriterConflictError
from estimator.checkpoints.lock import sole_writer as sole_writer
from estimator.checkpoints.restoring import load_like as load_like
from estimator.checkpoints.restoring import restore_train_state as restore_train_state
from estimator.checkpoints.restoring import restore_variables as restore_variables
from estimator.checkpoints.retention import preservation_policy as preservation_policy
from estimator.checkpoints.trees import with_leaves as with_leaves
from estimator.checkpoints.warm_start import WarmStart as WarmStart
from estimator.checkpoints.warm_start import read_warm_start as read_warm_start
from estimator.checkpoints.writing import CheckpointWriter as CheckpointWriter
