"""DistributedDataParallel's switches: which are modelled, what each may be, what is refused and why."""

from dataclasses import dataclass, fields
from typing import Any

from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import CAP_KWARGS, Assignment
from sim.nouns.ddp_switches import ARGUMENTS, SETTINGS, SWITCHES
from sim.nouns.workload import Workload
from sim.systems.bucketing import ddp_limits
from sim.systems.comm_hooks import CommHook, read_comm_hook
from sim.systems.compile_cuts import OptimizeDdp, check_compile
from sim.units import MIB

# What the engines model, by name: arguments of DistributedDataParallel, and what is set elsewhere.
MODELLED_DDP_KWARGS = {one.name: one.does for one in ARGUMENTS}
MODELLED_SETTINGS = {one.name: one.does for one in SETTINGS}
# Arguments that change no step while they are off.
_OFF_DDP_KWARGS = ("check_reduction", "delay_all_reduce_named_params", "param_to_hook_all_reduce")
_CONSTRUCTION = ("init_sync",)  # changes no step, only what the constructor sends (A2.8)
FLOATS = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """How a job uses DistributedDataParallel, defaults where nothing is said.

    A flag or number of ``sim.nouns.ddp_switches`` that is a field here is read into it by its name.
    """

    gradient_as_bucket_view: bool = False
    batched_grad_copy: bool = False
    syncs_buffers: bool = True
    find_unused_parameters: bool = False
    static_graph: bool = False
    skip_all_reduce_unused_params: bool = False
    reduce_dtype: str | None = None
    buffer_dtype: str | None = None
    comm_hook: CommHook | None = None
    set_to_none: bool = True
    accumulation_steps: int = 1
    no_sync: bool = True
    optimize_ddp: OptimizeDdp | None = None
    compile_cap_mb: float = 25

    @property
    def searches(self) -> bool:
        """Whether every forward searches for unused parameters; a static graph does so once (A3.13)."""
        return self.find_unused_parameters and not self.static_graph

    @property
    def syncs_each(self) -> bool:
        """Whether a step has several micro-batches that each reduce."""
        return self.accumulation_steps > 1 and not self.no_sync

    @property
    def keeps_views(self) -> bool:
        """Whether the last micro-batch accumulates gradients into their buckets, as views of them (A3.4).

        They stay there from step to step, or from one synchronised micro-batch to the next.
        """
        return self.gradient_as_bucket_view and (not self.set_to_none or self.syncs_each)

    @property
    def rebuilt_from(self) -> int | None:
        """The first iteration with rebuilt buckets; None: they are never rebuilt (A2.6)."""
        if self.static_graph:
            return 3
        return None if self.find_unused_parameters else 2


_READ_AS_THEY_ARE = [
    one.name for one in fields(Switches) if one.name in SWITCHES and SWITCHES[one.name].default is not None
]


def check_ddp_kwargs(kwargs: dict[str, Any]) -> None:
    """Refuse arguments of DistributedDataParallel that are not modelled or not legal.

    Raises:
        InputError: a value that is not legal.
        NotModelledError: an argument that is not modelled, or only while it is off.
    """
    for name, value in kwargs.items():
        if name in CAP_KWARGS:
            continue
        if name in _OFF_DDP_KWARGS and (value is False or value is None):
            continue
        if name not in MODELLED_DDP_KWARGS and name not in _CONSTRUCTION:
            raise NotModelledError(
                f"ddp: {name}={value!r} is not modelled; modelled switches: "
                f"{', '.join((*MODELLED_DDP_KWARGS, *MODELLED_SETTINGS))}"
            )
        if name == "mixed_precision":
            _reduce_dtype(value)
        elif name in SWITCHES:
            SWITCHES[name].check(value)
        elif not isinstance(value, bool):
            raise InputError(f"ddp: {name}={value!r} is not legal; give true or false")


def read_switches(assignment: Assignment) -> Switches:
    """The switches of an assignment of DDP's.

    Raises:
        InputError: a value that is not legal.
        NotModelledError: a switch, or a combination of switches, that is not modelled.
    """
    kwargs, settings = assignment.ddp_kwargs, assignment.settings
    check_ddp_kwargs(kwargs)
    for name in settings:
        if name not in MODELLED_SETTINGS:
            raise NotModelledError(
                f"settings: {name}={settings[name]!r} is not modelled; modelled settings: "
                f"{', '.join(MODELLED_SETTINGS)}"
            )
    for name, value in settings.items():
        if SWITCHES[name].default is not None:
            SWITCHES[name].check(value)
    hook, given = settings.get("comm_hook"), {**kwargs, **settings}
    optimize_ddp, compile_cap_mb = settings.get("optimize_ddp"), settings.get("compile_cap_mb")
    if compile_cap_mb is None:
        compile_cap_mb = 25 if optimize_ddp is None else _own_cap_mb(kwargs)
    elif optimize_ddp != "ddp_optimizer":
        raise InputError("ddp: compile_cap_mb needs optimize_ddp=ddp_optimizer, which cuts")
    if optimize_ddp is not None:
        check_compile(optimize_ddp, compile_cap_mb)
    switches = Switches(
        **{name: given[name] for name in _READ_AS_THEY_ARE if name in given},
        syncs_buffers=kwargs.get("forward_sync_buffers", kwargs.get("broadcast_buffers", True)),
        reduce_dtype=_reduce_dtype(kwargs.get("mixed_precision")),
        buffer_dtype=(kwargs.get("mixed_precision") or {}).get("buffer_dtype"),
        comm_hook=None if hook is None else read_comm_hook(hook),
        optimize_ddp=optimize_ddp,
        compile_cap_mb=compile_cap_mb,
    )
    _check_together(switches)
    return switches


def _reduce_dtype(value: Any) -> str | None:
    """The dtype that travels under DDP's mixed precision: ``reduce_dtype``, else ``param_dtype`` (A2.9)."""
    if value is None:
        return None
    members = SWITCHES["mixed_precision"].parts
    if not isinstance(value, dict) or not set(value) <= set(members) or not value:
        raise InputError(
            f"ddp: mixed_precision={value!r} is not legal; give an object with "
            f'{", ".join(members)}, such as {{"param_dtype": "bfloat16"}}'
        )
    for name, dtype in value.items():
        if not isinstance(dtype, str) or dtype not in FLOATS:
            raise InputError(
                f"ddp: mixed_precision.{name}={dtype!r} is not legal; give one of {', '.join(FLOATS)}"
            )
    dtype = value.get("reduce_dtype", value.get("param_dtype"))
    return dtype if dtype is None else str(dtype)


def _own_cap_mb(kwargs: dict[str, Any]) -> float:
    """The cap of torch.compile's cuts where none is given apart: DDP's own, but at least 1 MiB (A11.1)."""
    return max(MIB, *ddp_limits(kwargs.get("bucket_cap_mb"), None, kwargs.get("bucket_cap_mb_list"))) / MIB


def _check_together(switches: Switches) -> None:
    """Raise ``NotModelledError`` for switches that are modelled each but not with one another."""
    for name in ("comm_hook", "optimize_ddp") if switches.reduce_dtype is not None else ():
        if getattr(switches, name) is not None:
            raise NotModelledError(f"ddp: {name} and mixed_precision together are not modelled")
    if switches.static_graph and switches.accumulation_steps > 1 and switches.no_sync:
        raise NotModelledError(
            "ddp: static_graph and accumulation_steps: torch stops where the first backward of a static "
            "graph is under no_sync"
        )


def check_backward(workload: Workload) -> None:
    """Raise ``InputError`` where no gradient ever becomes ready."""
    if all(gradient.ready_ns is None for gradient in workload.gradients):
        raise InputError(f"workload {workload.name!r}: no gradient ever becomes ready; there is no backward")


def check_used(workload: Workload, switches: Switches) -> None:
    """Raise ``NotModelledError`` where DDP itself would stop: unused parameters, or hooks that fire twice."""
    finds = switches.find_unused_parameters or switches.static_graph
    for gradient in workload.gradients:
        if gradient.ready_ns is None and not finds:
            raise NotModelledError(
                f"{workload.label(gradient)} is never ready; DDP without find_unused_parameters or "
                f"static_graph raises an error on it at the next forward (A3.21)"
            )
        if gradient.sparse and gradient.ready_ns is None:
            raise NotModelledError(
                f"{workload.label(gradient)} is sparse and never ready; DDP stops with 'Expected sparse "
                f"gradient to be defined'"
            )
        if gradient.uses > 1 and not switches.static_graph:
            raise NotModelledError(
                f"{workload.label(gradient)} becomes ready {gradient.uses} times in one backward; DDP "
                f"without static_graph raises 'marked ready twice' (A8.5)"
            )
    check_backward(workload)
