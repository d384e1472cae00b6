"""Which tensors a step is walked on: stand-ins without data where the code allows it, else real ones."""

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from sim.errors import InputError
from sim.nouns.gpus import GpuSheet
from sim.recorder.estimating.stand_ins import as_on_gpus, stand_in_pair, stand_ins
from sim.recorder.estimating.walk import ModelWalk, walk
from sim.recorder.factory import Pair, Step, describe, import_module_of, load_factory

_STAND_INS = "stand-ins without data"
_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parents[1])  # sim/recorder: its own calls are not the code that needs data


def walk_given(
    given: Step | Pair | str,
    *,
    arguments: Mapping[str, Any] | None,
    device: GpuSheet,
    dtype: str | None,
    autocast: str | None,
    tell: Callable[[str], None],
) -> tuple[ModelWalk, str]:
    """Walk a step, a pair, or what ``MODULE:FACTORY`` makes; and a word on the tensors it was walked on.

    A factory is called on stand-ins. Where that needs data that they do not have (sizes or branches that
    depend on values, numpy), it is called for real, and what it made is walked on stand-ins, so that no
    activation is ever held. Only where the step itself needs data is it run for real, on the CPU. A pair's
    tensors are replaced by stand-ins; a callable that is given has tensors of its own, whose owner goes on
    with them, and runs for real.

    Args:
        tell: is told, before anything is built or run for real, that it is, and what needs it.

    Raises:
        InputError: the step cannot be walked; or only on real tensors, and they do not fit.
    """

    def walked(step: Step | Pair) -> ModelWalk:
        return walk(step, device=device, dtype=dtype, autocast=autocast)

    def loaded(spec: str) -> Step | Pair:
        return load_factory(spec, arguments=arguments)

    sizes: list[int] = []
    why, on = "a callable brings its own tensors", _STAND_INS
    made: Step | Pair
    if isinstance(given, str):
        import_module_of(given)  # what a module makes when it is imported stays real
        with _wanting_data() as wants, stand_ins():
            made = loaded(given)
            if isinstance(made, tuple):
                sizes.append(_parameter_bytes(made))
            return walked(made), on
        why = wants[0]
        _check_fits(sizes, given, why, copies=1)
        tell(f"the model is built for real, its step is still walked without data: {why}")
        with as_on_gpus():
            made = loaded(given)
        sizes = [_parameter_bytes(made)] if isinstance(made, tuple) else []
        on = f"stand-ins of a model that was built for real ({why})"
    else:
        made = tuple(given) if isinstance(given, list) else given
    if isinstance(given, str) or isinstance(made, tuple):
        with _wanting_data() as wants, stand_ins():
            return walked(_doubled(made) if isinstance(made, tuple) else made), on
        why = wants[0]
    _check_fits(sizes, made, why, copies=2)
    tell(f"the step runs for real on the CPU, twice, which may take long: {why}")
    with as_on_gpus():
        if isinstance(given, str) and not isinstance(made, tuple):
            made = loaded(given)  # a step that was walked keeps stand-ins, such as its optimizer's
        return walked(made), f"real tensors on the CPU ({why})"


@contextmanager
def _wanting_data() -> Iterator[list[str]]:
    """Go on after the block where code in it raised, and yield the list that then says what and where."""
    wants: list[str] = []
    try:
        yield wants
    except InputError as error:
        if error.__cause__ is None:
            raise
        wants.append(_told(error.__cause__))


def _told(error: BaseException) -> str:
    """What needs data: the operator where torch names it, and the line of the user's code."""
    operator = getattr(error, "func", None)
    what = describe(error) if operator is None else f"{operator} needs data"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename[:1] != "<"]
    theirs = [frame for frame in frames if not frame.filename.startswith((_TORCH, _OURS))]
    if not theirs:
        return what
    last = theirs[-1]
    return f"{what}, in {last.name} ({Path(last.filename).name}:{last.lineno}: {last.line})"


def _doubled(pair: Pair) -> Pair:
    try:
        return stand_in_pair(pair)
    except Exception as error:
        raise InputError(f"model: its double could not be made: {describe(error)}") from error


def _parameter_bytes(pair: Pair) -> int:
    return sum(p.numel() * p.element_size() for p in pair[0].parameters())


def _check_fits(sizes: list[int], given: Step | Pair | str, why: str, *, copies: int) -> None:
    """So many copies of the parameters must fit half the memory; meta tensors cannot be run."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if isinstance(given, tuple) and any(tensor.is_meta for tensor in given[0].parameters()):
        raise InputError(
            f"model: its step needs data ({why}), and it is on the meta device; make it on the CPU"
        )
    if sizes and 2 * copies * sizes[-1] > memory:
        raise InputError(
            f"model: it needs data ({why}), and {sizes[-1] / 1e9:.1f} GB of parameters"
            f"{' with their gradients' if copies > 1 else ''} are too many for this machine; take out what "
            f"depends on values, or make it smaller"
        )
