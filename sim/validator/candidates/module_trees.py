"""What ranks are told of the modules in a workload's names, for systems that wrap or hook modules."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from sim.errors import NotModelledError
from sim.nouns.workload import Workload
from sim.systems.forward_gathers import forward_modules
from sim.systems.fsdp2 import POLICIES as FSDP2_POLICIES
from sim.systems.fsdp2 import units_in_forward
from sim.systems.megatron_settings import SYSTEM as MEGATRON
from sim.validator.candidates.candidate import Candidate

TREE_POLICIES = (MEGATRON, *FSDP2_POLICIES)


def tree_job(workload: Workload, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """``names`` of parameters, ``modules`` in the order of forward with the end of each one's time in it, ns,
    and by candidate of FSDP2's the ``units`` but the root; nothing where no candidate has modules."""
    wrapping = [one for one in candidates if one.assignment and one.assignment.policy in TREE_POLICIES]
    if not wrapping:
        return {}
    modules = forward_modules(workload)
    ends = accumulate(module.duration_ns for module in modules)
    return {
        "names": [gradient.name for gradient in workload.gradients],
        "modules": [[list(module.indices), end] for module, end in zip(modules, ends, strict=True)],
        "units": {
            one.name: units_in_forward(workload, one.assignment)
            for one in wrapping
            if one.assignment is not None and one.assignment.policy in FSDP2_POLICIES
        },
    }


def check_tree(workload: Workload) -> None:
    """Raise ``NotModelledError`` unless modules with these names can be run one after another."""
    names = [gradient.name for gradient in workload.gradients]
    what = f"workload {workload.name!r}:"
    if workload.is_of_whole_buckets:
        raise NotModelledError(f"{what} its gradients stand for whole buckets; their modules are not known")
    within = {
        ".".join(parts[:end]) for parts in (n.split(".") for n in names) for end in range(1, len(parts))
    }
    for name in names:
        if names.count(name) > 1 or name in within or not all(name.split(".")):
            raise NotModelledError(f"{what} {name!r} cannot be one parameter in a tree of modules")
    over: set[tuple[str, ...]] = set()
    current: set[tuple[str, ...]] = set()
    for index in reversed(workload.order()):
        path = tuple(names[index].split(".")[:-1])
        inside = {*(path[:end] for end in range(1, len(path) + 1)), (*path, "")}  # "": its own parameters
        over |= current - inside
        if left := sorted(inside & over):
            raise NotModelledError(
                f"{what} gradients of module {'.'.join(filter(None, left[0]))!r} become ready before and "
                f"after another one's; a paced tree of modules runs each without a break"
            )
        current = inside
