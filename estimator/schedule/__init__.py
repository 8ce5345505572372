"""Training and evaluation by turns, in one process or in two."""

from estimator.schedule.continuous import evaluate_continuously as evaluate_continuously
from estimator.schedule.rounds import ScheduleResult as ScheduleResult
from estimator.schedule.specs import EvalSpec as EvalSpec
from estimator.schedule.specs import TrainSpec as TrainSpec
from estimator.schedule.together import train_and_evaluate as train_and_evaluate
