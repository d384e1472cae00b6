"""What frameworks and other systems can set: the best of all that they hold, by trying all; lines, run."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import sim
from sim.cli.tuning import TARGETS
from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import AsRun, Workload
from sim.systems.simulate import simulated_step_ns
from sim.tuner.frameworks import FRAMEWORKS
from sim.tuner.others import best_of, megatron_settings
from sim.tuner.recommend import CAP
from sim.units import MIB, format_ms
from tests.commands import bucketsim
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.tuner.cases import Case, anything, link, resnet50, transformer

MS = 1_000_000
TRACES = Path(__file__).parents[2] / "traces"
GPT = TRACES / "workloads" / "gpt-13.8M-cpu.json"
WIRE = TRACES / "hardware" / "box-2x1gbit.json"


def job(*sizes_mb: float, latency_ms: float = 1) -> Case:
    """Gradients of these sizes, one a ms, the last parameter first; a MiB takes a ms on the wire."""
    count = len(sizes_mb)
    ready = [(count - index) * MS for index in range(count)]
    sizes = [int(size * MIB) for size in sizes_mb]
    workload = handmade(ready, sizes, name="job", names="layer{}", forward_ns=MS, optimizer_ns=MS)
    return workload, wired({size * MIB: round((latency_ms + size) * MS) for size in (1, 99)})


def nearest(case: Case, framework: str, asked: Assignment | None = None) -> Any:
    return sim.nearest_setting(*case, asked or sim.tune(*case).assignment, framework)


JOBS = {
    "even": job(*[2.0] * 12),
    "large at the end": job(30.0, *[1.5] * 8),
    "large at the start": job(*[0.3] * 6, 28.0),
    "dear messages": job(*[4.0] * 10, latency_ms=20),
}


@pytest.mark.parametrize("searches", [False, True])
@pytest.mark.parametrize("case", JOBS.values(), ids=JOBS.keys())
def test_no_integer_is_much_better(case: Case, searches: bool) -> None:
    """Tried one by one, as the framework passes them on: 25 is the Trainer's word for none."""
    switches = {"find_unused_parameters": True} if searches else {}
    asked = sim.assign(case[0], bucket_cap_mb=3.7, **switches)
    found = nearest(case, "transformers", asked)
    passes = {cap: {"bucket_cap_mb": cap} for cap in range(1, 60)} | {25: {}}
    assert found.step_ns <= 1.01 * min(step(*case, "ddp", **switches, **one) for one in passes.values())


@pytest.mark.parametrize("case", JOBS.values(), ids=JOBS.keys())
def test_what_passes_everything_on_loses_nothing(case: Case) -> None:
    best = sim.tune(*case)
    for framework in ("lightning", "ray", "mmengine", "accelerate"):
        lost_ns = nearest(case, framework, best.assignment).step_ns - best.report.step_ns
        assert lost_ns >= 0 if framework == "accelerate" else lost_ns == 0
    copying = replace(case[1], copy_in_bytes_per_s=1e9, copy_out_bytes_per_s=1e9)
    hooked = {"bucket_cap_mb": 8, "comm_hook": "bf16_compress"}
    asked = sim.assign(case[0], **hooked)
    assert nearest((case[0], copying), "ray", asked).step_ns <= step(case[0], copying, "ddp", **hooked)


def test_what_cannot_be_set_is_said_and_not_counted() -> None:
    case = JOBS["even"]
    asked = sim.assign(case[0], bucket_cap_mb=4, gradient_as_bucket_view=True, comm_hook="bf16_compress")
    lines = nearest(case, "transformers", asked).lines
    assert "Trainer cannot set gradient_as_bucket_view=True, comm_hook='bf16_compress', and these" in lines
    assert "cannot set" not in nearest(case, "accelerate", asked).lines
    assert "Set elsewhere: comm_hook='bf16_compress'." in nearest(case, "accelerate", asked).lines
    plain = sim.assign(case[0], bucket_cap_mb=4)
    assert nearest(case, "transformers", asked).step_ns == nearest(case, "transformers", plain).step_ns


@settings(max_examples=tries(60))
@given(anything(max_gradients=6))
def test_all_lines_are_python_or_a_command(case: Case) -> None:
    asked = sim.assign(case[0], bucket_cap_mb=0.0001)
    for framework in FRAMEWORKS:
        found = nearest(case, framework, asked)
        found.assignment.check_fits(case[0])
        assert found.step_ns == sim.simulate(*case, found.assignment, "analytic").step_ns
        ast.parse(found.lines)


def test_another_system_and_another_framework_are_refused() -> None:
    workload, hardware = JOBS["even"]
    with pytest.raises(NotModelledError, match="zero2"):
        sim.nearest_setting(workload, hardware, sim.assign(workload, "zero2"), "ray")
    with pytest.raises(InputError, match="framework: 'keras' is not legal; give one of transformers"):
        sim.nearest_setting(workload, hardware, sim.assign(workload), "keras")


def test_what_tune_says_to_set_is_set(tmp_path: Path) -> None:
    workload, hardware = sim.load_workload(GPT), sim.load_hardware(WIRE)
    answer = sim.tune(workload, hardware)
    assert (cap := answer.setting.cap_mb) is not None
    lines = {}
    for framework in FRAMEWORKS:
        made = sim.nearest_setting(workload, hardware, answer.assignment, framework, setting=answer.setting)
        assert made.assignment.ddp_kwargs["bucket_cap_mb"] == cap
        assert made.step_ns == answer.setting.cap_step_ns
        lines[framework] = made.lines
    assert set(FRAMEWORKS) <= set(TARGETS)
    said = bucketsim("export", GPT, "--hardware", WIRE, "--as", "transformers")
    assert (said.code, said.out) == (0, lines["transformers"])
    for assignment, is_set in ((answer.assignment, True), (sim.assign(workload, bucket_cap_mb=4), False)):
        (tmp_path / "a.json").write_text(sim.to_text(assignment))
        files = ("export", GPT, "--hardware", WIRE, "--assignment", tmp_path / "a.json")
        assert (bucketsim(*files, "--as", "accelerate").out == lines["accelerate"]) == is_set
    (tmp_path / "a.json").write_text(sim.to_text(sim.assign(sim.load_workload(GPT))))
    untimed = bucketsim("export", GPT, "--assignment", tmp_path / "a.json", "--as", "ray")
    assert (untimed.code, "--as ray needs --hardware" in untimed.err) == (1, True)
    given = "TrainingArguments(ddp_bucket_cap_mb=1, ddp_find_unused_parameters=False)  # with your own\n"
    assert said.out.endswith(given)


@pytest.mark.parametrize("views", [{}, {"gradient_as_bucket_view": True}], ids=str)
@pytest.mark.parametrize("own", [{CAP: 4}, {CAP: 25}, {"bucket_cap_mb_list": [2.25, 6.75]}], ids=str)
def test_where_nothing_is_gained_the_job_keeps_its_own(own: Any, views: dict[str, Any]) -> None:
    """By the cap that was typed; a switch that cannot be set is in none of the times that are told."""
    workload, free = job(*[0.75] * 12)[0], wired({0: 1, 99 * MIB: 2})
    used = sim.assign(workload, **own).bucket_indices
    recorded = replace(workload, job=AsRun(switches=views, bucket_indices=used))
    answer = sim.tune(recorded, free)
    asked, best = answer.assignment, replace(answer.setting, pick="recommended")  # which has no cap
    for framework in FRAMEWORKS if own == {CAP: 4} else ("lightning", "ray", "mmengine"):
        made = sim.nearest_setting(recorded, free, asked, framework, setting=answer.setting)
        assert made.assignment.bucket_indices == used
        assert made.lines.count(format_ms(made.step_ns)) >= 2
        assert all(made.assignment.ddp_kwargs[name] == value for name, value in own.items())
    assert sim.nearest_setting(recorded, free, asked, "lightning", setting=best).assignment == asked


CASES = [
    {"bucket_cap_mb": 3.7},
    {"bucket_cap_mb": 25},
    {"bucket_cap_mb_list": [1.0, 6.5]},
    {"find_unused_parameters": True},
    {"bucket_cap_mb": 5, "static_graph": True, "gradient_as_bucket_view": True},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("framework", ["transformers", "accelerate", "lightning"])
def test_the_real_framework_hands_these_keywords_to_ddp(
    framework: str, options: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("accelerate" if framework == "transformers" else framework)
    pytest.importorskip(framework)
    case = JOBS["large at the end"]
    found = nearest(case, framework, sim.assign(case[0], **options))
    kwargs = passed_on(framework, found.lines, tmp_path)
    assert sim.assign(case[0], **kwargs).bucket_indices == found.assignment.bucket_indices
    on = {name: value for name, value in found.assignment.ddp_kwargs.items() if value is not False}
    assert {name: value for name, value in kwargs.items() if value is not False} == on


def passed_on(framework: str, lines: str, folder: Path) -> dict[str, Any]:
    """What DistributedDataParallel is given where these lines were run."""
    names: dict[str, Any] = {}
    exec(lines, names)
    if framework == "lightning":
        given: dict[str, Any] = names["strategy"]._ddp_kwargs
    elif framework == "accelerate":
        given = names["accelerator"].ddp_handler.to_kwargs()
    else:
        import torch
        from transformers import Trainer

        arguments = replace(names["arguments"], output_dir=str(folder), use_cpu=True, report_to=[])
        trainer = Trainer(model=torch.nn.Linear(2, 2), args=arguments)
        given = trainer.accelerator.ddp_handler.to_kwargs()
    return given


# The best sizes of other systems' buckets: near the best of all sizes, and never behind the default.

SIZES = {"zero1": "reduce_bucket_size", "zero2": "reduce_bucket_size", "megatron": "bucket_size"}


def equipped(gbit: float) -> Hardware:
    machine = link(gbit, latency_us=300)
    return replace(machine, all_gather=machine.all_reduce)


def step(workload: Workload, hardware: Hardware, policy: str, **options: Any) -> int:
    fixed = megatron_settings(workload) if policy == "megatron" else {}
    return simulated_step_ns(workload, hardware, sim.assign(workload, policy, **fixed, **options))


@pytest.mark.parametrize("gbit", [pytest.param(1, marks=pytest.mark.slow), 10])
@pytest.mark.parametrize("workload", [resnet50(), transformer(2)], ids=["resnet50", "gpt"])
@pytest.mark.parametrize("policy", SIZES)
def test_no_size_is_much_better(policy: str, workload: Workload, gbit: float) -> None:
    hardware = equipped(gbit)
    found = best_of(workload, hardware, policy)
    assert found.step_ns == simulated_step_ns(workload, hardware, found.assignment)
    assert found.step_ns <= step(workload, hardware, policy)
    total = sum(gradient.elements for gradient in workload.gradients)
    every = [int(1000 * (total / 1000) ** (k / 150)) for k in range(151)]
    least = min(step(workload, hardware, policy, **{SIZES[policy]: size}) for size in every)
    assert found.step_ns <= 1.01 * least
    assert "sizes on a logarithmic grid" in found.how


@pytest.mark.parametrize(("count", "fewest", "most"), [(10, 30, 60), (400, 40, 50), (6000, 4, 4)])
def test_of_many_gradients_fewer_sizes_are_tried(count: int, fewest: int, most: int) -> None:
    many = handmade(range(count, 0, -1), [4 << (place % 18) for place in range(count)])
    tried = int(best_of(many, equipped(10), "zero1").how.split()[0])
    assert fewest <= tried <= most


def test_what_cannot_be_trained_or_timed_says_why() -> None:
    workload = resnet50()
    with pytest.raises(NotModelledError, match="no all_gather curve"):
        best_of(workload, link(10), "zero1")
    first, *others = workload.gradients
    sparse = replace(workload, gradients=(replace(first, sparse=True), *others))
    with pytest.raises((InputError, NotModelledError), match="sparse"):
        best_of(sparse, equipped(10), "zero1")


@pytest.mark.parametrize("beside", [{"bucket_cap_mb": 1}, {"first_bucket_mb": 1}])
def test_a_list_of_caps_stands_alone(beside: dict[str, int]) -> None:
    with pytest.raises(InputError, match="bucket_cap_mb_list: give it alone"):
        sim.assign(resnet50(), bucket_cap_mb_list=[1, 4], **beside)
