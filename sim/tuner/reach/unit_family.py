"""Which modules to wrap under ``fully_shard`` (A10.1)."""

from sim.errors import InputError, NotModelledError
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.fsdp2 import POLICY, blocks_of
from sim.systems.registry import assign
from sim.systems.simulate import simulated_step_ns
from sim.tuner.progress import tell
from sim.tuner.reach.size_reach import SizeReach, most_tries


def find_units(workload: Workload, hardware: Hardware) -> SizeReach:
    """The units with the shortest step, of ``unit_choices``; all else is torch's default.

    Of equal steps the fewest units. No free partition is searched: what is not tried may be better.

    Raises:
        InputError, NotModelledError: torch does not train this workload so, or a curve is missing.
    """
    found = []
    choices = unit_choices(workload)
    for units in choices[: most_tries(workload)]:
        tell("trying what to wrap")
        try:
            assignment = assign(workload, POLICY, units=units)
        except (InputError, NotModelledError):
            if units:
                continue  # refused: a module with parameters of its own holds other units, too
            raise
        took = simulated_step_ns(workload, hardware, assignment)
        found.append((took, len(assignment.bucket_indices), assignment))
    took, _, assignment = min(found, key=lambda each: each[:2])
    ways = f"{len(found)} of {len(choices)} ways to wrap"
    how = f"{ways} (the root alone, every layer, blocks in groups of one size)"
    return SizeReach(assignment=assignment, step_ns=took, complete=False, how=how)


def unit_choices(workload: Workload) -> list[str]:
    """Ways to wrap a model, as ``units`` takes them: the root alone, every layer, 1, 2, … blocks a unit."""
    blocks = blocks_of(workload)
    layers = dict.fromkeys(gradient.name.rpartition(".")[0] for gradient in workload.gradients)
    choices = ["", ",".join(filter(None, layers))]
    for size in range(1, len(blocks) + 1):
        groups = [blocks[first : first + size] for first in range(0, len(blocks), size)]
        if size == 1 or len(groups) != -(-len(blocks) // (size - 1)):
            choices.append(",".join("+".join(group) for group in groups))
    return list(dict.fromkeys(choices))
