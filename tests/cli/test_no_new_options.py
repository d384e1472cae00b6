"""The frozen command line: a name, once out, is a promise (an idea of torchtitan's).

To add a command or an option, add it here too; before taking one away, think twice.
"""

import re
from pathlib import Path

import pytest
import typer.main

import sim.cli.commands
from tests.commands import bucketsim

FROZEN = {
    name: words.split()
    for name, words in {
        "anchor": (
            "--after-backward-ms --caps --factor --hardware --in-step --json --launch-cost --measured "
            "--memory-bandwidth --output -o workload_file"
        ),
        "agree": "--json --markdown --max-error directories",
        "box": "--rate command hosts",
        "calibrate": (
            "--again --backend --box --budget --device --json --largest --mode --output --prepare --ranks "
            "--rate --rounds --workload -o"
        ),
        "cluster": (
            "--algorithm --beside --collective --json --loads --measured --output --ranks --save-cluster "
            "-o machine settings"
        ),
        "dash": "--hardware --port --traces --watch",
        "demo": "--files --no-dash --output --port -o",
        "doctor": "--json",
        "estimate": (
            "--arg --autocast --backward-ms --device-bytes-per-s --device-flops --dtype --forward-ms "
            "--gpu --json --name --optimizer-ms --output --step-ms -o factory words"
        ),
        "explain": (
            "--bucket-cap-mb --bucket-cap-mb-list --ddp --first-bucket-mb --fsdp --iterations --json "
            "--megatron --policy --ranks --reduce-bucket-size --zero workload_file"
        ),
        "export": "--as --assignment --hardware --output --parts -o workload_file",
        "gather": "--json --max-error --output -o directory",
        "import": "--anonymize --json --machine --model --name --output --world-size -o form paths",
        "ranks": (
            "--assignment --bucket-cap-mb --caps --figure --hardware --json --output --pace-jitter "
            "--pace-spread --parts --samples --seed --slow --stalls -o ranks_file workload_file"
        ),
        "record": "--arg --device --dtype --json --name --output --repeats --warmup -o factory",
        "scaling": (
            "--caps --ddp --figure --hosts --jobs --json --local --max-rows --measured --output --ranks "
            "--samples --seed --world-size -o machine settings workload_file"
        ),
        "simulate": (
            "--assignment --bucket-cap-mb --bucket-cap-mb-list --ddp --engine --first-bucket-mb --fsdp "
            "--hardware --iteration --json --megatron --parts --policy --reduce-bucket-size --slowest "
            "--zero workload_file"
        ),
        "sweep": (
            "--backward --bandwidth --caps --ddp --engine --hardware --jobs --json --latency --max-rows "
            "--output --parts --precision --world-size -o workload_file"
        ),
        "tune": "--ddp --draws --hardware --json --output --parts --policy --seed -o workload_file",
        "validate": (
            "--ab --arg --assignment --backend --box --caps --device --dtype --hardware --json --link "
            "--max-error --mode --model --output --parts --prepare --ranks --rate --rounds --samples "
            "--seed --steps-only --systems -o workload_file"
        ),
    }.items()
}
GROUP = typer.main.get_command(sim.cli.commands.app)
COMMANDS = GROUP.commands  # type: ignore[attr-defined]


def words_of(command: object) -> list[str]:
    """Arguments and options as the user types them."""
    parameters = command.params  # type: ignore[attr-defined]
    return sorted(word for one in parameters for word in (*one.opts, *one.secondary_opts))


def test_no_command_comes_or_goes_unseen() -> None:
    assert sorted(COMMANDS) == sorted(FROZEN)
    assert words_of(GROUP) == ["--debug", "--version"]


@pytest.mark.parametrize("name", FROZEN)
def test_no_option_comes_or_goes_unseen(name: str) -> None:
    assert words_of(COMMANDS[name]) == FROZEN[name]


@pytest.mark.parametrize("name", FROZEN)
def test_every_command_has_help(name: str) -> None:
    said = bucketsim(name, "--help")
    assert (said.code, said.err) == (0, "")
    assert COMMANDS[name].help.strip() in " ".join(said.out.split())
    assert "<bool>" not in said.out  # a flag takes no value


@pytest.mark.parametrize("name", FROZEN)
def test_every_option_says_what_it_does(name: str) -> None:
    options = [parameter for parameter in COMMANDS[name].params if parameter.opts[0].startswith("-")]
    assert [parameter.name for parameter in options if not parameter.help] == []


def test_the_contract_names_what_there_is() -> None:
    """Each command has a row in ``sim/CONTRACT.md``, whose options are its own."""
    text = (Path(sim.cli.commands.__file__).parents[1] / "CONTRACT.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `bucketsim (\w+)(.*)$", text, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(FROZEN)
    for name, row in rows:
        assert set(re.findall(r"--[a-z-]*\w", row)) <= set(FROZEN[name]), name
