"""``bucketsim explain``, and the switches of systems as ``simulate`` takes them."""

from pathlib import Path
from typing import Any

import pytest

from tests.commands import bucketsim

EXAMPLES = Path(__file__).parents[1] / "contracts" / "examples"
W, H = EXAMPLES / "workload.json", EXAMPLES / "hardware.json"


# Switches, of explain and simulate alike

COMMANDS = [("explain", W), ("simulate", W, "--hardware", H)]
both = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])


@both
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--zero", "stage=2"], "--zero and --reduce-bucket-size: belong to zero1 and zero2, not to 'ddp'"),
        (["--policy", "zero1", "--ddp", "static_graph=true"], "--ddp: belongs to DistributedDataParallel"),
        (["--fsdp", "units=h.*"], "--fsdp: belongs to fully_shard, not to 'ddp'"),
        (["--policy", "fsdp"], "policy: 'fsdp' is not modelled; give one of ddp, per-parameter"),
        (["--ddp", "static_graph"], "--ddp: 'static_graph' is not legal; give key=value"),
        (["--ddp", "policy=single"], "--ddp: policy has an option of its own: --policy"),
        (["--ddp", "workload=x"], "--ddp: workload is no switch"),
        (["--ddp", "comm_hook=zip"], "comm_hook='zip' is not legal; give one of fp16_compress"),
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
