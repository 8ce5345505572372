"""Predicting many rows, as batches and one by one."""

from benchmarks.contest import AtLeast, Contest, Contestant
from benchmarks.tasks import PREDICT

CONTEST = Contest(
    title="Predict",
    about=(
        f"Class and probabilities by the MLP for {PREDICT.examples:,} rows, over and over, in "
        f"batches of {PREDICT.batch_size:,}, as they stream: set-up is not timed. By hand: two "
        "batches are computed while the results of one before are read. Keras is not a stream: it "
        "predicts logits for all rows into one array, and `argmax` is timed with it. The whole "
        "call is for all rows once, with the start of threads, the checkpoint and the end."
    ),
    unit="rows/s",
    subject="Estimator, batches",
    contestants=[
        Contestant(name="Estimator, batches", peer="ours:PredictBatches", task=PREDICT),
        Contestant(name="Estimator, examples", peer="ours:PredictExamples", task=PREDICT),
        Contestant(name="Estimator, batches, whole call", peer="ours:PredictCall", task=PREDICT),
        Contestant(name="by hand, batches", peer="by_hand:PredictBatches", task=PREDICT),
        Contestant(name="by hand, examples", peer="by_hand:PredictExamples", task=PREDICT),
        Contestant(name="Keras", peer="keras3:Predict", task=PREDICT),
        Contestant(
            name="TPUEstimator, batches",
            peer="tpu_estimator:PredictBatches",
            task=PREDICT,
            environment="tensorflow",
        ),
        Contestant(
            name="TPUEstimator, examples",
            peer="tpu_estimator:PredictExamples",
            task=PREDICT,
            environment="tensorflow",
        ),
    ],
    targets=[
        AtLeast(0.9, "Estimator, batches", ("by hand, batches",)),
        AtLeast(2.5, "Estimator, examples", ("TPUEstimator, examples",)),
    ],
)
