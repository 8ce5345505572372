"""Opens the input of a run, which may be long in coming."""

from __future__ import annotations

from collections.abc import Callable

from etils import epath

from estimator import checkpoints
from estimator.errors import Rendezvous
from estimator.job import Job
from estimator.preemption import stop_error
from estimator.watchdog import Doing
from hooks import StopNotices
from input_pipeline import ClosableQueue, Source


def open_input(
    job: Job,
    open_source: Callable[[], Source],
    checkpoint: epath.Path | None = None,
    notices: StopNotices | None = None,
) -> Source:
    """Returns what `open_source` returns, its first batch read.

    It runs on a thread of its own, so that neither a notice nor the watchdog waits for it.

    Args:
      job: of the run.
      open_source: calls input_fn.
      checkpoint: that the run starts from, if any.
      notices: of the run; None where nothing tells it to stop.

    Raises:
      PreemptedError, KeyboardInterrupt: there was a notice, on this process or another.
      WatchdogError: no batch came.
    """

    def read() -> None:
        source = open_source()
        source.element_spec()
        source.at_end()
        result.put(source)

    with Rendezvous() as rendezvous:
        result: ClosableQueue[Source] = ClosableQueue(1, name="input")
        rendezvous.owns(result)
        if notices is not None:
            notices.listen(lambda notice: result.abandon())
        rendezvous.spawn("input", read)
        job.watchdog(rendezvous).begins(Doing.INPUT)
        source = result.get()
    if notices is not None and job.hosts.any("the input is open", source is None):
        notice = job.agreed_notice(notices)
        assert notice is not None, "what else ends the wait for it"
        step = 0 if checkpoint is None else checkpoints.global_step(checkpoint)
        raise stop_error(notice, step, checkpoint)
    assert source is not None
    return source
