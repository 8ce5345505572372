"""How input is deployed and laid out: what cannot be meant is refused when it is said."""

from __future__ import annotations

import pytest

import estimator as est


@pytest.mark.parametrize(
    "settings, kind, message",
    [
        ({"deployment": "per_core"}, ValueError, "deployment='per_core'.*per_host, per_replica"),
        ({"batch_axis": ("x", 1)}, TypeError, "batch_axis must be a dict"),
        ({"batch_axis": {"features/x": -1}}, ValueError, r"batch_axis\['features/x'\]=-1"),
        ({"batch_axis": {"features/x": True}}, ValueError, r"batch_axis\['features/x'\]=True"),
        ({"partition_dims": [1, 2]}, TypeError, "partition_dims must be a dict"),
        ({"partition_dims": {"labels": 2}}, ValueError, r"partition_dims\['labels'\]=2 must hold"),
        ({"partition_dims": {"labels": ()}}, ValueError, r"partition_dims\['labels'\]=\(\)"),
        ({"partition_dims": {"labels": (1, 0)}}, ValueError, r"\['labels'\]=\(1, 0\)"),
        (
            {"partition_dims": {"labels": (2, 1)}},
            ValueError,
            "cuts dimension 0, which is the batch",
        ),
        (
            {"partition_dims": {"labels": (1, 2)}, "batch_axis": {"labels": 1}},
            ValueError,
            "cuts dimension 1, which is the batch",
        ),
    ],
)
def test_what_cannot_be_meant_is_an_error_naming_the_tensor(settings, kind, message):
    with pytest.raises(kind, match=message):
        est.InputPipelineConfig(**settings)


def test_every_deployment_may_be_named():
    for deployment in ("per_host", "per_replica", "broadcast", "sliced"):
        assert est.InputPipelineConfig(deployment=deployment).deployment == deployment


@pytest.mark.parametrize(
    "settings, kind, message",
    [
        ({"input": "per_host"}, TypeError, "input must be an InputPipelineConfig, got str"),
        ({"input_resume": "again"}, ValueError, "input_resume='again'.*continue, restart"),
        ({"require_exact_resume": "yes"}, TypeError, "require_exact_resume must be True or False"),
    ],
)
def test_a_run_config_refuses_what_its_input_cannot_be(settings, kind, message):
    with pytest.raises(kind, match=message):
        est.RunConfig(**settings)
