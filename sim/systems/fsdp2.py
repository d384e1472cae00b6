"""``fully_shard`` (FSDP2): settings, modules as units, when a step gathers and reduces each, what is held.

Read from torch 2.13.0: ``distributed/fsdp/_fully_shard`` (A10). A unit is a bucket; buckets are numbered in
the order in which backward reduces them. Iterations are alike.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from sim.clock.program import AROUND, COPY_IN, HOOK, Program, machine_of
from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.checks import Count, Positive
from sim.nouns.collective import Collective, Phase
from sim.nouns.settings import MICRO_BATCHES, MicroBatches, read, setting
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.step_writer import (
    Plan,
    StepWriter,
    check_gradients,
    completed_by,
    forward_modules,
    shared_optimizer_ns,
)
from sim.units import transfer_ns

POLICY = "fully_shard"
FSDP2_SINCE = (2, 13)  # whose fully_shard this is
BLOCKS = "blocks"
Float = Literal["float32", "bfloat16", "float16", "float64"]


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
    backward_prefetch: Count = setting(  # A10.3
        0, "How many units each one prefetches in backward; 0: implicitly the next."
    )
    forward_prefetch: Count = setting(  # A10.2
        0, "How many units each one prefetches in forward; 0: implicitly the next."
    )
    replicas: Positive = setting(  # A10.7
        1, "HSDP: how many groups of ranks hold all parameters each. 1: all ranks share them."
    )
    param_dtype: Float | None = setting(  # A10.5
        None, "MixedPrecisionPolicy: what parameters are gathered and computed in."
    )
    reduce_dtype: Float | None = setting(  # A10.5
        None, "MixedPrecisionPolicy: what gradients travel in."
    )
    accumulation_steps: MicroBatches = setting(1, MICRO_BATCHES)  # A10.6

    def shards(self, world_size: int) -> int:
        """How many ranks share each parameter. Raises ``InputError`` unless ``replicas`` leaves 2 or more."""
        if self.replicas > 1 and (world_size % self.replicas or world_size < 2 * self.replicas):
            raise InputError(
                f"{POLICY}: replicas={self.replicas} is not legal on {world_size} ranks; give a divisor that "
                f"leaves 2 ranks or more to share"
            )
        return world_size // self.replicas


class Unit(NamedTuple):
    """Parameters that are gathered and reduced together, by index; the root, without a name, has those of no
    other unit. Dtypes are torch's names: what parameters are gathered in, and what gradients travel in.

    ``numel`` is what one all-gather or reduce-scatter of it moves: each parameter is padded along its first
    dimension to a multiple of the ranks that share it.
    """

    name: str
    indices: tuple[int, ...]
    numel: int
    gathered_dtype: str
    sent_dtype: str


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
    units = []
    for name, indices in members.items():
        dtypes = sorted({workload.gradients[index].dtype for index in indices})
        if len(dtypes) > 1:
            raise NotModelledError(
                f"{POLICY}: unit {name or 'root'!r} holds parameters of {', '.join(dtypes)}; torch takes one"
            )
        if indices:
            gathered = settings.param_dtype or dtypes[0]
            numel = sum(_padded(workload, index, ranks) for index in indices)
            units.append(Unit(name, tuple(indices), numel, gathered, settings.reduce_dtype or gathered))
    return tuple(units)


def _padded(workload: Workload, index: int, ranks: int) -> int:
    """Elements with padding; a shape that is not the gradient's is taken for one dimension."""
    gradient = workload.gradients[index]
    elements = gradient.elements
    shape = gradient.shape if gradient.shape and math.prod(gradient.shape) == elements else (elements,)
    return -(-shape[0] // ranks) * ranks * math.prod(shape[1:])


def _module_names(workload: Workload) -> dict[str, None]:
    """Every module that holds a parameter, itself or through others, as declared; not the root."""
    return dict.fromkeys(name for one in workload.gradients for name in _around(one.name))


def blocks_of(workload: Workload) -> tuple[str, ...]:
    """Modules that are numbered in a list, the outermost ones: what is usually wrapped."""
    names = dict.fromkeys(name for name in _module_names(workload) if name.rpartition(".")[2].isdigit())
    return tuple(name for name in names if not any(other in names for other in _around(name)))


def _groups(workload: Workload, units: str) -> list[tuple[str, ...]]:
    """Modules of each unit but the root, from what ``units`` names: by fnmatch, but that a star matches no
    dot."""
    names = list(_module_names(workload))
    groups: list[tuple[str, ...]] = []
    for word in filter(None, map(str.strip, units.split(","))):
        if word == BLOCKS:
            groups += [(name,) for name in blocks_of(workload)]
            continue
        found: list[str] = []
        for part in word.split("+"):
            alike = [name for name in names if name.count(".") == part.count(".")]
            matched = [part] if part in names else [name for name in alike if fnmatchcase(name, part)]
            if not matched:
                raise InputError(
                    f"{POLICY}: units={part!r} names no module of workload {workload.name!r}; give names "
                    f"such as {', '.join(names[:3]) or 'none: its gradients have no modules'}"
                )
            found += matched
        groups += [tuple(found)] if "+" in word else [(name,) for name in found]
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


def plan(workload: Workload, assignment: Assignment, world_size: int | None) -> "Fsdp2Plan":
    """Which units there are, and when each is reduced (A10.2, A10.4).

    A unit is reduced by the hook on its inputs' gradient. The root has none, nor has a unit before which no
    parameter is used: they are reduced in autograd's final callback, the root first, then as declared.
    Without ``world_size`` their padding is that of one rank.

    Raises:
        InputError, NotModelledError: a setting that is not legal or not modelled, or a parameter that torch
            refuses.
    """
    settings = read(Fsdp2Settings, POLICY, assignment.settings)
    for gradient in workload.gradients:
        what = workload.label(gradient)
        if gradient.ready_ns is None:
            raise NotModelledError(f"{what} is never ready; {POLICY} is modelled without")
        if gradient.num_bytes == DTYPE_BYTES[gradient.dtype] and gradient.shape == ():
            raise NotModelledError(f"{what} is a scalar, which {POLICY} refuses")
    check_gradients(workload, POLICY, "reduce_dtype", f"{POLICY} is modelled without")
    units = cut_units(workload, settings, 1 if world_size is None else settings.shards(world_size))
    home = {index: unit for unit in units for index in unit.indices}
    place = {index: number for number, index in enumerate(workload.order())}
    last = {unit: max(place[index] for index in unit.indices) for unit in units}
    late = [unit for unit in units if not unit.name or last[unit] == len(place) - 1]
    by_hook = sorted((unit for unit in units if unit not in late), key=last.__getitem__)
    used = [home[indices[0]] for indices, _ in forward_modules(workload) if indices]
    return Fsdp2Plan(
        system=POLICY,
        workload=workload,
        buckets=tuple(unit.indices for unit in (*by_hook, *late)),
        micro_batches=settings.accumulation_steps,
        why=" (A10.1)",
        settings=settings,
        units=units,
        forward=tuple(dict.fromkeys([*(unit for unit in units if not unit.name), *used])),
        finished=tuple(unit for unit in dict.fromkeys(used[::-1]) if unit.name)[::-1],
        reduced=(*by_hook, *late),
        late=len(late),
    )


@dataclass(frozen=True, kw_only=True)
class Fsdp2Plan(Plan):
    """Units as declared, in the order of forward, and in that of reductions, of which the last micro-batch
    alone has any; the last ``late`` of them come after backward.

    ``finished``: all but the root in the order in which forward is done with them. That differs from
    ``forward`` if a unit's modules are used both before and after another unit.
    """

    settings: Fsdp2Settings
    units: tuple[Unit, ...]
    forward: tuple[Unit, ...]
    finished: tuple[Unit, ...]
    reduced: tuple[Unit, ...]
    late: int

    def buffer_bytes(self) -> int:
        """Two units gathered at once in backward, or one beside the gradients of another that are reduced."""
        wide = [max(DTYPE_BYTES[one.gathered_dtype], DTYPE_BYTES[one.sent_dtype]) for one in self.units]
        return sum(sorted(unit.numel * width for unit, width in zip(self.units, wide, strict=True))[-2:])

    def lines(self) -> str:
        """Python that wraps ``model``: each unit, then the root."""
        settings, torch = self.settings, ".".join(map(str, FSDP2_SINCE))
        dtypes = {"param_dtype": settings.param_dtype, "reduce_dtype": settings.reduce_dtype}
        policy = ", ".join(f"{name}=torch.{dtype}" for name, dtype in dtypes.items() if dtype)
        units = [unit.name.split("+") for unit in self.units if unit.name]
        own = "" if settings.reshard_after_forward else ", reshard_after_forward=False"
        more = ", mp_policy=mp_policy" * bool(policy) + ", mesh=mesh" * (settings.replicas > 1)
        text = (
            f"# bucketsim: {len(self.buckets)} unit(s) for {self.workload.name!r}; torch {torch} or newer\n"
        )
        text += "import torch.distributed as dist\n" * (settings.replicas > 1)
        text += "import torch\n" * bool(policy) + "from torch.distributed.fsdp import fully_shard\n"
        if policy:
            text += "from torch.distributed.fsdp import MixedPrecisionPolicy\n\n"
            text += f"mp_policy = MixedPrecisionPolicy({policy})\n"
        if settings.replicas > 1:
            text += f"""from torch.distributed.device_mesh import init_device_mesh

shape = ({settings.replicas}, dist.get_world_size() // {settings.replicas})
mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicate", "shard"))
"""
        text += "\n"
        if units:
            text += f"""units = {units!r}
wrapped = []
for names in units:
    modules = [model.get_submodule(name) for name in names]
    fully_shard(modules if len(modules) > 1 else modules[0]{own}{more})
    wrapped.append(modules[0])
"""
        text += f"fully_shard(model{more})\n"
        ahead = {"forward": settings.forward_prefetch, "backward": settings.backward_prefetch}
        for kind, count in ahead.items() if units else ():
            if count:
                text += f"""order = wrapped{"[::-1]" * (kind == "backward")}
for place, module in enumerate(order):
    module.set_modules_to_{kind}_prefetch(order[place + 1 : place + {1 + count}])
"""
        if settings.backward_prefetch and units:
            text += f"model.set_modules_to_backward_prefetch(order[:{settings.backward_prefetch}])\n"
        if settings.accumulation_steps > 1:
            text += "# model.set_requires_gradient_sync(False) in all but the last of "
            text += f"{settings.accumulation_steps} micro-batches\n"
        return text


class _MicroBatch(StepWriter[Fsdp2Plan]):
    """A micro-batch, as it is written."""

    def write(self) -> Program:
        """The whole of it."""
        if self.hardware.world_size > 1:  # one rank has all parameters
            self._gather_in_forward()
            self.gathers.clear()
            self.used.clear()
        self.forward()
        self._reduce()
        # The optimizer works on one rank's share, padding included (A10.6).
        owned = sum(unit.numel for unit in self.plan.units) // self.plan.settings.shards(
            self.hardware.world_size
        )
        self.synchronised(shared_optimizer_ns(self.workload, owned))
        self._note()
        one_communicator = replace(self.hardware, comm_channels=1)
        return self.program(machine=machine_of(self.workload, one_communicator))

    def _gather_in_forward(self) -> None:
        """Units as forward comes to them, the root first of all: gathered, copied out, computed (A10.2).

        The host runs ahead: a gather waits for the copy out of the unit that is ``ahead`` + 1 before it, and
        for nothing else; those that wait for each other's channel are queued (A10.8).
        """
        units = self.plan.forward
        home = {index: unit for unit in units for index in unit.indices}

        ahead = 1 + max(1, self.plan.settings.forward_prefetch)

        def come_to(unit: Unit) -> None:
            if self.is_first_use(unit):
                self.compute(AROUND, self._copy_out_ns(unit))
                for following in units[: len(self.used) + ahead]:
                    self.gather(following, "forward")

        for unit in units[:ahead]:
            self.gather(unit, "forward")
        come_to(units[0])
        self.forward_by_module(lambda indices: come_to(home[indices[0]]) if indices else None)

    def _reduce(self) -> None:
        """Units as backward comes to them: gathered and copied out, computed, reduced (A10.3, A10.4)."""
        units, order = self.plan.reduced, self.workload.order()
        home = {index: bucket for bucket, unit in enumerate(units) for index in unit.indices}
        in_hooks = len(units) - self.plan.late
        triggers = completed_by(self.plan.buckets[:in_hooks], order) if self.reduces else {}
        for unit in (*(one for one in units if not one.name), units[home[order[0]]]):
            self._pre_backward(unit)
        for index, following in zip(self.backward(self.addition_ns), (*order[1:], None), strict=True):
            if index in triggers:
                self._send_gradients(triggers[index], "backward")
            if following is not None:
                self._pre_backward(units[home[following]])
        for bucket in range(in_hooks, len(self.carriers)):
            self._send_gradients(bucket, "end of backward")
        for bucket in range(len(self.carriers)):
            self.collect(bucket)

    def _pre_backward(self, unit: Unit) -> None:
        """Wait for the unit's gather, copy it out, and prefetch what backward comes to next (A10.3)."""
        settings = self.plan.settings
        if self.hardware.world_size == 1 or not settings.reshard_after_forward:
            return
        if unit.name:  # the root has kept its parameters
            self.gather(unit, "backward")
        if not self.is_first_use(unit):
            return
        self.compute(HOOK, self._copy_out_ns(unit) * bool(unit.name))
        before = [one for one in self.plan.forward if one.name]  # as lists for prefetching are written
        if not settings.backward_prefetch:
            before = list(self.plan.finished)
        place = before.index(unit) if unit.name else len(before)
        is_queued = False
        for target in before[max(place - max(1, settings.backward_prefetch), 0) : place][::-1]:
            is_queued |= self.gather(target, "backward", is_queued=is_queued)

    def gathered(self, what: Unit, phase: Phase, *, is_queued: bool = False, **_: Any) -> Collective:
        """The all-gather of a unit's parameters; ``is_queued``: it begins as another one ends (A10.8)."""
        made = self.collective("all_gather", what.numel, what.gathered_dtype, phase, purpose="parameters")
        factor = Fraction(self.hardware.queued_gather_factor)
        queued_ns = round(made.service_ns * factor)
        if is_queued:
            return replace(made, service_ns=queued_ns)
        return replace(made, queued_ns=queued_ns) if phase == "forward" and factor != 1 else made

    def _copy_out_ns(self, unit: Unit) -> int:
        """ns of copying gathered parameters out of one buffer."""
        return transfer_ns(unit.numel * DTYPE_BYTES[unit.gathered_dtype], self.copy_out_rate)

    def _send_gradients(self, bucket: int, phase: Phase) -> None:
        """Wait for the reduce-scatter before, copy in, and send (A10.4); under HSDP an all-reduce of this
        rank's share over the replicas follows (A10.7)."""
        unit, replicas = self.plan.reduced[bucket], self.plan.settings.replicas
        self.catch_up()
        sent = self.collective("reduce_scatter", unit.numel, unit.sent_dtype, phase, bucket=bucket)
        self.compute(COPY_IN, transfer_ns(sent.num_bytes, self.hardware.copy_in_bytes_per_s), bucket=bucket)
        self.ready(bucket)
        self.under_way = number = self.send(sent)
        if replicas > 1:
            share = unit.numel * replicas // self.hardware.world_size
            self.send(
                self.collective("all_reduce", share, unit.sent_dtype, phase, bucket=bucket, after=number)
            )

    def _note(self) -> None:
        """What is not checked; under HSDP whose curves are taken (A10.7); that no unit was found where blocks
        were asked for, as they are by default."""
        replicas, ranks = self.plan.settings.replicas, self.hardware.world_size
        self.notes.append(
            "streams of FSDP2 are modelled from torch's source; a replay has their order and waits, without "
            "a GPU"
        )
        if replicas > 1:
            self.notes += (
                f"HSDP: the hardware's reduce_scatter and all_gather are taken for those of a group of "
                f"{ranks // replicas} ranks that share, its all_reduce for that of {replicas} replicas; "
                f"measured on all {ranks} ranks, they are not these",
                "HSDP: collectives of both groups go one after the other, as over one link; a GPU may run an "
                "all-reduce of replicas beside a reduce-scatter or a gather, and be faster",
            )
        if self.plan.settings.units == BLOCKS and len(self.plan.units) == 1:
            self.notes.append(
                "no module of the workload is numbered in a list: all parameters are one unit, the root's"
            )


Fsdp2Plan.writer = _MicroBatch
