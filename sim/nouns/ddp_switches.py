"""DistributedDataParallel's switches and communication hooks: one field or row each, for all who read, tell,
record or try them.

Names are torch's own. A new switch needs a field of ``Switches``, its rule in ``sim/systems/RULES.md``, and
the lines of the program in ``sim/systems/ddp.py`` that heed it. Ranks that are measured import this, so it
imports no third-party package.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import CAP_KWARGS, Assignment
from sim.nouns.checks import Legal
from sim.nouns.settings import MICRO_BATCHES, MicroBatches, read, setting, settings_of
from sim.units import MIB

Version = tuple[int, int]
OLDEST: Version = (2, 4)  # for which lines are written: before, any cap has a first bucket of 1 MiB (A2.1)
SUPPORTED_SINCE: Version = (2, 9)  # with which bucketsim runs
LIST_SINCE: Version = (2, 11)  # bucket_cap_mb_list
ZERO_CAP_SINCE: Version = (2, 12)  # bucket_cap_mb=0 (A2.1)
DEFAULT_FIRST_BUCKET_BYTES = MIB  # dist._DEFAULT_FIRST_BUCKET_BYTES (A2.1)
DEFAULT_BUCKET_CAP_BYTES = 25 * MIB
OptimizeDdp = Literal["ddp_optimizer", "no_optimization"]
# Arguments that change no step while they are off.
_OFF = ("check_reduction", "delay_all_reduce_named_params", "mixed_precision", "param_to_hook_all_reduce")
_NO_LOW_RANK = "its all-reduces are launched by callbacks, with products of matrices between them (A3.17)"


@dataclass(frozen=True, slots=True)
class CommHook:
    """One communication hook of torch's (A3.17), by its name without ``_hook``: what it sends.

    ``dtype``: what it sends whatever the bucket's dtype; None: the bucket's own. ``module`` of
    ``torch.distributed.algorithms.ddp_comm_hooks`` has it; ``needs_nccl``: torch refuses it on the CPU.
    """

    name: str
    dtype: str | None = None
    module: str = "default_hooks"
    sends: bool = True
    needs_nccl: bool = False


_HOOKS = (
    CommHook("fp16_compress", "float16"),
    CommHook("bf16_compress", "bfloat16", needs_nccl=True),
    CommHook("allreduce"),
    CommHook("noop", module="debugging_hooks", sends=False),
)
HOOKS: Mapping[str, CommHook] = {one.name: one for one in _HOOKS}
HookName = Annotated[str, Legal(words=tuple(HOOKS), kind=str)]


def _argument(
    default: Any, help: str = "", *, since: Version = OLDEST, recorded: bool = False, alias_of: str = ""
) -> Any:
    """An argument of DistributedDataParallel: the first torch that has it, whether ``sim.record`` writes it
    down, and the switch that it is the newer name of."""
    return setting(default, help, where="argument", since=since, recorded=recorded, alias_of=alias_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """How a job uses DistributedDataParallel, defaults where nothing is said.

    A switch is an argument of DistributedDataParallel or, where it does not say where it is, set by the
    training loop or by ``register_comm_hook``. ``syncs_buffers`` and
    ``sends_buffers`` are what the two names of one argument say together (A3.16, D1.1).
    """

    gradient_as_bucket_view: bool = _argument(  # A3.4
        False, "Gradients live in their buckets: nothing is copied back afterwards.", recorded=True
    )
    static_graph: bool = _argument(  # A3.15
        False, "Unused parameters are found once; buckets are rebuilt before iteration 3.", recorded=True
    )
    find_unused_parameters: bool = _argument(  # A3.13
        False, "Every forward searches for unused parameters; buckets are never rebuilt.", recorded=True
    )
    batched_grad_copy: bool = _argument(  # A3.4
        False, "Copies a bucket's gradients at once (torch 2.12).", since=(2, 12), recorded=True
    )
    comm_hook: HookName | None = setting(  # A3.17
        None,
        "What is sent in place of DDP's all-reduce: 16-bit gradients, or nothing (noop).",
        not_modelled={"powerSGD": _NO_LOW_RANK, "batched_powerSGD": _NO_LOW_RANK},
    )
    accumulation_steps: MicroBatches = setting(1, MICRO_BATCHES)  # A3.12
    no_sync: bool = setting(True, "Micro-batches before the last reduce nothing; off: each does.")  # A3.12
    set_to_none: bool = setting(  # A3.4
        True, "zero_grad(set_to_none=…); off: gradients stay in memory, and in their buckets."
    )
    broadcast_buffers: bool = _argument(  # A3.16
        True, "Buffers, such as BatchNorm's means, are broadcast before each forward.", recorded=True
    )
    forward_sync_buffers: bool = _argument(  # goes first where both are given
        True, since=(2, 13), recorded=True, alias_of="broadcast_buffers"
    )
    skip_all_reduce_unused_params: bool = _argument(  # A3.14
        False, "A bucket of unused parameters alone is not sent (torch 2.8).", since=(2, 8)
    )
    init_sync: bool = _argument(True)  # what the constructor sends (A2.8)
    optimize_ddp: OptimizeDdp | None = setting(  # A11, A11.5
        None,
        "Under torch.compile (torch._dynamo.config.optimize_ddp): gradients are ready where its cuts end; "
        "with no_optimization after the whole backward.",
        not_modelled={
            "python_reducer": "Inductor makes its buckets",
            "python_reducer_without_compiled_forward": "torch does as under no_optimization",
        },
    )
    compile_cap_mb: Annotated[float, Legal(kind=float, is_open=True)] | None = setting(  # A11.1
        None, "The cap of torch.compile's cuts, apart from that of the buckets. Empty: the same."
    )
    syncs_buffers: bool = True
    sends_buffers: bool = True

    @property
    def hook(self) -> CommHook | None:
        """The communication hook; None: DDP's own all-reduce."""
        return None if self.comm_hook is None else HOOKS[self.comm_hook]

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


SWITCHES = settings_of(Switches)
ARGUMENTS = {name: one for name, one in SWITCHES.items() if one.metadata.get("where") == "argument"}
SETTINGS = {name: one for name, one in SWITCHES.items() if "where" not in one.metadata}


def split_switches(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """``ddp_kwargs`` and ``settings`` of an assignment with these switches."""
    settings = {name: value for name, value in options.items() if name in SETTINGS}
    return {name: value for name, value in options.items() if name not in settings}, settings


def read_switches(assignment: Assignment) -> Switches:
    """The switches of an assignment of DDP's.

    Raises:
        InputError: a value that is not legal.
        NotModelledError: a switch, or a combination of switches, that is not modelled.
    """
    kwargs = {
        name: value
        for name, value in assignment.ddp_kwargs.items()
        if name not in CAP_KWARGS and not (name in _OFF and (value is False or value is None))
    }
    for field, given, others in (
        ("ddp_kwargs", kwargs, SWITCHES.keys() - ARGUMENTS.keys()),
        ("settings", assignment.settings, SWITCHES.keys() - SETTINGS.keys()),
    ):
        for name in (one for one in given if one in others):
            raise NotModelledError(f"{field}: {name}={given[name]!r} is not modelled; it is set elsewhere")
    broadcasts = kwargs.get("broadcast_buffers", True)
    switches = read(
        Switches,
        "ddp",
        {**kwargs, **assignment.settings},
        syncs_buffers=kwargs.get("forward_sync_buffers", broadcasts),
        sends_buffers="forward_sync_buffers" in kwargs or broadcasts,
    )
    if switches.compile_cap_mb is not None and switches.optimize_ddp != "ddp_optimizer":
        raise InputError("ddp: compile_cap_mb needs optimize_ddp=ddp_optimizer, which cuts")
    if switches.static_graph and switches.accumulation_steps > 1 and switches.no_sync:
        raise NotModelledError(
            "ddp: static_graph and accumulation_steps: torch stops where the first backward of a static "
            "graph is under no_sync"
        )
    return switches
