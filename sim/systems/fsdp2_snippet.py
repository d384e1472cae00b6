"""The lines that wrap a model's modules as an assignment of ``fully_shard`` or ``replicate`` has them."""

from sim.nouns.assignment import Assignment
from sim.nouns.workload import Workload
from sim.systems.fsdp2 import check_units
from sim.systems.fsdp2_settings import REPLICATED, SHARDED, read_fsdp2_settings
from sim.systems.fsdp2_units import cut_units

FSDP2_SINCE = (2, 13)  # whose fully_shard and replicate these are
_FROM = {
    SHARDED: "torch.distributed.fsdp",
    REPLICATED: "torch.distributed._composable.replicate_with_fsdp",
}


def fsdp2_snippet(assignment: Assignment, workload: Workload) -> str:
    """Python that wraps ``model``: each unit, then the root.

    Raises:
        AssignmentError: the assignment does not fit ``workload``, or its buckets are not the units.
        InputError, NotModelledError: settings that are not legal or not modelled.
    """
    policy = assignment.policy
    assignment.check_fits(workload)
    settings = read_fsdp2_settings(assignment.settings, policy, workload)
    check_units(workload, assignment)
    units = [unit.name.split("+") for unit in cut_units(workload, settings, policy, 1) if not unit.is_root]
    arguments, lines = "", [f"from {_FROM[policy]} import {policy}"]
    dtypes = {"param_dtype": settings.param_dtype, "reduce_dtype": settings.reduce_dtype}
    if any(dtypes.values()):
        told = ", ".join(f"{name}=torch.{dtype}" for name, dtype in dtypes.items() if dtype)
        lines = ["import torch", *lines, "from torch.distributed.fsdp import MixedPrecisionPolicy", ""]
        lines.append(f"mp_policy = MixedPrecisionPolicy({told})")
        arguments = ", mp_policy=mp_policy"
    if settings.replicas > 1:
        lines = ["import torch.distributed as dist", *lines]
        lines += [
            "from torch.distributed.device_mesh import init_device_mesh",
            "",
            f"shape = ({settings.replicas}, dist.get_world_size() // {settings.replicas})",
            'mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicate", "shard"))',
        ]
        arguments += ", mesh=mesh"
    own = "" if settings.reshard_after_forward else ", reshard_after_forward=False"
    lines.append("")
    if units:
        lines += [
            f"units = {units!r}",
            "wrapped = []",
            "for names in units:",
            "    modules = [model.get_submodule(name) for name in names]",
            f"    {policy}(modules if len(modules) > 1 else modules[0]{own}{arguments})",
            "    wrapped.append(modules[0])",
        ]
    lines.append(f"{policy}(model{arguments})")
    for kind, ahead, order in (
        ("forward", settings.forward_prefetch, "wrapped"),
        ("backward", settings.backward_prefetch, "wrapped[::-1]"),
    ):
        if ahead and units:
            lines += [
                f"order = {order}",
                "for place, module in enumerate(order):",
                f"    module.set_modules_to_{kind}_prefetch(order[place + 1 : place + {1 + ahead}])",
            ]
            if kind == "backward":
                lines.append(f"model.set_modules_to_backward_prefetch(order[:{ahead}])")
    if settings.accumulation_steps > 1:
        lines.append(
            f"# model.set_requires_gradient_sync(False) in all but the last of "
            f"{settings.accumulation_steps} micro-batches"
        )
    title = (
        f"# bucketsim: {len(assignment.bucket_indices)} unit(s) for {workload.name!r}; "
        f"torch {'.'.join(map(str, FSDP2_SINCE))} or newer"
    )
    return "\n".join([title, *lines]) + "\n"
