"""The hooks that every training run has besides the user's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from estimator.checkpoints import CheckpointWriter, preservation_policy
from estimator.job import Job
from estimator.state import TrainState
from hooks import (
    CheckpointSaverHook,
    EventWriter,
    EverySteps,
    Hook,
    LoggingHook,
    NanHook,
    ProgressHook,
    SaveListener,
    SaveOnFile,
    SaveOnSignal,
    SaveRequest,
    StopNotices,
    StopOnNoticeHook,
    SummaryHook,
    ThroughputHook,
)


@contextlib.contextmanager
def with_default_hooks(
    job: Job,
    hooks: Sequence[Hook],
    saving_listeners: Sequence[SaveListener],
    read_state: Callable[[], TrainState],
    notices: StopNotices,
) -> Iterator[list[Hook]]:
    """Yields the user's hooks followed by those that `job.config` asks for; closes their writers.

    A NanHook or ProgressHook of the user's own takes the place of the built-in one. The saver
    comes last, so that it saves what all others have seen; each hook listens to it.
    """
    config = job.config
    with contextlib.ExitStack() as closing:
        writer: EventWriter | None = None
        summaries = config.save_summary_steps or config.save_histograms_steps
        if job.hosts.is_chief and (summaries or config.log_step_count_steps):
            writer = closing.enter_context(EventWriter(job.model_dir))
        all_hooks = list(hooks)
        if not any(isinstance(hook, NanHook) for hook in hooks):
            all_hooks.append(NanHook())
        if writer is not None and summaries:
            steps = config.save_summary_steps
            every = None if steps is None else EverySteps(steps)
            all_hooks.append(SummaryHook(writer, every))
        if config.log_step_count_steps is not None:
            every = EverySteps(config.log_step_count_steps)
            all_hooks += [LoggingHook(every), ThroughputHook(every, writer)]
        if not any(isinstance(hook, ProgressHook) for hook in hooks):
            all_hooks.append(ProgressHook())
        all_hooks.append(StopOnNoticeHook(notices))
        keep = preservation_policy(
            job.model_dir,
            newest=config.keep_checkpoint_max,
            every_n_hours=config.keep_checkpoint_every_n_hours,
            best=config.keep_checkpoint_best,
        )
        timing = None if config.log_step_count_steps is None else writer
        saver = closing.enter_context(
            CheckpointWriter(job.model_dir, read_state, job.input_position, keep, timing)
        )
        periods = config.save_checkpoints_every()
        requests: list[SaveRequest] = []
        if config.save_checkpoints_on_request:
            requests = [closing.enter_context(SaveOnSignal())]
            if job.hosts.is_chief:
                requests.append(SaveOnFile(job.model_dir / "save_now"))
        if not job.hosts.is_chief:  # of the clocks, that of the chief counts
            periods = [period for period in periods if isinstance(period, EverySteps)]
        # A listener that is one of the hooks hears of saves as one of them.
        listeners = [one for one in saving_listeners if not any(one is hook for hook in all_hooks)]
        listeners += all_hooks
        all_hooks.append(
            CheckpointSaverHook(
                saver,
                periods,
                listeners,
                requests,
                agree=job.hosts.any,
            )
        )
        yield all_hooks
