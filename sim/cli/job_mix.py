"""jobs: several jobs on one cluster, and what they cost each other."""

import math
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any

import typer

import sim
from sim.cli.next_steps import suggest, to_tune
from sim.cli.output_options import directory_option, write_all
from sim.cli.printing import emit_noun, say, table
from sim.cli.simulating import AsJson, key_texts, key_values
from sim.errors import InputError, SimError
from sim.formats.outputs import make_directory
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster, check_ranks
from sim.nouns.jobs import Job, JobsReport, SharedLink
from sim.nouns.workload import Workload
from sim.units import NS_PER_MS, format_ms, parse_cap_mb

_OWN = ("name", "ranks", "hardware", "assignment", "offset_ms")


def jobs(
    cluster_file: Annotated[
        Path, typer.Argument(metavar="C.json", help="A cluster, such as cluster --save-cluster writes.")
    ],
    job: Annotated[
        list[str],
        typer.Option(
            help="WORKLOAD.json,ranks=host0.gpu0+host2.gpu0[,hardware=H.json][,bucket_cap_mb=25], for each; "
            "also name, offset_ms, assignment=A.json, policy, caps, switches. Without hardware it is "
            "computed."
        ),
    ],
    steps: Annotated[int, typer.Option(help="Steps that each job plays at least.")] = 50,
    warmup: Annotated[int, typer.Option(help="Steps at the beginning that do not count.")] = 10,
    starts: Annotated[
        int, typer.Option(help="How many starts are tried, one later than the other by parts of a step.")
    ] = 1,
    output: Annotated[
        Path | None,
        directory_option("A directory: each job's hardware as it is beside all others, to tune."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate several jobs on one cluster: what they cost each other, and on which link."""
    cluster = sim.load_cluster(cluster_file)
    if len(job) < 2:
        raise InputError("--job: one job shares nothing; give two or more")
    made, offsets_ns = [], []
    for number, text in enumerate(job):
        name = ascii_uppercase[number] if number < len(ascii_uppercase) else f"job{number}"
        one, offset_ns = _job(text, name, cluster)
        made.append(one)
        offsets_ns.append(offset_ns)
    report = sim.play_jobs(made, cluster, steps=steps, warmup=warmup, offsets_ns=offsets_ns, starts=starts)
    if output is not None:
        _write_hardware(output, made, cluster)
    if as_json:
        emit_noun(report)
    else:
        _print(report)
        if output is not None:
            suggest(to_tune(Path(job[0].partition(",")[0]), output / "hardware-0.json"))
        else:
            suggest("the same with -o DIRECTORY, to tune each job beside the others")


def _job(text: str, name: str, cluster: Cluster) -> tuple[Job, int]:
    """A job and its start, from ``WORKLOAD.json,key=value,…``; an error names the job."""
    file, *words = text.split(",")
    given = key_texts(words, f"--job {name}")
    try:
        if "ranks" not in given:
            raise InputError("ranks: missing; give the GPU of each rank, such as ranks=host0.gpu0+host2.gpu0")
        workload = sim.load_workload(file)
        ranks = tuple(given["ranks"].split("+"))
        check_ranks(cluster, ranks, "ranks")
        made = Job(
            name=given.get("name", name),
            ranks=ranks,
            workload=workload,
            hardware=sim.load_hardware(given["hardware"])
            if "hardware" in given
            else sim.cluster_hardware(cluster, ranks),
            assignment=_assignment(workload, given),
        )
        return made, _offset_ns(given.get("offset_ms", "0"))
    except SimError as error:
        raise type(error)(f"--job {name}: {error}") from None


def _assignment(workload: Workload, given: dict[str, str]) -> Assignment:
    """An assignment file, or what ``sim.assign`` makes of a policy, caps (a list as 1+25) and switches."""
    options: dict[str, Any] = {}
    for key, text in given.items():
        if key in ("bucket_cap_mb", "first_bucket_mb"):
            options[key] = parse_cap_mb(text)
        elif key == "bucket_cap_mb_list":
            options[key] = [parse_cap_mb(each) for each in text.split("+")]
        elif key == "policy":
            options[key] = text
        elif key not in _OWN:
            options |= key_values([f"{key}={text}"], "switches")
    if "workload" in options:
        raise InputError("workload: is no switch; a job's words begin with its file")
    if "assignment" not in given:
        return sim.assign(workload, **options)
    if options:
        raise InputError(f"{next(iter(options))}: is not legal beside assignment; give one or the other")
    return sim.load_assignment(given["assignment"])


def _offset_ns(offset_ms: str) -> int:
    try:
        given = float(offset_ms)
    except ValueError:
        given = math.nan
    if not 0 <= given <= 1e9:
        raise InputError(f"offset_ms: {offset_ms!r} is not legal; give a number of ms, 0 to 1e9")
    return round(given * NS_PER_MS)


def _write_hardware(folder: Path, made: list[Job], cluster: Cluster) -> None:
    make_directory(folder, "--output")
    texts = {}
    for number, one in enumerate(made):
        others = [other.ranks for other in (*made[:number], *made[number + 1 :])]
        beside = sim.hardware_beside(one.hardware, cluster, one.ranks, others)
        texts[folder / f"hardware-{number}.json"] = sim.to_text(beside)
    write_all(texts)


def _print(report: JobsReport) -> None:
    table(
        f"{report.cluster}: {len(report.jobs)} jobs, {report.steps} steps each",
        ["job", "alone", "beside", "95th", "slow-down", "exposed"],
        [
            [
                job.name,
                *(format_ms(time) for time in (job.alone_step_ns, job.mean_step_ns, job.p95_step_ns)),
                f"{job.slowdown:.2f}",
                format_ms(job.mean_exposed_comm_ns),
            ]
            for job in report.jobs
        ],
    )
    for number, job in enumerate(report.jobs if report.starts else ()):
        means_ns = [start.mean_step_ns[number] for start in report.starts]
        say(f"{job.name}: {format_ms(min(means_ns))} to {format_ms(max(means_ns))}, by when the jobs start")
    if not report.shared_links:
        say("no job gets less of any link beside the others than alone")
    for alike in _alike(report.shared_links):
        more = f" (and so {len(alike) - 1} more)" if len(alike) > 1 else ""
        say(alike[0].sentence + more)


def _alike(links: tuple[SharedLink, ...]) -> list[list[SharedLink]]:
    """Links of which the same is said, but for their names: the other direction, the leaves of a tree."""
    groups: dict[tuple[tuple[str, ...], str], list[SharedLink]] = {}
    for link in links:
        said = link.sentence.rpartition(": ")[2]
        groups.setdefault((link.jobs, said), []).append(link)
    return list(groups.values())
