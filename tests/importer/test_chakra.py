"""Execution traces: both schemas of random models, real ranks, published traces."""

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import InputError, NotModelledError, SimError
from sim.importer.chakra.execution_trace import read_chakra
from sim.importer.chakra.nodes import PROCESS_GROUPS
from sim.importer.matching import match_buckets
from sim.nouns.imported import Imported, ImportOptions
from tests.effort import tries
from tests.importer.ddp_run import BUCKETS, SIZES, files, model
from tests.importer.mutations import mutated
from tests.public_data import DATA, needs_data

TYPES = {"float": 4, "c10::BFloat16": 2, "c10::Half": 2, "double": 8}
DTYPES = {"float": "float32", "c10::BFloat16": "bfloat16", "c10::Half": "float16", "double": "float64"}
ACCUMULATE = "torch::autograd::AccumulateGrad"


def node(number: int, name: str, schema: str, tensors: list[tuple[list[int], str]]) -> dict[str, Any]:
    """One operator with tensors, as either schema writes it."""
    values, shapes, types = [], [], []
    for shape, kind in tensors:
        elements = 1
        for size in shape:
            elements *= size
        values.append([number, 1, 0, elements, TYPES[kind], "cuda:0"])
        shapes.append(shape)
        types.append(f"Tensor({kind})")
    if schema.startswith("1.1"):
        return {"id": number, "name": name, "inputs": {"values": values, "shapes": shapes, "types": types}}
    return {"id": number, "name": name, "inputs": values, "input_shapes": shapes, "input_types": types}


def trace(
    schema: str, iterations: int, gradients: list[tuple[list[int], str]], cuts: set[int]
) -> dict[str, Any]:
    """Iterations of a model under DDP, an all-reduce after each gradient of ``cuts``."""
    nodes: list[dict[str, Any]] = []

    def add(name: str, *tensors: tuple[list[int], str]) -> None:
        nodes.append(node(len(nodes) + 2, name, schema, list(tensors)))

    for _ in range(iterations):
        add("DistributedDataParallel.forward")
        add("aten::mm", ([3, 4], "float"), ([4, 5], "float"))
        open_elements = 0
        for place, (shape, kind) in enumerate(gradients):
            add(ACCUMULATE, (shape, kind))
            elements = 1
            for size in shape:
                elements *= size
            open_elements += elements
            if place in cuts or place == len(gradients) - 1:
                add("nccl:all_reduce", ([open_elements], kind))
                open_elements = 0
        add("Optimizer.step#SGD.step")
    return {"schema": schema, "pid": 1, "time": "", "start_ts": 0, "nodes": nodes[::-1], "finish_ts": 1}


def read(text: str, **options: Any) -> Imported:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(text)
        return read_chakra([path], ImportOptions(**options))


SHAPES = st.lists(st.integers(1, 40), min_size=1, max_size=3)


@settings(max_examples=tries(80), deadline=None)
@given(
    st.sampled_from(["1.0.1", "1.1.0-chakra.0.0.4", "1.1.1-chakra.0.0.4"]),
    st.integers(1, 3),
    st.lists(SHAPES, min_size=1, max_size=12),
    st.sampled_from(sorted(TYPES)),
    st.sets(st.integers(0, 11)),
)
def test_gradients_and_buckets_of_a_model_come_back(
    schema: str, iterations: int, shapes: list[list[int]], kind: str, cuts: set[int]
) -> None:
    """Whatever the schema and the order of its nodes: shapes in ready order, and buckets that fit them."""
    document = trace(schema, iterations, [(shape, kind) for shape in shapes], cuts)
    imported = read(json.dumps(document), backward_ns=1_000_000)
    workload = imported.workload
    assert workload is not None
    ready = [workload.gradients[index] for index in workload.order()]
    assert [list(gradient.shape) for gradient in ready] == shapes
    assert {gradient.dtype for gradient in ready} == {DTYPES[kind]}
    assert ready[-1].ready_ns == workload.backward_ns == 1_000_000
    assert workload.estimated
    assert workload.band is not None
    assert workload.band[0] <= 1 <= workload.band[1]
    assert imported.details["backwards"] == iterations
    buckets = match_buckets(imported.details["all_reduce_bytes"], workload, "trace")
    ends = sorted({place for place in cuts if place < len(shapes)} | {len(shapes) - 1})
    assert [len(bucket) for bucket in buckets] == [b - a for a, b in zip([-1, *ends], ends, strict=False)]


def test_real_ranks() -> None:
    """T1 on two gloo ranks, with a constant of minus infinity in the graph."""
    imported = read_chakra(files("trace"), ImportOptions(backward_ns=100_000))
    assert imported.details["backwards"] == 2
    assert imported.details["world_size"] == 2
    assert imported.details["all_reduce_bytes"] == list(SIZES)
    assert imported.workload is not None
    assert [g.shape for g in imported.workload.gradients] == [g.shape for g in model().gradients]
    assert match_buckets(SIZES, imported.workload, "trace") == BUCKETS
    named = read_chakra(files("trace"), ImportOptions(model=model()))
    assert named.workload == model()


@needs_data
def test_resnet50_on_two_gpus() -> None:
    """161 gradients, 25,557,032 elements, the five buckets of DDP's default."""
    path = DATA / "traces" / "param" / "param_resnet_2gpu_chakra_et.json.gz"
    imported = read_chakra([path], ImportOptions())
    gradients = imported.details["gradients"]
    assert imported.workload is None
    assert any("--backward-ms" in sentence for sentence in imported.missing)
    assert len(gradients) == 161
    assert sum(gradient["num_bytes"] for gradient in gradients) == 4 * 25_557_032
    assert imported.details["backwards"] == 3
    assert imported.details["world_size"] == 2
    elements = [size // 4 for size in imported.details["all_reduce_bytes"]]
    assert elements == [2049000, 7875584, 6563840, 6637568, 2431040]
    assert any("exact sums" in sentence for sentence in imported.found)


@pytest.mark.slow
@needs_data
def test_dlrm_on_eight_gpus() -> None:
    """Two wrapped modules: 394241 and 226960 elements of one, 112 of another between them."""
    folder = DATA / "traces" / "param"
    paths = [folder / f"param_dlrm_et_r{rank}.json.gz" for rank in range(8)]
    imported = read_chakra(paths, ImportOptions(backward_ns=10**7))
    assert [size // 4 for size in imported.details["all_reduce_bytes"]] == [394241, 112, 226960]
    assert imported.details["world_size"] is None  # these name no process group; files are no ranks
    assert any("give --world-size" in sentence for sentence in imported.missing)
    assert read_chakra(paths, ImportOptions(world_size=8)).details["world_size"] == 8
    assert imported.workload is not None
    buckets = match_buckets(imported.details["all_reduce_bytes"], imported.workload, "trace")
    assert [len(bucket) for bucket in buckets] == [6, 1, 8]
    one = read_chakra(paths[3:4], ImportOptions(backward_ns=10**7)).workload
    assert one is not None
    assert one.total_bytes == 4 * (394241 + 112 + 226960)


def test_without_marks_all_reduces_tell_where_a_backward_ends() -> None:
    document = trace("1.0.1", 3, [([5], "float"), ([6], "float")], {0})
    document["nodes"] = [n for n in document["nodes"] if "DistributedData" not in n["name"]]
    document["nodes"] = [n for n in document["nodes"] if "Optimizer" not in n["name"]]
    imported = read(json.dumps(document))
    assert imported.details["backwards"] == 3
    assert [gradient["shape"] for gradient in imported.details["gradients"]] == [[6], [5]]


def test_traces_of_different_jobs_are_refused(tmp_path: Path) -> None:
    """Other gradients, other buckets, another process group, more files than ranks: the file is named."""
    shapes = [([32], "float"), ([32, 112], "float")]
    documents = {
        "first": trace("1.1.1", 1, shapes, {0}),
        "other": trace("1.1.1", 1, shapes[:1], {0}),
        "merged": trace("1.1.1", 1, shapes, set()),
        "wider": with_group(trace("1.1.1", 1, shapes, {0}), 4),
        "one": with_group(trace("1.1.1", 1, shapes, {0}), 1),
    }
    for name, content in documents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))

    def together(*names: str) -> Imported:
        return read_chakra([tmp_path / f"{name}.json" for name in names], ImportOptions())

    for names, message in (
        (("first", "other"), r"other\.json: its gradients differ from those of \S*first\.json"),
        (("first", "first", "merged"), r"merged\.json: its all-reduces of gradients differ"),
        (("first", "wider", "one"), r"one\.json: its process groups differ"),
        (("one", "one"), r"one\.json: one of 2 files, where the process group has 1 rank;"),
    ):
        with pytest.raises(InputError, match=message):
            together(*names)
    found = together("first", "first", "wider")
    assert (found.details["world_size"], found.ranks) == (4, ())


def with_group(document: dict[str, Any], size: int) -> dict[str, Any]:
    """``document`` with one process group of ``size`` ranks, and nothing else."""
    nodes = [node for node in document["nodes"] if node["name"] != PROCESS_GROUPS]
    told = json.dumps([{"pg_name": "0", "group_size": size}])
    group = {**document["nodes"][0], "id": 1, "name": PROCESS_GROUPS}
    group["inputs"] = {"values": [told], "shapes": [[]], "types": ["String"]}
    return {**document, "nodes": [*nodes, group]}


def test_a_model_is_held_against_the_trace() -> None:
    document = trace("1.1.1", 1, [([32], "float"), ([32, 112], "float")], set())
    with pytest.raises(InputError, match=r"2 gradients; the model 'mlp' has 10"):
        read(json.dumps(document), model=model())
    document = trace("1.1.1", 1, [([32], "float"), ([31, 112], "float")], set())
    with pytest.raises(
        InputError, match=r"gradient 1 in ready order is \[31, 112\] float32; in the model 'mlp'"
    ):
        read(json.dumps(document), model=model())


def test_refusals() -> None:
    document = trace("1.1.1", 1, [([4], "float")], set())
    inference = {**document, "nodes": [n for n in document["nodes"] if n["name"] != ACCUMULATE]}
    with pytest.raises(
        InputError, match=r"trace\.json: nodes: no 'torch::autograd::AccumulateGrad'; give a trace of"
    ):
        read(json.dumps(inference))
    sharded = {**document, "nodes": [*document["nodes"], {"id": 99, "name": "nccl:_reduce_scatter_base"}]}
    with pytest.raises(NotModelledError, match="1 reduce-scatters: gradients are sharded"):
        read(json.dumps(sharded))
    with pytest.raises(InputError, match=r"schema: '2\.0' is not legal"):
        read(json.dumps({**document, "schema": "2.0"}))
    with pytest.raises(InputError, match="no list of 'nodes'"):
        read("{}")
    wrong = node(2, ACCUMULATE, "1.1.1", [([4], "float")])
    wrong["inputs"]["types"] = ["Tensor(quux)"]
    with pytest.raises(InputError, match=r"nodes\.0 .*types: 'quux' is not legal"):
        read(json.dumps({**document, "nodes": [wrong]}))
    with pytest.raises(InputError, match="no files"):
        read_chakra([], ImportOptions())


@settings(max_examples=tries(120), deadline=None)
@given(mutated(trace("1.1.1", 2, [([4, 2], "float"), ([3], "float")], {0})), st.booleans())
def test_a_damaged_trace_is_read_or_refused(text: str, timed: bool) -> None:
    """No error but our own."""
    with suppress(SimError):
        assert read(text, backward_ns=1000 if timed else None).format == "chakra"
