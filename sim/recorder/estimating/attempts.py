"""Which tensors a step is walked on: stand-ins without data where the code allows it, else real ones."""

import os
from collections.abc import Mapping
from typing import Any

from sim.errors import InputError
from sim.recorder.estimating.gpus import GpuSheet
from sim.recorder.estimating.stand_ins import stand_in_pair, stand_ins
from sim.recorder.estimating.walk import ModelWalk, walk
from sim.recorder.factory import Pair, Step, describe, import_named, load_factory

_STAND_INS = "stand-ins without data"


def walk_given(
    given: Step | Pair | str,
    *,
    arguments: Mapping[str, Any] | None,
    device: GpuSheet,
    dtype: str | None,
    autocast: str | None,
) -> tuple[ModelWalk, str]:
    """Walk a step, a pair, or what ``MODULE:FACTORY`` makes; and a word on the tensors it was walked on.

    A factory is called on stand-ins. Where it, or the model's step, needs data that they do not have
    (sizes or branches that depend on values, numpy), it is called for real and its step run on the
    CPU. A pair's tensors are replaced by stand-ins; a callable has tensors of its own.

    Raises:
        InputError: the step cannot be walked; or only on real tensors, and they do not fit.
    """

    def walk_on_stand_ins() -> ModelWalk:
        with stand_ins():
            made = load_factory(given, arguments=arguments) if isinstance(given, str) else given
            if isinstance(made, tuple):
                made = _doubled(made)
                sizes.append(sum(p.numel() * p.element_size() for p in made[0].parameters()))
            return walk(made, device=device, dtype=dtype, autocast=autocast)

    sizes: list[int] = []
    why = "a callable brings its own tensors"
    if isinstance(given, list):
        given = tuple(given)
    if isinstance(given, str) and ":" in given:
        import_named(given.partition(":")[0])  # what a module makes when it is imported stays real
    if isinstance(given, (str, tuple)):
        try:
            return walk_on_stand_ins(), _STAND_INS
        except InputError as error:
            if error.__cause__ is None:
                raise
            why = describe(error.__cause__)
    _check_fits(sizes, given, why)
    real = load_factory(given, arguments=arguments) if isinstance(given, str) else given
    return walk(real, device=device, dtype=dtype, autocast=autocast), f"real tensors on the CPU ({why})"


def _doubled(pair: Pair) -> Pair:
    try:
        return stand_in_pair(pair)
    except Exception as error:
        raise InputError(f"model: its double could not be made: {describe(error)}") from error


def _check_fits(sizes: list[int], given: Step | Pair | str, why: str) -> None:
    """Parameters and gradients, made for real, must fit half the memory; meta tensors cannot be run."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sizes and isinstance(given, str) and 4 * sizes[-1] > memory:
        raise InputError(
            f"model: its step needs data ({why}), and {sizes[-1] / 1e9:.1f} GB of parameters with their "
            f"gradients are too many for this machine; take out what depends on values, or make it smaller"
        )
    if isinstance(given, tuple) and any(tensor.is_meta for tensor in given[0].parameters()):
        raise InputError(
            f"model: its step needs data ({why}), and it is on the meta device; make it on the CPU"
        )
