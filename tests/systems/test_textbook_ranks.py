"""The textbook systems on two gloo ranks: their gradients, what they send, what they refuse, and their times.

What is sent, in kind, size, dtype, place and order, is what a simulation says; last-hook bucketing fails as
it is published, as the simulation says, and counting arrivals puts it right.
"""

import random
from itertools import pairwise
from typing import Any

import pytest

import sim
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.systems.registry import write
from sim.systems.textbook import early_launches
from tests.handmade import handmade
from tests.systems.ddp_models import Layer, Net
from tests.systems.ddp_ranks import run_cases
from tests.systems.last_hook_models import MODELS
from tests.systems.textbook_cases import BY_SIZE, POLICIES

pytestmark = pytest.mark.dist

CORRECT = (
    "per-parameter-sync",
    "per-parameter-async",
    "after-backward",
    "arrival-counted",
    "flat-views",
    "last-hook-safe",
)
IN_BACKWARD = ("per-parameter-async", "arrival-counted", "flat-views", "last-hook-safe")
PACED = {"task": "pace", "count": 6, "spacing_ms": 8.0, "bucket_cap_mb": 0.125}  # two gradients a bucket
COMPARED = ("kind", "elements", "dtype", "phase", "gradient", "root")
HARDWARE = Hardware(name="any", world_size=2, all_reduce=(CurvePoint(num_bytes=0, duration_ns=1000),))
ENCODER = "nn.TransformerEncoder"
SMALLEST = 264 / 2**20  # in MiB
UNUSED = {"task": "leave_unused", "policy": "last-hook", "bucket_cap_mb": 25.0}
WIDTHS = (8, 12, 20, 33)
DTYPES = ("float32", "float64", "bfloat16")


def random_layers(seed: int, *, mixed: bool = True) -> list[Layer]:
    """3 to 9 layers: every kind, frozen parameters, a layer used twice, recomputed, or of another dtype.

    With ``mixed`` False all parameters are float32.
    """
    chance = random.Random(seed)
    width = chance.choice(WIDTHS)
    layers: list[Layer] = []
    for _ in range(chance.randint(3, 9)):
        kind = chance.choice(("linear", "linear", "norm", "conv", "batch_norm", "encoder", "embedding"))
        layer: Layer = {"kind": kind, "width": width}
        if kind in ("linear", "conv"):
            layer["out"] = width = chance.choice(WIDTHS)
            layer["bias"] = chance.random() < 0.8
        if kind == "embedding":
            layer["rows"] = chance.randint(2, 40)
        if kind in ("linear", "norm", "encoder") and layer.get("out", layer["width"]) == layer["width"]:
            layer["times"] = chance.choice((1, 1, 2))
        if kind in ("linear", "norm") and chance.random() < 0.15:
            layer["checkpoint"] = "saved"
        if kind in ("linear", "norm", "conv") and layers and chance.random() < 0.15:
            layer["frozen"] = ["weight"]
        if mixed and kind in ("linear", "norm", "embedding") and chance.random() < 0.4:
            layer["dtype"] = chance.choice(DTYPES)
        layers.append(layer)
    return layers


def random_cap_mb(seed: int, layers: list[Layer]) -> float:
    """A cap in MiB: of any size up to 64 KiB, 0, or just the bytes of the last few parameters."""
    chance = random.Random(seed)
    match chance.choice(("any", "any", "just", "just", "none")):
        case "any":
            cap = 2 ** chance.uniform(4, 16)
        case "just":
            sizes = [p.nbytes for p in Net(layers, 0).parameters() if p.requires_grad]
            cap = sum(sizes[-chance.randint(1, 3) :])
        case _:
            cap = 0
    return cap / 2**20


def gradient_cases(policy: str, seeds: range) -> list[dict[str, Any]]:
    """A random model for each seed."""
    asked = []
    for seed in seeds:
        layers = random_layers(seed)
        cap = random_cap_mb(seed, layers)
        asked.append({"task": "compare_gradients", "policy": policy, "layers": layers, "bucket_cap_mb": cap})
    return asked


def check_gradients(answers: Any) -> None:
    """Every gradient of every step is the plain average."""
    for by_rank in answers:
        for answer in by_rank:
            assert answer.get("equal") == [True] * 4, answer


def workload_of(answer: dict[str, Any]) -> Workload:
    """The parameters that a rank trained, ready in the order that was seen there, 1 ns apart."""
    parameters = answer["parameters"]
    return handmade(
        [1 + answer["ready"].index(index) for index in range(len(parameters))],
        [one["num_bytes"] for one in parameters],
        names=[one["name"] for one in parameters],
        dtypes=[one["dtype"] for one in parameters],
    )


def event_cases(seeds: range) -> list[dict[str, Any]]:
    """For each seed a random model under each policy; published last-hook code knows one dtype (A7.5)."""
    asked = []
    for seed in seeds:
        for policy in POLICIES:
            layers = random_layers(seed, mixed=policy != "last-hook")
            cap = random_cap_mb(seed, layers)
            asked.append({"task": "watch_events", "policy": policy, "layers": layers, "bucket_cap_mb": cap})
    return asked


def simulated(case: dict[str, Any], workload: Workload) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Buckets, and collectives in the order of their launches."""
    cap = {"bucket_cap_mb": case["bucket_cap_mb"]} if case["policy"] in BY_SIZE else {}
    assignment = sim.assign(workload, case["policy"], **cap)
    (program,) = write(workload, HARDWARE, assignment)
    events = [{name: getattr(sent, name) for name in COMPARED} for sent in program.collectives]
    return [list(bucket) for bucket in assignment.bucket_indices], events


def check_events(asked: list[dict[str, Any]], answers: Any) -> None:
    """Both ranks did what the simulation says."""
    for case, by_rank in zip(asked, answers, strict=True):
        for answer in by_rank:
            assert "error" not in answer, (case, answer)
            assert len(answer["ready"]) == len(answer["parameters"])
            buckets, events = simulated(case, workload_of(answer))
            assert answer["buckets"] == buckets, case
            assert [{name: event[name] for name in COMPARED} for event in answer["events"]] == events, case


def log_spaced(model: str, count: int) -> list[float]:
    """Caps from 64 bytes to all of the model, in MiB."""
    total = sum(parameter.nbytes for parameter in MODELS[model]()[0].parameters())
    return [64 * (total / 64) ** (place / (count - 1)) / 2**20 for place in range(count)]


def late(policy: str, cap_mb: float, *, set_to_none: bool) -> dict[str, Any]:
    return {
        "task": "fail_late",
        "policy": policy,
        "model": ENCODER,
        "bucket_cap_mb": cap_mb,
        "set_to_none": set_to_none,
    }


@pytest.fixture(scope="module")
def answers() -> dict[str, list[Any]]:
    """By name of the case, what each rank answered; one job for all."""
    cases: dict[str, dict[str, Any]] = {}
    for number, policy in enumerate(CORRECT):
        for case in gradient_cases(policy, range(100 * number, 100 * number + 3)):
            cases[f"gradients {policy} {len(cases)}"] = case
        cases[f"pace {policy}"] = PACED | {"policy": policy}
        cases[f"unused {policy}"] = {
            "task": "leave_unused",
            "policy": policy,
            "unused": "0.bias",
            "bucket_cap_mb": 0.0,
        }
    cases["views"] = {"task": "take_views_away"}
    cases["pace last-hook"] = PACED | {"policy": "last-hook"}
    cases |= {f"events {number}": case for number, case in enumerate(event_cases(range(4)))}
    cases |= {
        f"{policy} {what} {set_to_none}": late(policy, cap, set_to_none=set_to_none)
        for policy in ("last-hook", "last-hook-safe")
        for what, cap in (("small", SMALLEST), ("one bucket", 25.0))
        for set_to_none in (True, False)
    }
    cases |= {f"unused {name}": UNUSED | {"unused": name} for name in ("0.weight", "1.weight")}
    return dict(zip(cases, run_cases(list(cases.values()), worker="textbook_worker"), strict=True))


@pytest.mark.parametrize("policy", CORRECT)
def test_gradients_are_plain_averages(policy: str, answers: dict[str, list[Any]]) -> None:
    found = [rows for name, rows in answers.items() if name.startswith(f"gradients {policy} ")]
    assert len(found) == 3
    check_gradients(found)


@pytest.mark.slow
@pytest.mark.parametrize("policy", CORRECT)
def test_gradients_are_plain_averages_on_many_models(policy: str) -> None:
    check_gradients(
        run_cases(gradient_cases(policy, range(1000, 1060)), worker="textbook_worker", limit_s=900)
    )


@pytest.mark.parametrize("policy", CORRECT)
def test_a_parameter_without_a_gradient_is_refused_by_name(
    policy: str, answers: dict[str, list[Any]]
) -> None:
    for answer in answers[f"unused {policy}"]:
        assert answer["error"][0] == "ReplayError"
        assert "parameter 1 (0.bias) was not used" in answer["error"][1]


def test_gradients_that_are_no_longer_views_are_refused(answers: dict[str, list[Any]]) -> None:
    """A7.4: the layout is frozen."""
    for answer in answers["views"]:
        assert answer["error"][0] == "ReplayError"
        assert "is no longer a view" in answer["error"][1]


@pytest.mark.parametrize("policy", [*CORRECT, "last-hook"])
def test_a_paced_step_tells_ready_launch_and_end_of_every_bucket(
    policy: str, answers: dict[str, list[Any]]
) -> None:
    """A row a bucket, as a traced lane of DDP has them (``stepping.Recorder``)."""
    for answer in answers[f"pace {policy}"]:
        row, buckets, due = answer["row"], answer["buckets"], answer["due"]
        assert len(row["buckets"]) == len(buckets)
        for times, bucket in zip(row["buckets"], buckets, strict=True):
            ready, launch, end = times
            complete = max(due[5 - index] for index in bucket)
            assert complete <= ready <= launch <= end <= row["sync_end"]
            if policy in IN_BACKWARD and bucket != buckets[-1]:
                assert ready < row["backward_end"]
            if policy in ("per-parameter-sync", "after-backward"):
                assert ready >= row["backward_end"]
        if policy in ("per-parameter-sync", "after-backward"):
            assert all(before[2] <= after[0] for before, after in pairwise(row["buckets"]))


def test_real_ranks_send_what_is_simulated(answers: dict[str, list[Any]]) -> None:
    asked = event_cases(range(4))
    check_events(asked, [answers[f"events {number}"] for number in range(len(asked))])


@pytest.mark.slow
def test_real_ranks_send_what_is_simulated_on_100_models() -> None:
    asked = event_cases(range(100, 200))
    check_events(asked, run_cases(asked, worker="textbook_worker", limit_s=1800))


# Last-hook bucketing.


def test_gradients_set_to_none_stop_it_at_flatten(answers: dict[str, list[Any]]) -> None:
    """A6.4: ``TypeError`` in the first backward whose hook is too early."""
    for answer in answers["last-hook small True"]:
        kind, text = answer["error"]
        assert kind == "TypeError"
        assert "expected Tensor" in text
        assert "got NoneType" in text


def test_gradients_zeroed_in_place_are_corrupted_silently(answers: dict[str, list[Any]]) -> None:
    """A6.4: nothing is raised; some of 48 gradients are wrong, none with a single bucket."""
    for answer in answers["last-hook small False"]:
        assert (answer["wrong"], answer["count"]) == (4, 48)
    for answer in answers["last-hook one bucket False"]:
        assert (answer["wrong"], answer["count"]) == (0, 48)


@pytest.mark.parametrize("what", ["small", "one bucket"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_counting_arrivals_puts_it_right(what: str, set_to_none: bool, answers: dict[str, list[Any]]) -> None:
    for answer in answers[f"last-hook-safe {what} {set_to_none}"]:
        assert (answer["wrong"], answer["count"]) == (0, 48)


def test_a_bucket_whose_hooked_parameter_is_unused_is_never_sent(answers: dict[str, list[Any]]) -> None:
    """A6.4: ranks drift apart without a word; any other unused parameter goes unnoticed, zeroed in place."""
    for answer in answers["unused 0.weight"]:
        assert (answer["elements"], answer["same"]) == ([], [True, False, False, False])
    for answer in answers["unused 1.weight"]:
        assert (answer["elements"], answer["same"]) == ([40], [True] * 4)


def sweep(count: int) -> dict[str, int]:
    """By model, how many of ``count`` caps have a bucket that was sent incomplete.

    At every cap, these are the buckets that the simulator flags.
    """
    caps = {model: log_spaced(model, count) for model in MODELS}
    cases = [{"task": "sweep_last_hook", "model": model, "caps_mb": caps[model]} for model in MODELS]
    failing = {}
    for model, (answer,) in zip(
        MODELS, run_cases(cases, worker="textbook_worker", world_size=1, limit_s=900), strict=True
    ):
        workload = workload_of(answer)
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
