"""``fully_shard`` (FSDP2): settings, modules as units, when a step gathers and reduces each, what is held.

Read from torch 2.13.0: ``distributed/fsdp/_fully_shard`` (A10). A unit is a bucket; buckets are numbered in
the order in which backward reduces them. Iterations are alike.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any

from sim.clock.program import AROUND, COPY_IN, FORWARD, HOOK, Program, machine_of
from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.collective import Collective, Phase
from sim.nouns.ddp_switches import FLOATS
from sim.nouns.hardware import Hardware
from sim.nouns.settings import micro_batches, read, setting
from sim.nouns.timeline import Iteration
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.step_writer import (
    Plan,
    StepWriter,
    check_gradients,
    forward_modules,
    shared_optimizer_ns,
)
from sim.units import transfer_ns

POLICY = "fully_shard"
FSDP2_SINCE = (2, 13)  # whose fully_shard this is
BLOCKS = "blocks"
_STREAMS = (
    "streams of FSDP2 are modelled from torch's source; a replay has their order and waits, without a GPU"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp2Settings:
    """How a job uses ``fully_shard``; torch's defaults where nothing is said.

    ``units``: names of modules, or patterns of them, with commas between; ``blocks``: every module that is
    numbered in a list, the outermost ones. Dtypes are torch's names, None the parameters' own.
    """

    units: str = setting(  # A10.1
        BLOCKS,
        "Modules to wrap beside the root, with commas between: h.* is each of them, h.0+h.1 "
        "both together. blocks: what is numbered in a list. Empty: the root alone.",
    )
    reshard_after_forward: bool = setting(  # A10.3
        True, "Frees parameters after forward; backward gathers them again."
    )
    backward_prefetch: int = setting(  # A10.3
        0, "How many units each one prefetches in backward; 0: implicitly the next."
    )
    forward_prefetch: int = setting(  # A10.2
        0, "How many units each one prefetches in forward; 0: implicitly the next."
    )
    replicas: int = setting(  # A10.7
        1, "HSDP: how many groups of ranks hold all parameters each. 1: all ranks share them.", least=1
    )
    param_dtype: str | None = setting(  # A10.5
        None, "MixedPrecisionPolicy: what parameters are gathered and computed in.", choices=FLOATS
    )
    reduce_dtype: str | None = setting(  # A10.5
        None, "MixedPrecisionPolicy: what gradients travel in.", choices=FLOATS
    )
    accumulation_steps: int = micro_batches()  # A10.6

    def gathered_dtype(self, dtype: str) -> str:
        """What parameters of ``dtype`` are gathered in."""
        return self.param_dtype or dtype

    def shards(self, world_size: int) -> int:
        """How many ranks share each parameter. Raises ``InputError`` unless ``replicas`` leaves 2 or more."""
        if self.replicas > 1 and (world_size % self.replicas or world_size < 2 * self.replicas):
            raise InputError(
                f"{POLICY}: replicas={self.replicas} is not legal on {world_size} ranks; give a divisor that "
                f"leaves 2 ranks or more to share"
            )
        return world_size // self.replicas

    def sent_dtype(self, dtype: str) -> str:
        """What gradients of parameters of ``dtype`` travel in."""
        return self.reduce_dtype or self.param_dtype or dtype


def read_fsdp2_settings(settings: Mapping[str, Any], workload: Workload) -> Fsdp2Settings:
    """The settings of a job with the parameters of ``workload``.

    Raises:
        InputError: a value that is not legal.
        NotModelledError: a name that is not modelled, or a gradient on which torch stops.
    """
    made = read(Fsdp2Settings, POLICY, settings)
    for gradient in workload.gradients:
        what = workload.label(gradient)
        if gradient.ready_ns is None:
            raise NotModelledError(f"{what} is never ready; {POLICY} is modelled without")
        if gradient.num_bytes == DTYPE_BYTES[gradient.dtype] and gradient.shape == ():
            raise NotModelledError(f"{what} is a scalar, which {POLICY} refuses")
    check_gradients(workload, POLICY, "reduce_dtype", f"{POLICY} is modelled without")
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Parameters that are gathered and reduced together, by index; the root's are those of no other unit.

    ``numel`` is what one all-gather or reduce-scatter of it moves: each parameter is padded along its first
    dimension to a multiple of the ranks that share it.
    """

    name: str
    indices: tuple[int, ...]
    dtype: str
    numel: int
    is_root: bool


def cut_units(workload: Workload, settings: Fsdp2Settings, ranks: int) -> tuple[Unit, ...]:
    """The units of a model whose parameters are each cut over ``ranks``: the root first, then as declared.

    Raises:
        InputError: a name that no module of the workload has, or that lies within another unit.
        NotModelledError: parameters of several dtypes in a unit, which torch refuses.
    """
    unit_of = {module: "+".join(group) for group in _groups(workload, settings.units) for module in group}
    members: dict[str, list[int]] = {"": []}
    for gradient in workload.gradients:
        home = next((unit_of[module] for module in _around(gradient.name) if module in unit_of), "")
        members.setdefault(home, []).append(gradient.index)
    return tuple(_unit(workload, name, indices, ranks) for name, indices in members.items() if indices)


def _unit(workload: Workload, name: str, indices: list[int], ranks: int) -> Unit:
    dtypes = sorted({workload.gradients[index].dtype for index in indices})
    if len(dtypes) > 1:
        raise NotModelledError(
            f"{POLICY}: unit {name or 'root'!r} holds parameters of {', '.join(dtypes)}; torch takes one"
        )
    return Unit(
        name=name,
        indices=tuple(indices),
        dtype=dtypes[0],
        numel=sum(_padded(workload, index, ranks) for index in indices),
        is_root=not name,
    )


def _padded(workload: Workload, index: int, ranks: int) -> int:
    """Elements with padding; a shape that is not the gradient's is taken for one dimension."""
    gradient = workload.gradients[index]
    elements = gradient.elements
    shape = gradient.shape if gradient.shape and math.prod(gradient.shape) == elements else (elements,)
    return -(-shape[0] // ranks) * ranks * math.prod(shape[1:])


def module_names(workload: Workload) -> tuple[str, ...]:
    """Every module that holds a parameter, itself or through others, as declared; not the root."""
    found: dict[str, None] = {}
    for gradient in workload.gradients:
        found.update(dict.fromkeys(_around(gradient.name)))
    return tuple(found)


def blocks_of(workload: Workload) -> tuple[str, ...]:
    """Modules that are numbered in a list, the outermost ones: what is usually wrapped."""
    names = dict.fromkeys(name for name in module_names(workload) if name.rpartition(".")[2].isdigit())
    return tuple(name for name in names if not any(other in names for other in _around(name)))


def _groups(workload: Workload, units: str) -> list[tuple[str, ...]]:
    """Modules of each unit but the root, from what ``units`` names."""
    names = module_names(workload)
    known = set(names)
    groups: list[tuple[str, ...]] = []
    for word in filter(None, map(str.strip, units.split(","))):
        if word == BLOCKS:
            groups += [(name,) for name in blocks_of(workload)]
            continue
        parts = [
            [part] if part in known else [name for name in names if _matches(name, part)]
            for part in word.split("+")
        ]
        for part, found in zip(word.split("+"), parts, strict=True):
            if not found:
                raise InputError(
                    f"{POLICY}: units={part!r} names no module of workload {workload.name!r}; give names "
                    f"such as {', '.join(names[:3]) or 'none: its gradients have no modules'}"
                )
        if len(parts) == 1:
            groups += [(name,) for name in parts[0]]
        else:
            groups.append(tuple(name for found in parts for name in found))
    given = Counter(name for group in groups for name in group)
    for name, times in given.items():
        if times > 1 or any(other in given for other in _around(name)):
            raise InputError(
                f"{POLICY}: units={name!r} is not legal; it is given twice, or lies within another unit"
            )
    return groups


def _around(name: str) -> list[str]:
    """The modules that hold a module or parameter, the outermost first."""
    return [name[:end] for end, letter in enumerate(name) if letter == "."]


def _matches(name: str, pattern: str) -> bool:
    """Whether ``name`` matches as by fnmatch, part by part: a star matches no dot."""
    ours, theirs = name.split("."), pattern.split(".")
    return len(ours) == len(theirs) and all(fnmatchcase(a, b) for a, b in zip(ours, theirs, strict=True))


def plan(workload: Workload, assignment: Assignment, world_size: int | None) -> "Fsdp2Plan":
    """Which units there are, and when each is reduced (A10.2, A10.4).

    A unit is reduced by the hook on its inputs' gradient. The root has none, nor has a unit before which no
    parameter is used: they are reduced in autograd's final callback, the root first, then as declared.
    Without ``world_size`` their padding is that of one rank.

    Raises:
        InputError, NotModelledError: a setting that is not legal or not modelled, or a parameter that torch
            refuses.
    """
    settings = read_fsdp2_settings(assignment.settings, workload)
    units = cut_units(workload, settings, 1 if world_size is None else settings.shards(world_size))
    home = {index: unit for unit in units for index in unit.indices}
    place = {index: number for number, index in enumerate(workload.order())}
    last = {unit.name: max(place[index] for index in unit.indices) for unit in units}
    late = {unit.name for unit in units if unit.is_root or last[unit.name] == len(place) - 1}
    by_hook = sorted((unit for unit in units if unit.name not in late), key=lambda unit: last[unit.name])
    used = [home[index] for module in forward_modules(workload) for index in module.indices[:1]]
    forward = dict.fromkeys([unit for unit in units if unit.is_root] + used)
    finished: dict[Unit, None] = {}
    for unit in used:
        finished.pop(unit, None)
        finished[unit] = None
    reduced = (*by_hook, *(unit for unit in units if unit.name in late))
    return Fsdp2Plan(
        workload=workload,
        buckets=tuple(unit.indices for unit in reduced),
        micro_batches=settings.accumulation_steps,
        why=" (A10.1)",
        settings=settings,
        units=units,
        forward=tuple(forward),
        finished=tuple(unit for unit in finished if not unit.is_root),
        reduced=reduced,
        late=frozenset(late),
    )


@dataclass(frozen=True, kw_only=True)
class Fsdp2Plan(Plan):
    """Units as declared, in the order of forward, and in that of reductions, of which the last micro-batch
    alone has any; ``late`` are reduced after backward.

    ``finished``: all but the root in the order in which forward is done with them. That differs from
    ``forward`` if a unit's modules are used both before and after another unit.
    """

    settings: Fsdp2Settings
    units: tuple[Unit, ...]
    forward: tuple[Unit, ...]
    finished: tuple[Unit, ...]
    reduced: tuple[Unit, ...]
    late: frozenset[str]

    def _micro_batch(self, hardware: Hardware, iteration: Iteration, number: int) -> Program:
        return _MicroBatch(self, hardware, number).write()

    def buffer_bytes(self) -> int:
        """Two units gathered at once in backward, or one beside the gradients of another that are reduced."""
        dtypes = self.settings.gathered_dtype, self.settings.sent_dtype
        sizes = sorted(unit.numel * max(DTYPE_BYTES[of(unit.dtype)] for of in dtypes) for unit in self.units)
        return sum(sizes[-2:])

    def lines(self) -> str:
        """Python that wraps ``model``: each unit, then the root."""
        settings = self.settings
        units = [unit.name.split("+") for unit in self.units if not unit.is_root]
        arguments, lines = "", ["from torch.distributed.fsdp import fully_shard"]
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
                f"    fully_shard(modules if len(modules) > 1 else modules[0]{own}{arguments})",
                "    wrapped.append(modules[0])",
            ]
        lines.append(f"fully_shard(model{arguments})")
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
            f"# bucketsim: {len(self.buckets)} unit(s) for {self.workload.name!r}; "
            f"torch {'.'.join(map(str, FSDP2_SINCE))} or newer"
        )
        return "\n".join([title, *lines]) + "\n"


class _MicroBatch(StepWriter):
    """Micro-batch ``number`` (from 0), as it is written."""

    def __init__(self, plan: Fsdp2Plan, hardware: Hardware, number: int) -> None:
        self.settings, self.units, self.number = plan.settings, plan, number
        self.is_last = number == plan.micro_batches - 1
        super().__init__(plan.workload, hardware, POLICY, len(plan.buckets) * self.is_last)
        self.gathered: dict[str, int] = {}  # by unit, its gather of this backward
        self.under_way: int | None = None  # the last reduce-scatter, for which the next one waits

    @property
    def gathers(self) -> bool:
        """Whether parameters are gathered: not where there is one rank, which has them all."""
        return self.hardware.world_size > 1

    def write(self) -> Program:
        """The whole of it."""
        if self.gathers:
            self._gather_in_forward()
        self.forward()
        self.reduce()
        self.synchronised(self._optimizer_ns() if self.is_last else 0)
        return self.program(
            machine=machine_of(self.workload, replace(self.hardware, comm_channels=1)),  # one communicator
            notes=(_STREAMS, *self._of_replicas(), *self._root_alone()),
        )

    def reduce(self) -> None:
        """Units as backward comes to them: gathered and copied out, computed, reduced (A10.3, A10.4)."""
        units, order = self.units, self.workload.order()
        home = {index: number for number, unit in enumerate(units.reduced) for index in unit.indices}
        missing = [set(unit.indices) for unit in units.reduced]
        begun: set[int] = set()

        def come_to(bucket: int) -> None:
            if bucket not in begun:
                begun.add(bucket)
                self._pre_backward(units.reduced[bucket])

        for bucket, unit in enumerate(units.reduced):
            if unit.is_root:
                come_to(bucket)
        come_to(home[order[0]])
        for index, following in zip(self.backward(self._addition_ns), (*order[1:], None), strict=True):
            bucket = home[index]
            missing[bucket].remove(index)
            if not missing[bucket] and units.reduced[bucket].name not in units.late:
                self._reduce(bucket, "backward")
            if following is not None:
                come_to(home[following])
        for bucket, unit in enumerate(units.reduced):
            if unit.name in units.late:
                self._reduce(bucket, "end of backward")
        for bucket, carriers in enumerate(self.carriers):
            self.wait(carriers[-1])
            self.copy_back(bucket)

    def _addition_ns(self, index: int) -> int:
        """From the second micro-batch on gradients are added to those of the ones before (A3.12)."""
        size = self.workload.gradients[index].num_bytes * bool(self.number)
        return transfer_ns(size, self.hardware.accumulate_bytes_per_s)

    def _pre_backward(self, unit: Unit) -> None:
        """Wait for the unit's gather, copy it out, and prefetch what backward comes to next (A10.3)."""
        settings, units = self.settings, self.units
        if not self.gathers or not settings.reshard_after_forward:
            return
        self._gather(unit)
        if unit.name in self.gathered:
            self.wait(self.gathered[unit.name])
            self.compute(HOOK, self.copy_out_ns(unit))
        before = [one for one in units.forward if not one.is_root]  # as lists for prefetching are written
        if not settings.backward_prefetch:
            before = list(units.finished)
        place = len(before) if unit.is_root else before.index(unit)
        ahead = max(1, settings.backward_prefetch)
        is_queued = False
        for target in before[max(place - ahead, 0) : place][::-1]:
            is_queued |= self._gather(target, is_queued=is_queued)

    def _gather(self, unit: Unit, *, is_queued: bool = False) -> bool:
        """Launch a unit's gather, unless it was before; the root needs none. Returns whether it did."""
        if unit.is_root or unit.name in self.gathered:
            return False
        self.gathered[unit.name] = self.send(self.gather(unit, "backward", is_queued=is_queued))
        return True

    def _reduce(self, bucket: int, phase: Phase) -> None:
        """Wait for the reduce-scatter before, copy in, and send, in the last micro-batch alone (A10.4)."""
        if not self.is_last:
            return
        unit = self.units.reduced[bucket]
        if self.under_way is not None:
            self.wait(self.under_way)
        sent = self.reduction(unit, bucket, phase)
        self.compute(COPY_IN, transfer_ns(sent.num_bytes, self.hardware.copy_in_bytes_per_s), bucket=bucket)
        self.ready(bucket)
        self.under_way = self.send(sent)
        if (behind := self.replicas_reduction(sent, self.under_way)) is not None:
            self.send(behind)

    def _of_replicas(self) -> tuple[str, ...]:
        """Notes under HSDP: whose curves are taken, and that its two groups share a channel (A10.7)."""
        replicas, ranks = self.settings.replicas, self.hardware.world_size
        if replicas == 1:
            return ()
        return (
            f"HSDP: the hardware's reduce_scatter and all_gather are taken for those of a group of "
            f"{ranks // replicas} ranks that share, its all_reduce for that of {replicas} replicas; measured "
            f"on all {ranks} ranks, they are not these",
            "HSDP: collectives of both groups go one after the other, as over one link; a GPU may run an "
            "all-reduce of replicas beside a reduce-scatter or a gather, and be faster",
        )

    def _root_alone(self) -> tuple[str, ...]:
        """A note if no unit was found where blocks were asked for, as they are by default."""
        if self.settings.units != BLOCKS or len(self.units.forward) > 1:
            return ()
        return ("no module of the workload is numbered in a list: all parameters are one unit, the root's",)

    def _gather_in_forward(self) -> None:
        """Units as forward comes to them, the root first of all: gathered, copied out, computed (A10.2).

        The host runs ahead: a gather waits for the copy out of the unit that is ``ahead`` + 1 before it, and
        for nothing else; those that wait for each other's channel are queued (A10.8).
        """
        units, ahead = self.units.forward, max(1, self.settings.forward_prefetch)
        home = {index: unit for unit in units for index in unit.indices}
        to_launch, launched = iter(units), []

        def launch() -> None:
            if (unit := next(to_launch, None)) is not None:
                launched.append(self.send(self.gather(unit, "forward")))

        begun: dict[Unit, None] = {}

        def come_to(unit: Unit) -> None:
            if unit in begun:
                return
            self.wait(launched[len(begun)])
            begun[unit] = None
            self.compute(AROUND, self.copy_out_ns(unit))
            launch()

        for _ in range(ahead + 1):
            launch()
        come_to(units[0])
        for module in forward_modules(self.workload):
            if module.indices:
                come_to(home[module.indices[0]])
            self.compute(FORWARD, module.duration_ns)

    def copy_out_ns(self, unit: Unit) -> int:
        """ns of copying gathered parameters out of one buffer."""
        size = unit.numel * DTYPE_BYTES[self.settings.gathered_dtype(unit.dtype)]
        return transfer_ns(size, self.hardware.copy_out_bytes_per_s)

    def gather(self, unit: Unit, phase: Phase, *, is_queued: bool = False) -> Collective:
        """The all-gather of a unit's parameters; ``is_queued``: it begins as another one ends (A10.8)."""
        dtype = self.settings.gathered_dtype(unit.dtype)
        made = self.collective("all_gather", unit.numel, dtype, phase, purpose="parameters")
        factor = Fraction(self.hardware.queued_gather_factor)
        queued_ns = round(made.service_ns * factor)
        if is_queued:
            return replace(made, service_ns=queued_ns)
        return replace(made, queued_ns=queued_ns) if phase == "forward" and factor != 1 else made

    def reduction(self, unit: Unit, bucket: int, phase: Phase) -> Collective:
        """The reduce-scatter of a unit's gradients (A10.4)."""
        dtype = self.settings.sent_dtype(unit.dtype)
        return self.collective("reduce_scatter", unit.numel, dtype, phase, bucket=bucket)

    def replicas_reduction(self, sent: Collective, number: int) -> Collective | None:
        """The all-reduce of a rank's share over the replicas, behind collective ``number`` (A10.7)."""
        if self.settings.replicas == 1:
            return None
        share = sent.elements * self.settings.replicas // self.hardware.world_size
        return self.collective("all_reduce", share, sent.dtype, sent.phase, bucket=sent.bucket, after=number)

    def _optimizer_ns(self) -> int:
        """The optimizer works on one rank's share, padding included (A10.6)."""
        shards = self.settings.shards(self.hardware.world_size)
        owned = sum(unit.numel for unit in self.units.reduced) // shards
        return shared_optimizer_ns(self.workload, owned)
