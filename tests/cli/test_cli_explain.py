"""``bucketsim explain``, and the switches of systems as ``simulate`` takes them."""

import json
from pathlib import Path
from typing import Any

import pytest

import sim
from tests.commands import Said, bucketsim, process
from tests.systems.ddp_jobs import mlp

EXAMPLES = Path(__file__).parents[1] / "contracts" / "examples"
W, H = EXAMPLES / "workload.json", EXAMPLES / "hardware.json"
EVENT = {
    "kind",
    "elements",
    "dtype",
    "num_bytes",
    "phase",
    "purpose",
    "micro_batch",
    "gradient",
    "name",
    "bucket",
    "root",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """M1, and the names of a real one, as long as they are."""
    path = tmp_path / "w.json"
    path.write_text(sim.to_text(mlp()).replace("layers.", "transformer.blocks."))
    return path


def document(*words: object) -> dict[str, Any]:
    said = bucketsim("explain", *words, "--json")
    assert (said.code, said.err) == (0, "")
    told: dict[str, Any] = json.loads(said.out)
    return told


def test_json_has_stable_keys() -> None:
    """CONTRACT, Command line: what other tools may rely on."""
    told = document(W, "--ddp", "join_inputs=[1, 2]", "--bucket-cap-mb", "4")
    assert set(told) == {
        "schema_version",
        "kind",
        "policy",
        "workload",
        "world_size",
        "options",
        "construction",
        "iterations",
        "ending",
        "provenance",
    }
    assert (told["schema_version"], told["kind"]) == (1, "explanation")
    assert told["options"] == {"bucket_cap_mb": 4.0, "join_inputs": [1, 2]}
    assert [set(step) for step in told["iterations"]] == [
        {"iteration", "bucket_indices", "events", "notes"}
    ] * 2
    events = [
        *told["construction"],
        *told["ending"],
        *(e for step in told["iterations"] for e in step["events"]),
    ]
    assert all(set(event) == EVENT for event in events)
    assert {event["phase"] for event in events} == {"construction", "before forward", "backward", "joined"}


def test_json_says_what_python_says() -> None:
    options = ["--bucket-cap-mb-list", "4,8", "--ddp", "find_unused_parameters=true", "--ranks", "4"]
    told = document(W, *options, "--iterations", "2")
    expected = sim.explain(
        sim.load_workload(W),
        world_size=4,
        iterations=2,
        bucket_cap_mb_list=[4, 8],
        find_unused_parameters=True,
    )
    assert told == json.loads(sim.to_text(expected))


def lines(said: Said) -> list[str]:
    assert said.code == 0, said.err
    return [line.rstrip() for line in said.out.splitlines()]


def test_the_table_fits_80_columns(model: Path) -> None:
    """Whole, but for names that are longer than what is left."""
    said = process(
        *("-m", "sim", "explain", model, "--bucket-cap-mb", "0.05"),
        env={"COLUMNS": "80", "PATH": "/usr/bin:/bin"},
    )
    assert lines(said) == [
        "mlp, ddp on 2 ranks: construction",
        "collective      elements    dtype     size  for",
        "all_gather             1    int64      8 B  number of parameters",
        "broadcast of 0        30    int64    240 B  shapes",
        "broadcast of 0    41,152  float32  161 KiB  parameters and buffers",
        "iteration 1, 1 bucket: backward",
        "collective  elements    dtype     size  for       in the hook of",
        "all_reduce    41,152  float32  161 KiB  bucket 0  0 transformer.blocks.0.weight",
        "iteration 2, 2 buckets: before forward",
        "collective      elements  dtype  size  for",
        "broadcast of 0        11  int32  44 B  rebuilt buckets",
        "broadcast of 0         2  int32   8 B  rebuilt buckets",
        "iteration 2, 2 buckets: backward",
        "collective  elements    dtype      size  for       in the hook of",
        "all_reduce    20,448  float32  79.9 KiB  bucket 0  4 transformer.blocks.2.weight",
        "all_reduce    20,704  float32  80.9 KiB  bucket 1  0 transformer.blocks.0.weight",
        "iteration 3, 2 buckets: backward",
        "collective  elements    dtype      size  for       in the hook of",
        "all_reduce    20,448  float32  79.9 KiB  bucket 0  4 transformer.blocks.2.weight",
        "all_reduce    20,704  float32  80.9 KiB  bucket 1  0 transformer.blocks.0.weight",
    ]


def test_iterations_that_are_alike_are_told_once() -> None:
    told = lines(bucketsim("explain", W, "--ddp", "find_unused_parameters=true", "--iterations", "9"))
    titles = [line for line in told if line.startswith("iteration")]
    assert titles == ["iterations 1 to 9, 2 buckets: backward"]
    told = lines(bucketsim("explain", W, "--ddp", "static_graph=true", "--iterations", "5"))
    titles = [line.partition(",")[0] for line in told if line.startswith("iteration")]
    assert titles == ["iteration 1", "iteration 2", *["iteration 3"] * 2, "iterations 4 to 5"]


def test_micro_batches_and_ends_are_named() -> None:
    told = lines(bucketsim("explain", W, "--ddp", "accumulation_steps=2"))
    assert "iteration 1, 1 bucket: micro-batch 2, backward" in told
    told = lines(bucketsim("explain", W, "--ddp", "join_inputs=[1, 2]"))
    assert "at the end: joined" in told
    assert any(line.startswith("broadcast of 1 ") for line in told)


def test_nothing_is_said_to_be_nothing() -> None:
    told = lines(bucketsim("explain", W, "--ddp", "comm_hook=noop"))
    assert "iteration 1, 1 bucket: nothing is sent" in told
    assert "iteration 3, 2 buckets: nothing is sent" in told


def test_notes_are_told_once() -> None:
    said = bucketsim("explain", W, "--ddp", 'comm_hook={"name": "powerSGD", "start_powerSGD_iter": 2}')
    assert said.code == 0
    notes = [line for line in said.out.splitlines() if line.startswith("note: ")]
    (note,) = notes
    assert note.startswith("note: PowerSGD's matrix products are not counted, only its memory traffic")


# Switches, of explain and simulate alike

COMMANDS = [("explain", W), ("simulate", W, "--hardware", H)]
both = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])


@both
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--zero", "stage=2"], "--zero and --reduce-bucket-size: belong to zero1 and zero2, not to 'ddp'"),
        (["--reduce-bucket-size", "9"], "belong to zero1 and zero2, not to 'ddp'"),
        (["--policy", "last-hook", "--zero", "stage=2"], "not to 'last-hook'"),
        (["--policy", "zero1", "--ddp", "static_graph=true"], "--ddp: belongs to DistributedDataParallel"),
        (["--policy", "megatron", "--ddp", "static_graph=true"], "not to 'megatron'; give --megatron"),
        (["--megatron", "bucket_size=9"], "--megatron: belongs to megatron, not to 'ddp'"),
        (["--policy", "megatron", "--megatron", "ddp_bucket_size=9"], "modelled settings: bucket_size"),
        (["--policy", "last-hook", "--ddp", "static_graph=true"], "has no switch static_graph=True"),
        (["--policy", "replicate", "--ddp", "static_graph=true"], "not to 'replicate'; give --fsdp"),
        (["--fsdp", "units=h.*"], "--fsdp: belongs to fully_shard and replicate, not to 'ddp'"),
        (["--policy", "fsdp"], "policy: 'fsdp' is not modelled; give one of ddp, per-parameter"),
        (["--ddp", "static_graph"], "--ddp: 'static_graph' is not legal; give key=value"),
        (["--ddp", "=true"], "--ddp: '=true' is not legal; give key=value"),
        (["--ddp", "static_graph=maybe"], "static_graph='maybe' is not legal; give true or false"),
        (["--ddp", "policy=single"], "--ddp: policy has an option of its own: --policy"),
        (["--ddp", "bucket_cap_mb=4"], "--ddp: bucket_cap_mb has an option of its own: --bucket-cap-mb"),
        (["--ddp", "iteration=1"], "--ddp: iteration has an option of its own: --iteration"),
        (["--ddp", "workload=x"], "--ddp: workload is no switch"),
        (["--ddp", "world_size=4"], "--ddp: world_size is no switch"),
        (["--ddp", "iterations=4"], "--ddp: iterations is no switch"),
        (["--ddp", "comm_hook=zip"], "comm_hook='zip' is not legal; give allreduce"),
        (["--ddp", "accumulation_steps=0"], "accumulation_steps=0 is not legal; give an integer 1 to"),
        (["--ddp", "join_inputs=2"], "join_inputs=2 is not legal; give the inputs of each rank"),
        (["--ddp", 'mixed_precision={"param_dtype": [1]}'], "mixed_precision.param_dtype=[1] is not legal"),
        (["--ddp", "delay_all_reduce_named_params=true"], "is not modelled; modelled switches: "),
        (
            ["--ddp", "static_graph=true", "--ddp", "accumulation_steps=2"],
            "static_graph and accumulation_steps: torch stops",
        ),
    ],
    ids=str,
)
def test_what_is_not_legal_is_one_red_line(command: tuple[Any, ...], options: list[str], words: str) -> None:
    said = bucketsim(*command, *options)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert words in said.err


@pytest.mark.parametrize("words", [["--ranks", "0"], ["--iterations", "many"], ["--hardware", H]])
def test_usage(words: list[Any]) -> None:
    assert bucketsim("explain", W, *words).code == 2


@pytest.mark.parametrize(
    ("switch", "options"),
    [
        ("static_graph=true", {"static_graph": True}),
        ("set_to_none=False", {"set_to_none": False}),
        ("accumulation_steps=3", {"accumulation_steps": 3}),
        ("comm_hook=fp16_compress", {"comm_hook": "fp16_compress"}),
        (
            'comm_hook={"name": "powerSGD", "start_powerSGD_iter": 5}',
            {"comm_hook": {"name": "powerSGD", "start_powerSGD_iter": 5}},
        ),
        ('mixed_precision={"param_dtype": "bfloat16"}', {"mixed_precision": {"param_dtype": "bfloat16"}}),
        ("join_inputs=[3, 3]", {"join_inputs": [3, 3]}),
    ],
)
@pytest.mark.parametrize("iteration", ["1", "2", "3", "steady"])
def test_simulate_takes_every_setting(switch: str, options: dict[str, Any], iteration: str) -> None:
    """CONTRACT: ``--ddp`` takes DDP's arguments and settings; the report is that of Python."""
    said = bucketsim("simulate", W, "--hardware", H, "--ddp", switch, "--iteration", iteration, "--json")
    assert said.code == 0, said.err
    number = "steady" if iteration == "steady" else int(iteration)
    workload, hardware = sim.load_workload(W), sim.load_hardware(H)
    assignment = sim.assign(workload, iteration=number, **options)
    report = sim.summarize(sim.simulate(workload, hardware, assignment, iteration=number))
    assert json.loads(said.out) == json.loads(sim.to_text(report))


def test_there_is_no_iteration_without_inputs() -> None:
    said = bucketsim("simulate", W, "--hardware", H, "--ddp", "join_inputs=[1, 2]", "--iteration", "3")
    assert (said.code, said.out) == (1, "")
    assert "iteration: 3 is not legal; with join_inputs [1, 2] no rank has more than 2" in said.err
