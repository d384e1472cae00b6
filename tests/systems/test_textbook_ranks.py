"""The textbook systems on gloo ranks: gradients are plain averages, what they refuse, and what buckets hold.

Last-hook bucketing fails as it is published, as the simulation says, and counting arrivals puts it right.
"""

from typing import Any

import pytest

import sim
from sim.systems.textbook import early_launches
from sim.units import MIB
from tests.effort import IS_WHOLE
from tests.handmade import handmade, wired
from tests.systems.cases import POLICIES
from tests.systems.models import MODELS
from tests.systems.random_cases import random_textbook
from tests.systems.real import run

pytestmark = pytest.mark.dist

CORRECT = tuple(policy for policy in POLICIES if policy != "last-hook")
LATE = {"task": "fail_late", "model": "nn.TransformerEncoder"}
UNUSED = {"task": "leave_unused", "bucket_cap_mb": 25.0}
SMALLEST = 264 / 2**20  # in MiB


def gradient_cases(policy: str, seeds: range) -> list[dict[str, Any]]:
    return [random_textbook(policy, seed, mixed=True) | {"task": "compare_gradients"} for seed in seeds]


@pytest.fixture(scope="module")
def answers() -> dict[str, list[Any]]:
    """By name of the case, what each rank answered; one job for all."""
    cases: dict[str, dict[str, Any]] = {}
    for number, policy in enumerate(CORRECT):
        for case in gradient_cases(policy, range(100 * number, 100 * number + 3)):
            cases[f"gradients {policy} {len(cases)}"] = case
    for policy in ("last-hook", "last-hook-safe"):
        for what, cap in (("small", SMALLEST), ("one bucket", 25.0)):
            for none in (True, False):
                made = LATE | {"policy": policy, "bucket_cap_mb": cap, "set_to_none": none}
                cases[f"{policy} {what} {none}"] = made
    for name in ("0.weight", "1.weight"):
        cases[f"unused {name}"] = UNUSED | {"policy": "last-hook", "unused": name}
    return dict(zip(cases, run("textbook", list(cases.values())), strict=True))


def check_gradients(answers: Any) -> None:
    """Every gradient of every step is the plain average."""
    for answer in (answer for by_rank in answers for answer in by_rank):
        assert answer.get("equal") == [True] * 4, answer


@pytest.mark.parametrize("policy", CORRECT)
def test_gradients_are_plain_averages(policy: str, answers: dict[str, list[Any]]) -> None:
    found = [rows for name, rows in answers.items() if name.startswith(f"gradients {policy} ")]
    assert len(found) == 3
    check_gradients(found)


@pytest.mark.slow
@pytest.mark.parametrize("policy", CORRECT)
def test_gradients_are_plain_averages_on_many_models(policy: str) -> None:
    check_gradients(run("textbook", gradient_cases(policy, range(1000, 1060))))


def test_a_hook_that_is_too_early_finds_no_gradient(answers: dict[str, list[Any]]) -> None:
    """A6.4: where gradients are set to None, the first such hook stops."""
    for answer in answers["last-hook small True"]:
        assert answer["error"][0] == "TypeError"
        assert "got NoneType" in answer["error"][1]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("last-hook small False", 4),  # A6.4: zeroed in place they are corrupted, and nothing is raised
        ("last-hook one bucket False", 0),
        *((f"last-hook-safe {what} {none}", 0) for what in ("small", "one bucket") for none in (True, False)),
    ],
)
def test_counting_arrivals_puts_last_hook_right(name: str, wrong: int, answers: dict[str, list[Any]]) -> None:
    for answer in answers[name]:
        assert (answer["wrong"], answer["count"]) == (wrong, 48)


def test_a_bucket_whose_hooked_parameter_is_unused_is_never_sent(answers: dict[str, list[Any]]) -> None:
    """A6.4: ranks drift apart without a word; any other unused parameter goes unnoticed, zeroed in place."""
    for answer in answers["unused 0.weight"]:
        assert answer["same"] == [True, False, False, False]
    for answer in answers["unused 1.weight"]:
        assert answer["same"] == [True] * 4


def sweep(count: int) -> dict[str, int]:
    """By model, how many of ``count`` caps from 64 bytes to all of it have a bucket that was sent incomplete.

    At every cap, these are the buckets that the simulator flags.
    """
    caps, failing = {}, {}
    for model, made in MODELS.items():
        total = sum(parameter.nbytes for parameter in made()[0].parameters())
        caps[model] = [64 * (total / 64) ** (place / (count - 1)) / 2**20 for place in range(count)]
    cases = [{"task": "sweep_last_hook", "model": model, "caps_mb": of} for model, of in caps.items()]
    for model, (answer,) in zip(MODELS, run("textbook", cases, world_size=1), strict=True):
        order = answer["ready"]
        workload = handmade([1 + order.index(index) for index in range(len(order))], answer["num_bytes"])
        for cap, buckets, invalid in zip(caps[model], answer["buckets"], answer["invalid"], strict=True):
            assignment = sim.assign(workload, "last-hook", cap)
            assert [list(bucket) for bucket in assignment.bucket_indices] == buckets
            assert [early.bucket for early in early_launches(workload, assignment)] == invalid, (model, cap)
        failing[model] = sum(map(bool, answer["invalid"]))
    return failing


def test_flags_are_what_is_really_sent_incomplete() -> None:
    """A6.2, A6.3: "the last hook is always last" is false for each of these models."""
    assert all(sweep(25).values())


@pytest.mark.slow
def test_flags_are_what_is_really_sent_incomplete_at_300_caps() -> None:
    """A6.3: of 300 caps between 64 bytes and all of the model, those that have such a bucket."""
    assert sweep(300) == {
        "small transformer with LayerNorm": 26,
        "nn.TransformerEncoder": 250,
        "Conv and BatchNorm in Sequential": 73,
        "convs and norms in separate lists": 299,
        "head declared first": 23,
    }


# What buckets hold. In MiB 2, 4, 8, 6, 2 and 6; under a cap of 12 MiB: 6+2+6, 8+4, 2.
SIZES = [[1 << 19], [1024, 1024], [2048, 1024], [1536, 1024], [1 << 19], [1536, 1024]]
SIX = handmade([(6 - index) * 10_000_000 for index in range(6)], shapes=SIZES, name="six", names="all.{}")
HARDWARE = wired({0: 1_000_000}, copy_in_bytes_per_s=1e10, copy_out_bytes_per_s=1e10)
VIEW = {"gradient_as_bucket_view": True}
BY_SIZE = ("after-backward", "arrival-counted", "flat-views", "last-hook-safe")
# By name: policy, cap in MiB and options; `make test` has a case for each way to hold a bucket.
HELD: dict[str, tuple[str, int, dict[str, Any]]] = {
    "ddp": ("ddp", 12, {}),
    "views": ("ddp", 12, VIEW),
    "views, copied at once": ("ddp", 12, VIEW | {"batched_grad_copy": True}),
    "fp16": ("ddp", 100, {"comm_hook": "fp16_compress"}),
    **{policy: (policy, 12, {}) for policy in BY_SIZE},
    "ddp, one bucket": ("ddp", 100, {}),
    "views kept": ("ddp", 12, VIEW | {"set_to_none": False}),
    "views after accumulation": ("ddp", 12, VIEW | {"accumulation_steps": 2}),
    "allreduce": ("ddp", 12, {"comm_hook": "allreduce"}),
    "per-parameter-async": ("per-parameter-async", 0, {}),
}
MEASURED = tuple(HELD)[: None if IS_WHOLE else 8]


def simulated_bytes(name: str) -> int:
    policy, cap_mb, options = HELD[name]
    assignment = sim.assign(SIX, policy, cap_mb or None, **options)
    return sim.simulate(SIX, HARDWARE, assignment).buffer_bytes


@pytest.fixture(scope="module")
def peaks() -> dict[str, int]:
    """By name of the case, what one rank held; one job for all."""
    told = run(
        "textbook",
        [
            {"task": "hold_memory", "sizes": SIZES}
            | dict(zip(("policy", "cap_mb", "options"), HELD[name], strict=True))
            for name in MEASURED
        ],
        fresh=True,  # glibc reads its tunables as a process starts
        world_size=1,
        MALLOC_MMAP_THRESHOLD_="65536",
        MALLOC_TRIM_THRESHOLD_="65536",
    )
    return {name: answer["peak"] for name, (answer,) in zip(MEASURED, told, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_buffers_are_what_a_rank_holds_at_its_peak(name: str, peaks: dict[str, int]) -> None:
    """A3.4, A3.17, A7: to 1 MiB, of 28 MiB of gradients."""
    assert abs(simulated_bytes(name) - peaks[name]) <= MIB


def test_the_cases_tell_systems_apart() -> None:
    """A7.1 to A7.4 hold as many different amounts as they have ways to hold a bucket."""
    mib = [simulated_bytes(name) / MIB for name in HELD]
    assert mib == [*(28, 8, 14, 42, 14, 28, 0, 26), *(28, 0, 28, 28, 0)]


@pytest.mark.parametrize(("fp32", "beyond"), [(True, 1), (False, 0)])
def test_buffers_of_megatron_hold_what_fp32_adds_and_the_largest_gradient(fp32: bool, beyond: int) -> None:
    """A9; these sizes need no padding."""
    halves = handmade([one.ready_ns for one in SIX.gradients], shapes=SIZES, dtypes="bfloat16")
    made = sim.assign(halves, "megatron", overlap_grad_reduce=True, grad_reduce_in_fp32=fp32)
    largest = max(one.num_bytes for one in halves.gradients)
    assert sim.simulate(halves, HARDWARE, made).buffer_bytes == beyond * halves.total_bytes + largest
