"""Export outputs name their arrays as TensorFlow Serving does, and refuse what cannot be served."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from estimator.export import ClassificationOutput, ExportOutput, PredictOutput, RegressionOutput

SCORES = jnp.ones((4, 3))


def test_a_predict_output_keeps_the_names_and_arrays_it_is_given():
    ids = np.arange(4)
    output = PredictOutput({"scores": SCORES, "ids": ids})
    assert output.method == "predict"
    assert output.as_dict() == {"scores": SCORES, "ids": ids}


def test_one_array_alone_is_called_output():
    assert PredictOutput(SCORES).as_dict() == {"output": SCORES}


def test_outputs_of_any_structure_are_called_by_the_path_to_them():
    nested = {"boxes": {"center": SCORES, "size": SCORES}, "steps": [SCORES, SCORES]}
    assert list(PredictOutput(nested).as_dict()) == [
        "boxes/center",
        "boxes/size",
        "steps/0",
        "steps/1",
    ]


def test_a_classification_output_gives_scores_and_leaves_out_absent_classes():
    output = ClassificationOutput(SCORES)
    assert output.method == "classify"
    assert output.as_dict() == {"scores": SCORES}


def test_a_classification_output_gives_the_classes_it_has():
    classes = jnp.zeros((4, 3), jnp.int32)
    assert ClassificationOutput(SCORES, classes).as_dict()["classes"] is classes


def test_a_regression_output_is_called_outputs():
    value = jnp.ones(4, jnp.bfloat16)
    output = RegressionOutput(value)
    assert output.method == "regress"
    assert output.as_dict() == {"outputs": value}


def test_outputs_hold_tracers_inside_a_trace():
    def model(x):
        output: ExportOutput = PredictOutput({"doubled": 2 * x})
        return output.as_dict()

    assert jax.eval_shape(model, SCORES)["doubled"].shape == (4, 3)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: PredictOutput([1.0]), TypeError, r"outputs\['0'\] is of type float; expected an"),
        (lambda: PredictOutput({}), ValueError, "outputs is empty"),
        (
            lambda: PredictOutput({"a": {"b": SCORES}, "a/b": SCORES}),
            ValueError,
            "two arrays that are both called 'a/b'",
        ),
        (
            lambda: PredictOutput({"loss": jnp.float32(1)}),
            ValueError,
            r"outputs\['loss'\] is the scalar float32\[\]",
        ),
        (lambda: ClassificationOutput("cat"), TypeError, "scores is of type str"),
        (
            lambda: ClassificationOutput(jnp.ones((4, 3), jnp.int32)),
            TypeError,
            r"scores is int32\[4, 3\]; expected a floating point array",
        ),
        (
            lambda: ClassificationOutput(jnp.ones(4)),
            ValueError,
            r"scores is float32\[4\]; expected the dimensions \[batch, classes\]. Add a dimension",
        ),
        (
            lambda: ClassificationOutput(SCORES, ["a", "b"]),
            TypeError,
            "classes is of type list",
        ),
        (
            lambda: ClassificationOutput(SCORES, jnp.zeros((4, 2))),
            ValueError,
            r"classes is float32\[4, 2\] and scores is float32\[4, 3\]",
        ),
        (
            lambda: RegressionOutput(jnp.ones((4, 1))),
            ValueError,
            r"value is float32\[4, 1\]; expected the dimensions \[batch\]. Drop the last",
        ),
        (lambda: RegressionOutput(jnp.arange(4)), TypeError, r"value is int32\[4\]"),
        (lambda: RegressionOutput(1.0), TypeError, "value is of type float"),
    ],
)
def test_an_output_that_cannot_be_served_is_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()
