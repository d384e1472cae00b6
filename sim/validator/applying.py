"""``sim.apply``: an assignment on the user's own model, in the user's own training script."""

import inspect
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from sim.errors import AssignmentError, InputError, MachineError, NotModelledError
from sim.formats.documents import load_assignment
from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES, Assignment, MadeFor
from sim.recorder.live_recording import log_buckets
from sim.recorder.training_step import check_plain_module, dtype_name, sparse_tables, trained
from sim.validator.ranks.reducer import InjectedDataParallel, missing_for_injection, without_wrapper

__all__ = ["DistributedDataParallel", "Module", "apply"]

_LAST_CAP = "DDP_SET_LAST_BUCKET_CAP"  # set, it turns the walk around (A2.5)
_INSERTED = ("_orig_mod.", "_checkpoint_wrapped_module.")  # into names, by torch.compile and checkpointing
_REFUSED = ("delay_all_reduce_named_params", "param_to_hook_all_reduce")


def apply(
    model: nn.Module, assignment: Assignment | str | os.PathLike[str], **ddp_kwargs: Any
) -> DistributedDataParallel:
    """``model`` in DistributedDataParallel with the buckets of ``assignment``, for a training script.

    Where the keywords of stock DDP reach the buckets with this torch and these switches, they are used, and
    one look after the rebuild warns if gradients became ready in another order than the recorded one.
    Otherwise DDP's own Reducer is given the buckets, exact from the first iteration; this works for any
    legal assignment (A8.3) and with ``find_unused_parameters`` or ``static_graph``, not with
    ``mixed_precision``.

    Args:
        model: a plain module on its device, in every process of an initialised process group.
        assignment: made for this model, or the path of its file; one tuned for another world size gives a
            warning.
        ddp_kwargs: further keywords of DistributedDataParallel, which must not contradict the assignment.

    Raises:
        AssignmentError: made for another model; the message names the first difference.
        InputError: a wrapped or sharded model, one on the meta device, no assignment or path of one, or a
            keyword that DistributedDataParallel has not, or that contradicts the assignment.
        NotModelledError: a policy that DDP has not, or a keyword that is not supported with these buckets.
        MachineError: this torch lacks what the buckets need.
    """
    check_plain_module(model)
    if isinstance(assignment, str | os.PathLike):
        assignment = load_assignment(assignment)
    if not isinstance(assignment, Assignment):
        raise InputError(
            f"assignment: a {type(assignment).__name__} is not legal; give an Assignment, or the path of one"
        )
    switches = _switches(assignment, ddp_kwargs)
    _check_made_for(model, assignment)
    _check_world_size(assignment.made_for, switches)
    if _reaches_by_keywords(assignment, switches):
        ddp = DistributedDataParallel(model, **switches)
        _warn_of_another_order(ddp, assignment.bucket_indices)
        return ddp
    _check_injectable(switches)
    switches = {name: value for name, value in switches.items() if name not in CAP_KWARGS}
    return InjectedDataParallel(model, assignment.bucket_indices, **switches)


def _keywords() -> Mapping[str, inspect.Parameter]:
    return inspect.signature(DistributedDataParallel.__init__).parameters


def _switches(assignment: Assignment, given: dict[str, Any]) -> dict[str, Any]:
    """The assignment's keywords and the user's, which may add to them but not say otherwise."""
    if assignment.policy not in DDP_POLICIES:
        raise NotModelledError(
            f"policy: {assignment.policy!r} is not a system of DistributedDataParallel; apply takes "
            f"{', '.join(DDP_POLICIES)}"
        )
    for name, value in given.items():
        if name not in _keywords():
            raise InputError(
                f"{name}: DistributedDataParallel has no such keyword in torch {torch.__version__}"
            )
        if name in _REFUSED and value is not None:
            raise InputError(f"{name}: not legal with an assignment; it takes parameters out of the buckets")
        says = assignment.ddp_kwargs.get(name, None if name in CAP_KWARGS else value)
        if value != says and not (name in CAP_KWARGS and value is None):
            made = "says what the buckets are" if name in CAP_KWARGS else f"was made for {says!r}"
            raise InputError(f"{name}: {value!r} is not legal; the assignment {made}")
    return {**assignment.ddp_kwargs, **given}


def _plain_name(name: str) -> str:
    for inserted in _INSERTED:
        name = name.replace(inserted, "")
    return name


def _check_made_for(model: nn.Module, assignment: Assignment) -> None:
    """Raise ``AssignmentError`` unless the assignment was made for this model and is legal on it (A8.3)."""
    named = trained(model, getattr(model, "_ddp_params_and_buffers_to_ignore", ()))  # what DDP reduces
    for name, parameter in named:
        if parameter.is_meta:
            raise InputError(
                f"model: {name!r} is on the meta device, without values; move it to its device first"
            )
    if assignment.made_for is not None:
        _compare(assignment.made_for, named)
    assigned = [index for bucket in assignment.bucket_indices for index in bucket]
    if sorted(assigned) != list(range(len(named))):
        raise AssignmentError(
            f"assignment: made for another model: its buckets hold {len(assigned)} gradients (up to index "
            f"{max(assigned)}), this model has {len(named)}"
        )
    sparse = {id(table.weight) for table in sparse_tables(model)}  # as DDP tells them
    for number, bucket in enumerate(assignment.bucket_indices):
        keys = {(named[index][1].dtype, named[index][1].device) for index in bucket}
        if len(keys) > 1:
            raise AssignmentError(
                f"bucket_indices.{number}: mixes {sorted(map(str, keys))} in this model; a bucket holds one "
                f"dtype and device (A8.3)"
            )
        alone = [named[index][0] for index in bucket if id(named[index][1]) in sparse]
        if alone and len(bucket) > 1:
            raise AssignmentError(
                f"bucket_indices.{number}: {alone[0]!r} has a sparse gradient in this model, which must be "
                f"alone in its bucket (A1.2)"
            )


def _compare(made_for: MadeFor, named: Sequence[tuple[str, nn.Parameter]]) -> None:
    there = list(zip(map(_plain_name, made_for.names), made_for.num_bytes, made_for.dtypes, strict=True))
    here = [(_plain_name(name), p.numel() * p.element_size(), dtype_name(p)) for name, p in named]
    if without_wrapper(there) == without_wrapper(here):
        return
    differ = [(at, *rows) for at, rows in enumerate(zip(there, here, strict=False)) if rows[0] != rows[1]]
    if differ:
        at, *rows = differ[0]
        theirs, mine = (f"{name!r} ({dtype}, {size} bytes)" for name, size, dtype in rows)
        first = f"the first of {len(differ)} that differ is gradient {at}: {theirs} there, {mine} here"
    else:
        longer, where = (there, "there") if len(there) > len(here) else (here, "here")
        first = f"{longer[min(len(there), len(here))][0]!r} is only {where}"
    raise AssignmentError(
        f"assignment: made for another model ({made_for.workload!r}): {len(there)} gradients there, "
        f"{len(here)} here; {first}; record and tune this model"
    )


def _check_world_size(made_for: MadeFor | None, switches: dict[str, Any]) -> None:
    if not dist.is_initialized():
        raise InputError("process group: none yet; call torch.distributed.init_process_group before apply")
    mesh = switches.get("device_mesh")
    group = mesh.get_group() if mesh is not None and mesh.ndim == 1 else switches.get("process_group")
    here = dist.get_world_size(group)
    tuned = made_for.world_size if made_for is not None else None
    if tuned is not None and tuned != here:
        warnings.warn(
            f"bucketsim: this assignment was tuned for {tuned} ranks and runs on {here}; gradients are "
            f"right, but other buckets may be faster: tune for {here}",
            stacklevel=3,
        )


def _reaches_by_keywords(assignment: Assignment, switches: dict[str, Any]) -> bool:
    """Whether stock DDP, here and with these switches, rebuilds the buckets from the keywords alone.

    With ``find_unused_parameters`` it never rebuilds, so that a list is consumed from the first parameter
    and the default has other limits; with ``static_graph`` unused parameters go last (A2.6, A8.1).
    """
    torch_version = tuple(map(int, torch.__version__.split(".")[:2]))
    return (
        assignment.by_keywords
        and not (switches.get("find_unused_parameters") or switches.get("static_graph"))
        and "environment" not in assignment.requires
        and os.environ.get(_LAST_CAP) != "1"
        and not (switches.get("bucket_cap_mb") == 0 and torch_version < (2, 12))  # A2.1
        and all(name in _keywords() for name in CAP_KWARGS if name in assignment.ddp_kwargs)
    )


def _check_injectable(switches: dict[str, Any]) -> None:
    if switches.get("mixed_precision"):
        raise NotModelledError(
            "mixed_precision: not supported with these buckets, which no keyword of DistributedDataParallel "
            "reaches here; it needs hooks that were never seen to work with given buckets"
        )
    if switches.get("find_unused_parameters") and switches.get("static_graph"):
        raise InputError("find_unused_parameters: leave it out; static_graph finds unused parameters itself")
    if missing := missing_for_injection():
        raise MachineError(
            f"torch {torch.__version__}: cannot be given these buckets: it has no {', '.join(missing)}"
        )
    if torch._dynamo.config.optimize_ddp == "python_reducer":
        raise NotModelledError("torch._dynamo.config.optimize_ddp: 'python_reducer' has no buckets to give")


def _warn_of_another_order(ddp: DistributedDataParallel, asked: Sequence[Sequence[int]]) -> None:
    """Look once, when stock DDP has rebuilt its buckets, whether they are those asked for.

    They are not where gradients become ready in another order than the recorded one.
    """

    def look(_: nn.Module, inputs: object) -> None:
        if not ddp._has_rebuilt_buckets or not (rebuilt := log_buckets(ddp)):
            return
        handle.remove()
        if list(map(set, rebuilt)) != list(map(set, asked)):
            warnings.warn(
                f"bucketsim: DistributedDataParallel's {len(rebuilt)} bucket(s) are not the {len(asked)} "
                f"asked for, as gradients became ready in another order than the recorded one; gradients are "
                f"right, but the prediction does not hold: record again",
                stacklevel=2,
            )

    handle = ddp.register_forward_pre_hook(torch.compiler.disable(look))  # type: ignore[no-untyped-call]
