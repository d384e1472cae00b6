"""Which rank this process is, under bucketsim's own launch, torchrun or SLURM."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sim.errors import InputError

_FIRST_PORT, _PORTS = 15_000, 15_000  # below the ports that Linux hands out by itself
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_BRACKETS = re.compile(r"\[([^\],-]+)[^\]]*\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One rank's place among all, and where they meet.

    ``local_rank`` and ``local_world_size`` are its place among those of its machine; where nothing tells
    them, as in a pod that is given RANK and WORLD_SIZE only, they are ``rank`` and ``world_size``.
    ``keeps_store`` is true where this rank itself serves the store at ``address:port``; under torchrun
    the agent does.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: str
    port: int
    launcher: str
    keeps_store: bool


def first_host(node_list: str) -> str:
    """The first host of a SLURM node list: ``gpu[03-05,9],login`` is ``gpu03``."""
    first = re.split(r",(?![^\[]*\])", node_list)[0]
    host = _BRACKETS.sub(r"\1", first).strip()
    if not host or "[" in host or "]" in host:
        raise InputError(f"SLURM node list: {node_list!r} is not legal; give one such as node[01-03,7]")
    return host


def find_seat(environment: Mapping[str, str]) -> Seat:
    """This process's seat: from torchrun's variables where RANK is set, else from SLURM's.

    Raises:
        InputError: neither is there, or a variable is missing, or not a number, or no rank of its world.
    """
    if "RANK" in environment:
        seat = _from_torchrun(environment)
    elif "SLURM_PROCID" in environment:
        seat = _from_slurm(environment)
    else:
        raise InputError(
            "RANK: not set, and SLURM_PROCID neither; start the worker with torchrun or srun, or set RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )
    if seat.rank >= seat.world_size:
        raise InputError(f"rank: {seat.rank} is not legal in a world of {seat.world_size}; count from 0")
    return seat


def _from_torchrun(environment: Mapping[str, str]) -> Seat:
    rank, world_size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Seat(
        rank=rank,
        world_size=world_size,
        local_rank=_number(environment, "LOCAL_RANK", rank),
        local_world_size=_number(environment, "LOCAL_WORLD_SIZE", world_size),
        address=_word(environment, "MASTER_ADDR"),
        port=_number(environment, "MASTER_PORT"),
        launcher="torchrun" if agent else "environment",
        keeps_store=rank == 0 and not agent,
    )


def _from_slurm(environment: Mapping[str, str]) -> Seat:
    """MASTER_ADDR and MASTER_PORT win where set; else the step's first host and a port from the job id.

    Rank 0 runs on the first host in every distribution of srun but ``arbitrary``.
    """
    rank, world_size = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_NTASKS")
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    nodes = next((name for name in names if environment.get(name)), "SLURM_NODELIST")
    address = environment.get("MASTER_ADDR") or first_host(_word(environment, nodes))
    if "MASTER_PORT" in environment:
        port = _number(environment, "MASTER_PORT")
    else:
        port = _FIRST_PORT + _number(environment, "SLURM_JOB_ID") % _PORTS
    return Seat(
        rank=rank,
        world_size=world_size,
        local_rank=_number(environment, "SLURM_LOCALID"),
        local_world_size=_tasks_here(environment, world_size),
        address=address,
        port=port,
        launcher="slurm",
        keeps_store=rank == 0,
    )


def _tasks_here(environment: Mapping[str, str], world_size: int) -> int:
    """How many tasks of the step srun put on this node: ``8(x2),4`` is 8 on each of two nodes, then 4."""
    told = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE") or ""
    counts = [int(count) for count, times in _TASKS.findall(told) for _ in range(int(times) if times else 1)]
    node = _number(environment, "SLURM_NODEID", 0)
    if node < len(counts):
        return counts[node]
    return _number(environment, "SLURM_NTASKS_PER_NODE", world_size)


def _word(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise InputError(f"{name}: not set; start the worker with torchrun or srun")
    return environment[name]


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and name not in environment:
        return default
    word = _word(environment, name)
    if not word.isdecimal():
        raise InputError(f"{name}: {word!r} is not legal; give a whole number >= 0")
    return int(word)
