"""scaling: efficiency, exposed communication and the best caps of a workload on machines of many sizes."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

import sim
from sim.cli.clustering import preset_or_file
from sim.cli.next_steps import TO_CLUSTER_PAGE, suggest
from sim.cli.output_options import file_option, write
from sim.cli.panels import LINK, PREDICTING, RANKS_DIFFER
from sim.cli.printing import emit, progress, say, table
from sim.cli.simulating import AsJson, DdpSwitches, WorkloadFile, ddp_switches, key_values
from sim.cli.sweeping import MaxRows, executor_of, values_of
from sim.clusters.ranks.rank_files import load_groups
from sim.errors import InputError
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import Hardware
from sim.nouns.scaling_row import ScalingRow
from sim.units import format_mib_range, format_number, format_percent, in_ms, parse_cap_mb


def scaling(
    workload_file: WorkloadFile,
    machine: Annotated[str, typer.Argument(metavar="PRESET|C.json", help="A preset's name, or a cluster.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=V,V…]...", help="Settings of the preset, each with its values, such as gpus=4,8."
        ),
    ] = None,
    hosts: Annotated[
        str | None, typer.Option(help="Numbers of hosts, comma-separated; default: the machine's own.")
    ] = None,
    world_size: Annotated[
        str | None, typer.Option(help="Numbers of GPUs, in place of --hosts; they fill host after host.")
    ] = None,
    caps: Annotated[
        str | None,
        typer.Option(
            help="Caps in MiB to choose from, comma-separated; default: all that make different buckets."
        ),
    ] = None,
    measured: Annotated[
        list[str] | None,
        typer.Option(
            metavar="H.json@hosts=N",
            help="Hardware measured on so many hosts of this kind (or ranks=N), to be extrapolated; settings "
            "may follow: H.json@hosts=2,gpus=4. Default: computed from data sheets.",
            rich_help_panel=LINK,
        ),
    ] = None,
    local: Annotated[
        Path | None,
        typer.Option(
            help="A hardware file for copies, launches and slow-downs. Default: these cost nothing.",
            rich_help_panel=LINK,
        ),
    ] = None,
    ranks: Annotated[
        Path | None,
        typer.Option(
            help="A ranks file: how the ranks differ. Default: not at all.", rich_help_panel=RANKS_DIFFER
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, help="Steps drawn where ranks differ.", rich_help_panel=RANKS_DIFFER)
    ] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of these draws.", rich_help_panel=RANKS_DIFFER)] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Processes, at most one a core; default: 1.", rich_help_panel=PREDICTING),
    ] = None,
    ddp: DdpSwitches = None,
    max_rows: MaxRows = 10_000,
    figure: Annotated[Path | None, file_option("Write a figure (HTML) here.", "--figure")] = None,
    as_json: AsJson = False,
    output: Annotated[Path | None, file_option("Write CSV here.")] = None,
) -> None:
    """Predict how a workload scales: efficiency and best caps by number of GPUs, and why caps change."""
    workload = sim.load_workload(workload_file).with_switches(ddp_switches(ddp))
    chosen = preset_or_file(machine)
    axes = _axes(settings or [])
    differing = None if ranks is None else sim.load_ranks(ranks)
    with ExitStack() as stack:
        rows = sim.scaling(
            workload,
            chosen,
            hosts=None if hosts is None else values_of("--hosts", hosts, _whole),
            world_size=None if world_size is None else values_of("--world-size", world_size, _whole),
            settings=axes,
            caps_mb=None if caps is None else values_of("--caps", caps, parse_cap_mb),
            measured=[_measured(chosen, axes, text) for text in measured or []],
            local=None if local is None else sim.load_hardware(local),
            ranks=differing,
            others=None if ranks is None or differing is None else load_groups(ranks, differing),
            samples=samples,
            seed=seed,
            executor=None if jobs is None else stack.enter_context(executor_of(jobs)),
            progress=stack.enter_context(progress("scaling")),
            max_rows=max_rows,
        )
    if output is not None:
        write(output, sim.scaling_csv(rows))
    if figure is not None:
        _draw(rows, figure)
    if as_json:
        emit(json.dumps({"rows": [asdict(row) for row in rows]}, indent=1))
    else:
        print_rows(workload.name, rows)
        if workload.is_of_whole_buckets:
            say(
                f"best buckets and caps are over merges of the {len(workload.gradients)} buckets as recorded "
                f"only: gradients are not told apart; profile with record_shapes=True, or import with --model"
            )
        suggest(TO_CLUSTER_PAGE)


def print_rows(workload: str, rows: Sequence[ScalingRow]) -> None:
    """Two tables for each series, and below them why caps change, and how sure it all is."""
    for (machine, settings), series in groupby(rows, key=lambda row: (row.machine, row.settings)):
        lines = tuple(series)
        _print_steps(f"{workload} on {machine}{', ' + settings if settings else ''}", lines)
        _print_caps(lines)
        _print_ranks(lines)
        for row in lines:
            if row.reason:
                say(f"{row.reason_code}: {row.reason}")
    unproved = "" if all(row.proved_optimal for row in rows) else ", which is not proved where there is a ?"
    say(
        "efficiency: samples a second and GPU at the best cap, over those of one GPU alone with the same "
        "batch; exposed: at the best cap, copies and launches too; best buckets: no cut that is contiguous "
        f"in ready order is better{unproved}"
    )
    for line in dict.fromkeys(row.own_costs for row in rows if row.own_costs):
        say(line)
    for line in dict.fromkeys(row.doubts for row in rows if row.doubts):
        say(f"note: {line}")
    if any(row.cap_step_low_ns != row.cap_step_high_ns for row in rows):
        losses = [
            max(
                row.cap_regret_low_ns / row.cap_step_low_ns,
                row.cap_regret_high_ns / row.cap_step_high_ns,
            )
            for row in rows
            if row.cap_step_low_ns
        ]
        say(
            "all-reduces have a range: in range is what the best cap saves from its fast to its slow end, "
            f"where it loses {format_percent(max(losses, default=0.0))} at most against the cap that is "
            f"best there"
        )


def _print_steps(title: str, rows: Sequence[ScalingRow]) -> None:
    table(
        f"{title}: ms, {rows[0].source} all-reduces",
        ["GPUs", "all-reduce", "default", "best cap", "best buckets", "exposed", "efficiency"],
        [
            [
                str(row.world_size),
                in_ms(row.all_reduce_ns),
                in_ms(row.default_step_ns),
                in_ms(row.cap_step_ns),
                f"{in_ms(row.optimum_step_ns)}{'' if row.proved_optimal else '?'}",
                in_ms(row.cap_exposed_comm_ns),
                format_percent(row.cap_efficiency),
            ]
            for row in rows
        ],
    )


def _print_caps(rows: Sequence[ScalingRow]) -> None:
    table(
        "bucket_cap_mb, MiB",
        ["GPUs", "best", "as good around it", "saves", "in range", "all-reduce of the model"],
        [
            [
                str(row.world_size),
                format_number(row.bucket_cap_mb, 6),
                around_words(row),
                _share(row.default_regret_ns, row.default_step_ns),
                f"{_share(row.default_regret_low_ns, row.cap_step_low_ns + row.default_regret_low_ns)} to "
                f"{_share(row.default_regret_high_ns, row.cap_step_high_ns + row.default_regret_high_ns)}",
                row.all_reduce_method or "-",
            ]
            for row in rows
        ],
        words=["all-reduce of the model"],
    )


def around_words(row: ScalingRow) -> str:
    """The caps around the best that are as good, and how many stretches of others are."""
    more = row.cap_num_stretches - 1
    ends = format_mib_range(row.cap_low_mb, row.cap_high_mb)
    return f"{ends}, {more} more" if more else ends


def _print_ranks(rows: Sequence[ScalingRow]) -> None:
    """What steps are where ranks differ."""
    if not rows[0].jitter:
        return
    table(
        f"{rows[0].jitter}: ms over {rows[0].samples} steps at the best cap",
        ["GPUs", "mean", "p95", "the slowest costs", "efficiency", "default's mean"],
        [
            [
                str(row.world_size),
                *map(in_ms, (row.mean_step_ns or 0, row.p95_step_ns or 0, row.slowest_cost_ns or 0)),
                _share(row.single_step_ns, row.mean_step_ns or 0),
                in_ms(row.default_mean_step_ns or 0),
            ]
            for row in rows
        ],
    )


def _share(saved_ns: int, step_ns: int) -> str:
    return format_percent(saved_ns / step_ns if step_ns else 0.0)


def _axes(words: list[str]) -> dict[str, list[Any]]:
    """``key=value,value``: each key with its values."""
    axes: dict[str, list[Any]] = {}
    for word in words:
        key, equals, values = word.partition("=")
        if key in ("hosts", "world_size"):
            raise InputError(
                f"KEY=V,V…: {word!r} is not legal; give --{key.replace('_', '-')} {values or 'N'}"
            )
        if not equals or not key or key in axes:
            raise InputError(f"KEY=V,V…: {word!r} is not legal; give key=value,value, each key once")
        parts = values_of(key, values, str)
        axes[key] = [key_values([f"{key}={part}"], "KEY=V,V…")[key] for part in parts]
    return axes


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("give whole numbers with commas between them")
    return int(text)


def _measured(machine: str | Cluster, axes: dict[str, list[Any]], text: str) -> tuple[Cluster, Hardware]:
    """A cluster of the machine's kind and what was measured there.

    From ``H.json@hosts=2,gpus=4``; ``ranks=N`` in place of hosts; neither: the machine's own size.
    """
    from sim.clusters.scaling.sizes import Size, sized

    file, _, words = text.rpartition("@")
    given = key_values(words.split(","), "--measured") if file and words else {}
    hosts, ranks = given.pop("hosts", None), given.pop("ranks", None)
    if not file or not words or not all(isinstance(size, int | None) for size in (hosts, ranks)):
        raise InputError(f"--measured: {text!r} is not legal; give H.json@hosts=N, or ranks=N or settings")
    if hosts is not None and ranks is not None:
        raise InputError(f"--measured: {text!r} is not legal; give hosts or ranks, not both")
    for key, values in axes.items():
        if key not in given and len(values) > 1:
            raise InputError(
                f"--measured: {text!r} does not say {key}, which has {len(values)} values; add {key}=…"
            )
        given.setdefault(key, values[0])
    return sized(machine, given, Size(hosts=hosts, world_size=ranks)), sim.load_hardware(file)


def _draw(rows: Sequence[ScalingRow], path: Path) -> None:
    from app.figures.cluster import scaling_figure  # plotly, which only a figure waits for

    write(path, scaling_figure(rows).to_html(include_plotlyjs=True), "--figure")
