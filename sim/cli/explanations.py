"""An explanation for people: tables of collectives in order, that fit a terminal of 80 columns."""

from collections.abc import Sequence
from itertools import groupby

from sim.cli.printing import say, table
from sim.nouns.explanation import Event, ExplainedIteration, Explanation
from sim.units import format_size


def print_explanation(told: Explanation) -> None:
    """One table for each phase of a step, in order; iterations that are alike are told once."""
    ranks = f"{told.world_size} rank{'s' * (told.world_size != 1)}"
    _print_events(f"{told.workload}, {told.policy} on {ranks}", told.construction)
    for _, group in groupby(told.iterations, lambda step: (step.bucket_indices, step.events)):
        alike = list(group)
        _print_events(_title(alike), alike[0].events)
    for line in dict.fromkeys(line for step in told.iterations for line in step.notes):
        say(f"note: {line}")


def _title(alike: Sequence[ExplainedIteration]) -> str:
    first, last, buckets = alike[0].iteration, alike[-1].iteration, len(alike[0].bucket_indices)
    numbers = f"iteration {first}" if first == last else f"iterations {first} to {last}"
    return f"{numbers}, {buckets} bucket{'s' * (buckets != 1)}"


def _print_events(title: str, events: Sequence[Event]) -> None:
    if not events:
        table("", [f"{title}: nothing is sent"], [])
    for (micro_batch, phase), group in groupby(events, lambda event: (event.micro_batch, event.phase)):
        where = phase if micro_batch == 1 else f"micro-batch {micro_batch}, {phase}"
        _print_phase(f"{title}: {where}", tuple(group))


def _print_phase(title: str, events: Sequence[Event]) -> None:
    by_hooks = any(event.gradient is not None for event in events)
    columns = ["collective", "elements", "dtype", "size", "for", *["in the hook of"] * by_hooks]
    rows = [[*_cells(event), *[_trigger(event)] * by_hooks] for event in events]
    table(title, columns, rows, words=columns[4:])


def _cells(event: Event) -> list[str]:
    kind: str = event.kind
    if event.root is not None:
        kind = f"{kind} {'of' if kind == 'broadcast' else 'to'} {event.root}"
    what = event.purpose if event.bucket is None else f"bucket {event.bucket}"
    return [kind, f"{event.elements:,}", event.dtype, format_size(event.num_bytes), what]


def _trigger(event: Event) -> str:
    return "" if event.gradient is None else f"{event.gradient} {event.name}"
