"""Holds the directions in which imports point: a file can be read without those above it."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# What the files of each folder may import of this project's own packages, besides their own.
MAY_IMPORT = {
    "input_pipeline": set(),
    "hooks": set(),
    "estimator": {"hooks", "input_pipeline"},
    "examples": {"estimator"},
    "benchmarks": {"estimator"},
}

# The rooms (files and folders) of `estimator`, lowest first: a room imports from its own layer and
# those below it. A new one needs a place here.
ESTIMATOR_LAYERS = [
    {"spec", "config", "device_config", "input_config", "mesh", "hosts", "distributed", "launch"}
    | {"batches", "loop_length", "loop_shape", "preemption"},
    {
        "tensor_report",
        "model",
        "metrics",
        "histograms",
        "bad_variables",
        "errors",
        "state",
        "outline",
        "export",
        "runtime",
    }
    | {"annotations", "gathering", "microbatches", "precision", "replicas", "sharding"},
    {"steps", "train_step", "tensor_trace", "loop_body", "compiled_loops", "loop_program"}
    | {"programs"}
    | {
        "device_tables",
        "inputs",
        "input_partition",
        "input_positions",
        "infeed",
        "shared_infeed",
        "scattered_infeed",
        "outfeed",
    }
    | {"checkpoints", "training_end"},
    {"watchdog"},
    {"feeding", "job", "opening", "resuming", "loop_start", "train_hooks"}
    | {"training", "evaluation", "prediction", "exporting"},
    {"estimator"},
    {"schedule", "describe_sharding", "debug"},
    {"__init__"},
]

# Rooms of `estimator` that could be packages of their own: all that they import of the others.
APART = {"export": {"runtime"}, "runtime": {"errors"}}

# Slow to import, or optional: only inside functions.
IMPORTED_LATE = {
    "PIL",
    "datasets",
    "grain",
    "mlflow",
    "orbax",
    "pandas",
    "rich",
    "tensorboardX",
    "tensorflow",
    "tensorflow_datasets",
    "torch",
    "tqdm",
    "wandb",
}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports(tree: ast.AST) -> Iterator[str]:
    """Yields the full name of each module, or member of a module, that `tree` imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ("." * node.level + f"{node.module}.{alias.name}" for alias in node.names)


def imports_on_load(tree: ast.Module) -> Iterator[str]:
    """As `imports`, leaving out what stands in functions and so waits for a call."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(node)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def room_of(name: str) -> str | None:
    """Returns <room> of `estimator.<room>...`; `__init__` for the package itself and what it
    re-exports; None for what is no part of `estimator`."""
    package, _, rest = name.partition(".")
    room = rest.split(".")[0]
    if package != "estimator":
        return None
    return room if any(room in layer for layer in ESTIMATOR_LAYERS) else "__init__"


def layer_of(room: str) -> int:
    return next(index for index, layer in enumerate(ESTIMATOR_LAYERS) if room in layer)


def imports_between_rooms() -> Iterator[tuple[Path, str, str, str]]:
    """Yields (file, its room, what it imports, the room of that)."""
    for path in sources("estimator"):
        room = path.relative_to(ROOT).with_suffix("").parts[1]
        for name in imports(parsed(path)):
            imported = room_of(name)
            if imported is not None and imported != room:
                yield path.relative_to(ROOT), room, name, imported


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_packages_import_only_those_below_them(folder):
    allowed = MAY_IMPORT[folder] | {folder}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(folder)
        for name in imports(parsed(path))
        if name.split(".")[0] in MAY_IMPORT.keys() - allowed
    ]
    assert sources(folder) and not wrong


def test_every_room_of_estimator_has_a_place_in_the_layers():
    rooms = {path.relative_to(ROOT).with_suffix("").parts[1] for path in sources("estimator")}
    assert rooms == set().union(*ESTIMATOR_LAYERS)


def test_rooms_of_estimator_import_only_from_their_own_layer_and_below():
    wrong = [
        f"{path} imports {name}"
        for path, room, name, imported in imports_between_rooms()
        if layer_of(imported) > layer_of(room)
    ]
    assert not wrong


@pytest.mark.parametrize("apart", APART)
def test_rooms_that_stand_apart_import_next_to_nothing_of_the_others(apart):
    wrong = [
        f"{path} imports {name}"
        for path, room, name, imported in imports_between_rooms()
        if room == apart and imported not in APART[apart]
    ]
    assert not wrong


def test_no_file_imports_itself_through_others():
    modules = {module_name(path): path for path in sources("input_pipeline", "hooks", "estimator")}
    graph = {
        module: {
            known
            for name in imports(parsed(path))
            for known in (name, name.rpartition(".")[0], f"{name}.__init__")
            if known in modules and known != module
        }
        for module, path in modules.items()
    }
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_imports_name_their_package_and_no_private_module_or_member():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(*MAY_IMPORT, "tests")
        for name in imports(parsed(path))
        if any(part.startswith("_") for part in name.split(".") if not part.startswith("__"))
        or name.startswith(".")
    ]
    assert not wrong


def test_the_private_modules_of_jax_are_not_reached_by_attribute():
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources(*MAY_IMPORT, "tests")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr == "_src"
    ]
    assert not wrong


def test_heavy_and_optional_libraries_are_imported_only_when_they_are_used():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name} on load"
        for path in sources("input_pipeline", "hooks", "estimator")
        for name in imports_on_load(parsed(path))
        if name.split(".")[0] in IMPORTED_LATE
    ]
    assert not wrong


def test_init_files_only_re_export_under_the_same_name():
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources("input_pipeline", "hooks", "estimator")
        if path.name == "__init__.py"
        for node in parsed(path).body
        if not re_exports(node)
    ]
    assert not wrong


def re_exports(node: ast.stmt) -> bool:
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    is_import = isinstance(node, ast.Import | ast.ImportFrom) and all(
        alias.asname == alias.name.rpartition(".")[2] for alias in node.names
    )
    return is_docstring or is_import
