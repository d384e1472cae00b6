"""A job under FSDP2, read from its traces: its units as a workload, its collectives' times as a hardware."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from sim.costs.sampled_curve import median_curve
from sim.costs.service_time import service_ns
from sim.errors import InputError, NotModelledError
from sim.importer.kineto.assembling import device_in, provenance, rate_of, upper_bounds
from sim.importer.kineto.layout import ASSUMED_DTYPE, size_of
from sim.importer.kineto.seen import SeenRank, SeenStep, SeenUnit
from sim.importer.kineto.several_ranks import AlignedRanks, align
from sim.importer.wording import few
from sim.nouns.hardware import Curve, CurvePoint, Hardware
from sim.nouns.imported import ImportOptions
from sim.nouns.workload import DTYPE_BYTES, Gradient, Workload
from sim.systems.fsdp2_settings import REPLICATED, SHARDED
from sim.systems.fsdp2_units import blocks_of
from sim.units import divide_half_even, median_ns


@dataclass(frozen=True, slots=True)
class _Member:
    """A gradient of a unit; ``place`` is the place of its ready time among those of the unit."""

    gradient: Gradient
    place: int


class ShardedJob:
    """A job that ``fully_shard`` or ``replicate`` trained, as its ranks show it.

    ``rank`` is the one whose backward is the longest, ``steps`` are its steps; ``aligned``: the ranks by
    their reductions; ``first``: what FSDP2 did in the first step.
    """

    def __init__(
        self,
        aligned: AlignedRanks,
        rank: SeenRank,
        steps: Sequence[SeenStep],
        world_size: int | None,
        options: ImportOptions,
    ) -> None:
        self.aligned, self.rank, self.world_size, self._options = aligned, rank, world_size, options
        often = Counter(map(_units_of, steps)).most_common(1)[0][0]
        self.steps = [step for step in steps if _units_of(step) == often]
        self.name = options.name or Path(rank.source).name.split(".")[0]
        self.shardings = [step.sharding for step in steps if step.sharding is not None]
        self.first = first = self.shardings[0]
        kinds = {unit.reduction.kind for unit in first.units if unit.reduction is not None}
        if len(kinds) > 1:
            raise NotModelledError(
                f"{rank.source}: units of FSDP2 are reduced by {' and '.join(sorted(kinds))}"
            )
        self.policy = REPLICATED if kinds == {"all_reduce"} else SHARDED
        names = [name for unit in first.units for name in unit.modules]
        for name in names:
            if outer := next((other for other in names if name.startswith(f"{other}.")), None):
                raise NotModelledError(
                    f"{rank.source}: unit {name!r} of FSDP2 lies within unit {outer!r}, which is not modelled"
                )
        self._is_whole = options.model is None and any(unit.shapes is None for unit in first.units)
        self._members = self._find_members()

    def _find_members(self) -> list[tuple[int, _Member]] | None:
        """Each unit's number with a gradient of it, without times; None where nothing tells their sizes.

        Gradients are numbered as in the model, if it is given; otherwise in the order in which forward comes
        to their units, the root's first.
        """
        units = self.first.units
        if self._options.model is not None:
            return self._by_model(self._options.model)
        order = sorted(range(len(units)), key=lambda number: self._place(units[number]))
        made: list[tuple[int, _Member]] = []
        for number in order:
            unit = units[number]
            sent = unit.reduction
            dtype = unit.dtype or (None if sent is None else sent.dtype) or ASSUMED_DTYPE
            shapes = unit.shapes if not self._is_whole else None
            if shapes is None:
                if sent is None or sent.num_elements is None:
                    return None
                shapes = ((sent.num_elements,),)
            prefix = f"{unit.modules[0]}." if unit.modules else ""
            what = "unit" if self._is_whole else "gradient"
            for place, shape in enumerate(shapes):
                gradient = Gradient(
                    index=len(made),
                    name=f"{prefix}{what} {place}",
                    shape=shape,
                    dtype=dtype,
                    num_bytes=prod(shape) * DTYPE_BYTES[dtype],
                    ready_ns=None,
                )
                made.append((number, _Member(gradient, place)))
        return made

    def _place(self, unit: SeenUnit) -> int:
        forward = [modules for modules in self.first.forward if modules]
        return forward.index(unit.modules) if unit.modules in forward else -1

    def _by_model(self, model: Workload) -> list[tuple[int, _Member]]:
        """The model's gradients by the modules that were wrapped, which must have the trace's shapes."""
        made = []
        for number, unit in enumerate(self.first.units):
            inside = [gradient for gradient in model.gradients if self._home(gradient.name) == unit.modules]
            shapes = tuple(gradient.shape for gradient in inside)
            if unit.shapes is not None and unit.shapes != shapes:
                raise InputError(
                    f"{self.rank.source}: unit {'+'.join(unit.modules) or 'root'!r} has gradients of shapes "
                    f"{_shown(unit.shapes)}, those of model {model.name!r} are {_shown(shapes)}; give the "
                    f"model that was trained"
                )
            for place, gradient in enumerate(inside):
                made.append((number, _Member(replace(gradient, ready_ns=None), place if unit.shapes else 0)))
        if len(made) < len(model.gradients):
            raise InputError(
                f"{self.rank.source}: {len(made)} gradients were reduced, the model {model.name!r} has "
                f"{len(model.gradients)}; give the model that was trained"
            )
        return made

    def _home(self, name: str) -> tuple[str, ...]:
        for unit in self.first.units:
            if any(name.startswith(f"{module}.") for module in unit.modules):
                return unit.modules
        return ()

    def workload(self) -> Workload | None:
        """The workload: medians over steps of forward, backward, optimizer and ready times."""
        if self._members is None:
            return None
        backward_ns = median_ns([one.backward_ns for one in self.shardings])
        timed: list[tuple[int, Gradient]] = []
        for number, member in self._members:
            times = [one.units[number].ready_ns[member.place] for one in self.shardings]
            timed.append((min(median_ns(times), backward_ns), member.gradient))
        order = sorted(timed, key=lambda one: (one[0], -one[1].index))
        ready = {gradient.index: time for time, gradient in order}
        gradients = tuple(
            replace(gradient, ready_ns=ready[gradient.index], device=device_in(self.rank, gradient))
            for _, gradient in timed
        )
        return Workload(
            name=self.name,
            gradients=gradients,
            forward_ns=median_ns([one.forward_ns for one in self.shardings]),
            backward_ns=backward_ns,
            optimizer_ns=self._whole_optimizer_ns(sum(gradient.elements for gradient in gradients)),
            ready_order=tuple(gradient.index for _, gradient in order),
            ready_includes=("interference",),
            whole_buckets=self._is_whole or None,
            provenance={
                **provenance(self.rank),
                **({} if self.world_size is None else {"world_size": self.world_size}),
                "made_from": f"{len(self.steps)} steps",
                "rank": self.rank.rank,
                "gradients": self.told_by(),
            },
        )

    def _whole_optimizer_ns(self, elements: int) -> int:
        """What the optimizer would take on all parameters, of which a rank has a share, with its padding."""
        optimizer_ns = median_ns([step.end_ns - step.sync_end_ns for step in self.steps])
        sent = sum(one.num_elements or 0 for one in self.steps[0].reductions)
        if self.policy == REPLICATED or not sent or not self.world_size:
            return optimizer_ns
        return divide_half_even(optimizer_ns * self.world_size * elements, sent)

    def hardware(self) -> Hardware | None:
        """Reductions and gathers as they ran within the step; None where nothing shows how long one takes."""
        reduced = self._curve(self.aligned)
        if self.world_size is None or self.world_size == 1 or reduced is None:
            return None
        gathered = self._gathered()
        more: dict[str, Any] = {"all_reduce": reduced}
        if self.policy == SHARDED:
            more = {
                "all_reduce": _both(reduced, gathered) if self.rank.on_gpu and gathered else reduced,
                "reduce_scatter": reduced,
                "all_gather": gathered,
            }
        sent = sum(size_of(one) or 0 for one in self.steps[0].reductions)
        got = sum(size_of(one) or 0 for one in self.first.gathers)
        return Hardware(
            name=self.name,
            world_size=self.world_size,
            copy_in_bytes_per_s=rate_of(sent, [one.copy_in_ns for one in self.shardings]),
            copy_out_bytes_per_s=rate_of(got, [one.copy_out_ns for one in self.shardings]),
            provenance={
                **provenance(self.aligned.ranks[0]),
                "curve": "within the training step"
                + ("" if self.aligned.complete else "; ranks are missing: an upper bound"),
                "ranks": [rank.rank for rank in self.aligned.ranks],
            },
            **more,
        )

    def _curve(self, aligned: AlignedRanks) -> Curve | None:
        by_size: dict[int, list[int]] = defaultdict(list)
        waitless: dict[int, list[int]] = defaultdict(list)
        timed = all(one.timed for rank in aligned.ranks for step in rank.steps for one in step.reductions)
        for one in aligned.transfers:
            if one.num_bytes and timed:
                by_size[one.num_bytes].append(one.duration_ns)
                if one.is_waitless:
                    waitless[one.num_bytes].append(one.duration_ns)
        if not by_size:
            return None
        return median_curve(by_size) if aligned.complete else upper_bounds(by_size, waitless)

    def _gathered(self) -> Curve | None:
        """The curve of all-gathers, made from all ranks in the same way as that of reductions."""
        numbers = {step.number for step in self.steps}
        ranks = [
            replace(rank, steps=tuple(map(_as_gathers, (one for one in rank.steps if one.number in numbers))))
            for rank in self.aligned.ranks
        ]
        sizes = {step.number: [size_of(one) for one in step.reductions] for step in ranks[0].steps}
        return self._curve(align(ranks, sizes, self.world_size)) if any(sizes.values()) else None

    def told_by(self) -> str:
        """What gradients are taken from, as a sentence."""
        if self._options.model is not None:
            return f"names, shapes and indices are those of {self._options.model.name!r}"
        if self._is_whole:
            return (
                "the trace does not tell every gradient's shape (give --model, or profile with "
                "record_shapes=True, which leaves out lists of more than 30): each unit stands for its "
                "gradients, padding included: units can be merged, not divided"
            )
        return (
            "shapes are the trace's own, unit by unit; names of parameters are not in it, nor which module "
            "of a unit each is in: all are put in its first module, the root's in none"
        )

    def settings(self) -> dict[str, str | bool | int]:
        """The settings of the job that its traces show, by the names that ``--fsdp`` takes."""
        members = [member.gradient for _, member in self._members or []]
        wrapped = [unit.modules for unit in self.first.units[::-1] if unit.modules]
        words = ["+".join(modules if self._options.model else modules[:1]) for modules in wrapped]
        made: dict[str, str | bool | int] = {}
        if not members or set(words) != set(blocks_of(_as_model(members))):
            made["units"] = ",".join(words)
        sent = {unit.reduction.dtype for unit in self.first.units if unit.reduction is not None} - {None}
        kept = {gradient.dtype for gradient in members}
        computed = {unit.dtype for unit in self.first.units} - {None} or kept
        if len(computed) == 1 and kept and computed != kept:
            made["param_dtype"] = str(*computed)
        if len(sent) == 1 and kept and sent != computed:
            made["reduce_dtype"] = str(*sent)
        if self.policy == SHARDED:
            made.update(self.first.settings)
        if self.steps[0].micro_batches > 1:
            made["accumulation_steps"] = self.steps[0].micro_batches
        return made


def _units_of(step: SeenStep) -> tuple[object, ...]:
    sharding = step.sharding
    return () if sharding is None else tuple((unit.modules, unit.shapes) for unit in sharding.units)


def _as_model(gradients: Sequence[Gradient]) -> Workload:
    """A workload with nothing but gradients."""
    return Workload(name="trace", gradients=tuple(gradients), forward_ns=0, backward_ns=0, optimizer_ns=0)


def _as_gathers(step: SeenStep) -> SeenStep:
    """The step with its gathers in the place of its reductions, as ranks are aligned by these."""
    gathers = () if step.sharding is None else step.sharding.gathers
    return replace(step, collectives=tuple(replace(one, role="gradients") for one in gathers))


def _both(reduced: Curve, gathered: Curve) -> Curve:
    return tuple(
        CurvePoint(
            num_bytes=point.num_bytes,
            duration_ns=point.duration_ns + service_ns(gathered, point.num_bytes),
        )
        for point in reduced
    )


def _shown(shapes: Sequence[tuple[int, ...]]) -> str:
    return few([str(list(shape)) for shape in shapes]) or "none"
