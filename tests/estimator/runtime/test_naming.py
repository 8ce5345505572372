from __future__ import annotations

import functools

import jax

from estimator.runtime.naming import FunctionNames


def structure(*feeds):
    return jax.tree.structure(feeds)


def step(state, batch, *rest, flag=None):
    return state


class Model:
    def __call__(self, x):
        return x

    def apply(self, x):
        return x


def test_leaves_are_named_by_parameter_and_path():
    feeds = structure({"w": 0, "b": [0, 0]}, 0)
    assert FunctionNames(step).leaves(feeds) == ["state/b/0", "state/b/1", "state/w", "batch"]


def test_feeds_beyond_the_named_parameters_are_named_by_position():
    assert FunctionNames(step).leaves(structure(0, 0, 0, {"x": 0})) == [
        "state",
        "batch",
        "feeds[2]",
        "feeds[3]/x",
    ]


def test_bound_methods_and_callable_objects_leave_out_self():
    assert FunctionNames(Model().apply).leaves(structure(0)) == ["x"]
    assert FunctionNames(Model()).leaves(structure(0)) == ["x"]
    assert FunctionNames(Model()).function == "Model"


def test_a_partial_has_the_name_of_its_function_and_the_parameters_that_are_left():
    names = FunctionNames(functools.partial(step, 1))
    assert names.function == "step"
    assert names.leaves(structure(0)) == ["batch"]


def test_a_jitted_function_has_the_names_of_what_was_jitted():
    names = FunctionNames(jax.jit(step))
    assert names.function == "step"
    assert names.feed(1) == "batch"
