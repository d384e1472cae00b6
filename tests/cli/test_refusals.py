"""What the command line refuses: usage that is not legal exits with 2, input that is not with 1."""

from pathlib import Path

import pytest

import sim
from sim.cli import options
from sim.nouns.workload import Workload
from tests.cli import cheap
from tests.cli.cheap import LINK, PAIR
from tests.cli.test_commands import FROZEN
from tests.commands import bucketsim
from tests.machines import machine, model

SIMULATE, SWEEP = "simulate w.json --hardware h.json", "sweep w.json --hardware h.json"
ANCHOR, CLUSTER = "anchor pair.json --hardware link.json", "cluster dgx_a100"
SCALING, RANKS = "scaling w.json dgx_a100", "ranks many.json --hardware affine.json"
IMPORT, ESTIMATE = "import -o made", "estimate sim.recorder.models:gpt -o made.json"
VALIDATE = "validate w.json --hardware h.json -o made"

# Exit 2: a value that its option does not take, options that exclude each other, and none that is known.
USAGE = {
    "": "bucketsim finds",
    "nope": "No such command",
    "simulate": "Missing argument",
    "simulate w.json": "Missing option '--hardware'",
    f"{SIMULATE} --nope": "No such option: --nope",
    f"{SIMULATE} --iteration 4": "'4' is not one of 1, 2, 3, steady",
    f"{SIMULATE} --policy zero3": "'zero3' is not one of ddp, per-parameter",
    f"{SIMULATE} --bucket-cap-mb 5apples": "'5apples' is not legal",
    f"{SIMULATE} --set static_graph": "'static_graph' is not legal; give key=value",
    f"{SIMULATE} --set static_graph=true --set static_graph=false": "static_graph is given twice",
    f"{SIMULATE} --set policy=single": "policy is no setting of a system",
    f"{SIMULATE} --set bucket_cap_mb={'9' * 5000}": "is not legal; it is too long",
    f"{SIMULATE} --slowest 0.9": "greater than or equal to 1",
    "explain w.json --set workload=x": "workload is no setting of a system",
    "explain w.json --ranks 0": "--ranks",
    "explain w.json --iterations many": "--iterations",
    "explain w.json --hardware h.json": "No such option",
    f"{SWEEP} --caps ,": "',' is not legal; give values with commas between them",
    f"{SWEEP} --caps 5apples": "bucket cap: '5apples' is not legal",
    f"{SWEEP} --bandwidth fast": "could not convert string to float: 'fast'",
    f"{SWEEP} --world-size 2.5": "'2.5' is not legal; give whole numbers",
    "calibrate -o made.json --largest 1e999": "'1e999' is not legal",
    "calibrate -o made.json --box 2 --rate 1gbit --device cuda": "--box: its wires carry the CPU's tensors",
    "calibrate -o made --prepare --json": "--prepare: torchrun or srun starts the ranks",
    f"{VALIDATE} --arg width=3": "--arg and --dtype belong to --model",
    f"{VALIDATE} --prepare --max-error 3": "--prepare: torchrun or srun starts the ranks",
    f"{VALIDATE} --max-error -1": "--max-error",
    "ab": "Missing argument",
    "ab m:f": "give --assignment, or --workload and --hardware to tune for",
    "ab m:f --workload w.json": "give --assignment, or --workload and --hardware to tune for",
    "ab m:f --assignment a.json --prepare": "--prepare: give -o, a directory that all hosts see",
    "gather record -o made.json": "--output: give it for what calibrate --prepare left",
    "agree record --markdown --json": "--markdown and --json both given",
    "box 2 --rate 1gbit --": "COMMAND",
    "box 2 --rate fast -- true": "fast",
    "box 2 -- true": "--rate",
    "demo nowhere": "unexpected extra argument",
    "doctor nowhere": "unexpected extra argument",
    f"{ANCHOR} --measured step_ms=80,step_ms=81": "step_ms is given twice",
    f"{ANCHOR} --measured step_ms=84 --factor tilt": "'tilt' is not one of mutual",
    f"{CLUSTER} hosts=2 hosts=4": "hosts is given twice; give it once",
    f"{CLUSTER} --measured h.json": "give a hardware and where it was measured: H.json@hosts=2",
    f"{SCALING} oversubscription": "'oversubscription' is not legal; give key=value,value",
    f"{SCALING} --measured h.json@hosts=x": "give one of hosts=N and ranks=N",
    f"{SCALING} --measured h.json@hosts=2,ranks=16": "give one of hosts=N and ranks=N",
    f"{RANKS} --slow 3": "'3' is not legal; give RANK=FACTOR",
    f"{RANKS} --slow 5-3=2": "'5-3=2' is not legal",
    f"{IMPORT} auto x --world-size 0": "--world-size",
    f"{ESTIMATE} --backward-ms -1": "give milliseconds, 0 to 1e9",
    f"{ESTIMATE} --backward-ms nan": "give milliseconds, 0 to 1e9",
    f"{ESTIMATE} layers --backward-ms 1": "'layers' is not legal; give key=value",
}
# Exit 1, one red line: files and fields, and what only several options together make illegal.
INPUT = {
    "simulate nowhere.json --hardware h.json": "nowhere.json: cannot be read",
    "simulate h.json --hardware h.json": "kind",
    f"{SIMULATE} --set misspelt=false": "misspelt=False is not modelled",
    f"{SIMULATE} --set comm_hook=zip": "comm_hook='zip' is not legal; give one of fp16_compress",
    f"{SIMULATE} --set static_graph=true --set accumulation_steps=2": "static_graph and accumulation_steps",
    f"{SIMULATE} --set bucket_cap_mb_list=[1,25] --bucket-cap-mb 4": "bucket_cap_mb",
    f"{SIMULATE} --set bucket_cap_mb_list=1,25": "bucket_cap_mb_list: '1,25' is not legal; give a list",
    f"{SWEEP} --set bucket_cap_mb_list=[1,25]": "switches.bucket_cap_mb_list: [1, 25] is not legal",
    f"{SIMULATE} --policy zero1 --set static_graph=true": "static_graph=True is not modelled",
    f"{SIMULATE} --assignment a.json --policy single": "--assignment: give it without a policy and caps",
    f"{SIMULATE} --slowest 1e9": "1000000000.0 is not legal",
    "explain h.json": "kind",
    f"{SWEEP} -o nowhere/sweep.csv --json": "--output: nowhere/sweep.csv: cannot be written",
    "tune w.json --hardware h.json --policy megatron --set static_graph=true": "leave it or --policy out",
    "export w.json": "export: give --hardware to export the best assignment, or --assignment",
    "export w.json --assignment a.json --as perfetto": "export: --as perfetto needs --hardware",
    "agree record nowhere --json": "nowhere: not a directory",
    "box 2 --rate 1gbit,2gbit,3gbit -- true": "3 rates are not legal for 2 hosts",
    "calibrate --box 0 --rate 1gbit -o c.json": "box: 0 is not legal",
    "demo -o w.json": "w.json",
    "dash --watch nowhere": "--watch: nowhere is no directory",
    "record no_module_of_this_name:make -o made.json": "No module named 'no_module_of_this_name'",
    f"{VALIDATE} --ranks 3": "world_size: 2 does not fit the replay's 3 ranks; give --ranks 2",
    f"{ANCHOR} --measured bucket_cap_mb=1": "has no step_ms; give it, such as step_ms=159.6",
    f"{ANCHOR} --measured step_ms=0": "--measured: step_ms: 0 is not legal; give more than 0",
    f"{ANCHOR} --measured step_ms=-3": "--measured: step_ms: -3 is not legal; give more than 0",
    f"{ANCHOR} --measured step_ms=fast": "--measured: could not convert string to float: 'fast'",
    f"{ANCHOR} --measured bucket_cap_mb=1,step_ms=70": "is shorter by 12.00 ms than the parts allow",
    f"{ANCHOR} --measured bucket_cap_mb=1,step_ms=700 --factor mutual": "beyond what mutual explains",
    "cluster pcie_box gpus=4 --ranks 9": "world_size of 'pcie_x4': 9 is not legal",
    f"{CLUSTER} --measured none.json@hosts=2": "none.json: cannot be read",
    "scaling w.json none.json": "none.json: cannot be read",
    f"{SCALING} hosts=2": "hosts is no setting here; give --hosts",
    f"{SCALING} hosts_per_leaf=4,8 --measured h.json@hosts=2": "does not say hosts_per_leaf",
    f"{RANKS} --slow 16=2": "slow.0: ranks 16 to 16 are not legal; the hardware has world_size 16",
    f"{RANKS} --pace-jitter 9": "pace_jitter: 9",
    f"{RANKS} --samples 0": "samples: 0 is not legal",
    "ranks many.json ranks.json --hardware affine.json --pace-jitter 0.1": "RANKS.json: give it alone",
    f"{IMPORT} csv x": "FORMAT: 'csv' is not legal; give auto, kineto, nccl-tests",
    f"{IMPORT} auto nowhere": "nowhere: no such file",
    f"{IMPORT} chakra x": "FORMAT: chakra is not read",
    f"{IMPORT} flight-recorder x": "FORMAT: flight-recorder is not read",
    f"{IMPORT} ddp-log x": "FORMAT: ddp-log is not read",
    ESTIMATE: "nothing tells how long backward takes",
    f"{ESTIMATE} --gpu abacus": "gpu: 'abacus' is not in the table",
    f"{ESTIMATE} depth=3 --backward-ms 1": "unexpected keyword argument 'depth'",
}


def test_every_command_is_here() -> None:
    assert {line.split()[0] for line in (*USAGE, *INPUT) if line} == {*FROZEN, "nope"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the command lines above name."""
    from sim.clusters.ranks import Ranks

    made = tmp_path_factory.mktemp("refusals")
    cheap.save_inputs(made)
    many: Workload = model(30, "affine")
    nouns = {
        "w": sim.load_workload(cheap.W),
        "h": sim.load_hardware(cheap.H),
        "pair": PAIR,
        "link": LINK,
        "many": many,
        "affine": sim.scale(many, machine("affine"), world_size=16)[1],
        "ranks": Ranks(name="r"),
    }
    for name, noun in nouns.items():
        (made / f"{name}.json").write_text(sim.to_text(noun))
    return made


@pytest.mark.parametrize(
    ("line", "code", "complaint"),
    [(line, 2, told) for line, told in USAGE.items()] + [(line, 1, told) for line, told in INPUT.items()],
    ids=lambda value: value[:60] if isinstance(value, str) else None,
)
def test_what_is_refused(
    line: str, code: int, complaint: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is answered, and nothing is written; an error of ours is one line without a traceback."""
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    said = bucketsim(*line.split())
    assert said.code == code, said.err
    assert complaint in said.complaint + said.out
    assert "Traceback" not in said.err
    assert sorted(folder.rglob("*")) == before
    if code == 1:
        assert said.out == ""
        assert [text.startswith("error: ") for text in said.err.splitlines()] == [True]


def test_values_are_json_or_pythons_and_otherwise_text() -> None:
    words = ["layers=4", "tied=True", "rate=0.5", "name=big", "path=a=b", "none=null", "sizes=[1,2]", "x=NaN"]
    assert options.as_dict(map(options.PAIR.read, words)) == {
        **{"layers": 4, "tied": True, "rate": 0.5, "name": "big"},
        **{"path": "a=b", "none": None, "sizes": [1, 2], "x": "NaN"},
    }
