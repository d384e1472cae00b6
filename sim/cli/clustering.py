"""cluster: the hardware of a machine that nobody measured, computed from published figures."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sim.cli.printing import emit_noun, note, table, write
from sim.cli.simulating import AsJson, key_values
from sim.errors import InputError
from sim.formats.documents import load, to_text
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import Hardware
from sim.units import NS_PER_MS, NS_PER_S, format_ms, format_size

_SHOWN = tuple(1 << power for power in range(10, 34, 3))


def cluster(
    machine: Annotated[str, typer.Argument(metavar="PRESET|C.json", help="A preset's name, or a cluster.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Of the preset: hosts=4.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the hardware here.")] = None,
    save: Annotated[
        Path | None, typer.Option("--save-cluster", help="Write the cluster here, to be changed by hand.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute a cluster's collectives by NCCL's own cost model, from data sheets: nothing is measured."""
    from sim.costs.nccl.from_cluster import fabric_of  # networkx, which nothing else here needs
    from sim.costs.nccl.hardware import hardware_of, uncertainty

    made = _machine(machine, settings or [])
    fabric = fabric_of(made)
    hardware = hardware_of(fabric, f"{made.name}, {fabric.world_size} ranks")
    if save is not None:
        write(save, to_text(made))
    if output is not None:
        write(output, to_text(hardware))
    low, high = uncertainty(fabric)
    note(
        f"computed, not measured: of nine sizes in ten from 1 MiB to 1 GiB a measurement was {low:g} to "
        f"{high:g} times as long on public systems of this kind; measure the link where you can"
    )
    if as_json:
        emit_noun(hardware)
        return
    _print(hardware)


def _machine(machine: str, settings: list[str]) -> Cluster:
    from sim.costs.topology.presets import PRESETS, preset

    given = key_values(settings, "KEY=VALUE")
    if machine in PRESETS:
        return preset(machine, **given)
    if not machine.endswith(".json"):
        raise InputError(
            f"PRESET|C.json: {machine!r} is not legal; give one of {', '.join(PRESETS)}, or the JSON file of "
            f"a cluster"
        )
    if given:
        raise InputError(f"KEY=VALUE: {next(iter(given))!r} is not legal with a file; change the file")
    return load(machine, Cluster)


def _print(hardware: Hardware) -> None:
    methods: dict[str, Any] = hardware.provenance["methods"]
    factor = 2 * (hardware.world_size - 1) / hardware.world_size
    table(
        f"{hardware.name}: all-reduce",
        ["size", "time", "bus bandwidth", "by"],
        [
            [
                format_size(point.num_bytes),
                _time(point.duration_ns),
                f"{factor * point.num_bytes * NS_PER_S / point.duration_ns / 1e9:.1f} GB/s"
                if point.duration_ns
                else "-",
                str(methods.get(str(point.num_bytes), "-")),
            ]
            for point in hardware.all_reduce
            if point.num_bytes in _SHOWN
        ],
        words=["by"],
    )


def _time(duration_ns: int) -> str:
    return f"{duration_ns / 1000:.1f} us" if duration_ns < NS_PER_MS else format_ms(duration_ns)
