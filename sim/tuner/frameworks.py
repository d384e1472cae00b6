"""What each training framework can set of DistributedDataParallel, one row each, and the best step that its
own settings reach, for an assignment that they may not allow."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sim.errors import NotModelledError
from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES, Assignment
from sim.nouns.checks import one_of
from sim.nouns.ddp_switches import SWITCHES
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Setting
from sim.nouns.workload import Workload
from sim.systems.registry import assign
from sim.systems.simulate import simulated_step_ns
from sim.systems.snippets import check_code, hook_call
from sim.tuner.caps import cap_curve, round_cap_mb
from sim.tuner.problem import Problem
from sim.units import MIB, format_ms, format_percent

_DDP_DEFAULT_MB = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework.

    ``lines`` set it: with ``{given}`` keywords, or all of them as ``{kwargs}``. A communication hook, torch's
    ``{hook}`` or its ``{name}``, needs a line ``hook_import`` ahead, and is one keyword more
    (``hook_keyword``) or a line behind (``hook_line``). ``takes``: DistributedDataParallel's keywords that it
    passes on; None: all of them. ``hooks``: those that it registers; None: all of torch's. ``drops_default``:
    a cap equal to 25 is not passed on, so that DDP makes its small first bucket (A2.1). ``whole_caps``: a cap
    must be whole MiB. ``always_says``: keywords that ``lines`` must have, as the framework's defaults differ.
    """

    title: str
    lines: str
    prefix: str = ""
    hook_import: str = "{torch}"
    hook_keyword: str = ""
    hook_line: str = ""
    takes: frozenset[str] | None = None
    hooks: frozenset[str] | None = None
    whole_caps: bool = False
    drops_default: bool = False
    always_says: tuple[str, ...] = ()
    note: str = ""

    def can_set(self, keyword: str) -> bool:
        """Whether it passes this keyword on."""
        return self.takes is None or keyword in self.takes

    def can_cap(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether the caps among these keywords reach DistributedDataParallel as they are."""
        cap = kwargs.get("bucket_cap_mb")
        return all(self.can_set(name) for name in kwargs if name in CAP_KWARGS) and (
            cap is None
            or not ((self.whole_caps and cap != int(cap)) or (self.drops_default and cap == _DDP_DEFAULT_MB))
        )

    def cap_between(self, low_bytes: int, high_bytes: int) -> float | None:
        """A cap in MiB that it can set, from ``low_bytes`` to ``high_bytes``; None: there is none."""
        if self.whole_caps:
            least = max(1, -(-low_bytes // MIB))
            least += not self.can_cap({"bucket_cap_mb": least})  # the default, which is not passed on
            return least if least * MIB <= high_bytes else 0 if low_bytes == 0 else None
        cap = round_cap_mb(low_bytes, high_bytes)
        # the same bytes, and not equal to the default
        return cap if self.can_cap({"bucket_cap_mb": cap}) else cap + 1e-7


_COMMON = {"bucket_cap_mb", "broadcast_buffers", "find_unused_parameters", "static_graph"}
FRAMEWORKS: Mapping[str, Framework] = {
    "transformers": Framework(
        title="transformers' Trainer",
        lines="from transformers import TrainingArguments\n\n"
        "arguments = TrainingArguments({given})  # with your own",
        prefix="ddp_",
        takes=frozenset(_COMMON),
        hooks=frozenset(),
        whole_caps=True,
        drops_default=True,
        always_says=("find_unused_parameters",),
        note="ddp_bucket_cap_mb=25 and none are the same there: 1 MiB first, then 25 MiB.",
    ),
    "accelerate": Framework(
        title="Accelerate",
        lines="from accelerate import Accelerator\n"
        "from accelerate.utils import DistributedDataParallelKwargs\n\n"
        "accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs({given})])",
        hook_import="from accelerate.utils import DDPCommunicationHookType",
        hook_keyword="comm_hook=DDPCommunicationHookType.{name}",
        takes=frozenset({*_COMMON, "gradient_as_bucket_view"}),
        hooks=frozenset({"fp16_compress", "bf16_compress"}),
        drops_default=True,
        note="bucket_cap_mb=25 and none are the same there: 1 MiB first, then 25 MiB.",
    ),
    "lightning": Framework(
        title="Lightning",
        lines="from lightning.pytorch.strategies import DDPStrategy  # Fabric's: lightning.fabric.strategies"
        "\n\nstrategy = DDPStrategy({given})  # Trainer(strategy=strategy)",
        hook_keyword="ddp_comm_state=None, ddp_comm_hook={hook}",
    ),
    "ray": Framework(
        title="Ray Train",
        lines="import ray.train.torch\n\n"
        "ddp_model = ray.train.torch.prepare_model(model, parallel_strategy_kwargs={kwargs})",
        hook_line="ddp_model.register_comm_hook(None, {hook})",
    ),
    "mmengine": Framework(
        title="MMEngine",
        lines="model_wrapper_cfg = dict(type='MMDistributedDataParallel', {given})",
        hooks=frozenset(),
        always_says=("broadcast_buffers",),
        note="Without a model_wrapper_cfg MMEngine itself says broadcast_buffers=False.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestSetting:
    """The ``lines`` that set a framework, the buckets that it then uses, and their step.

    Steps to compare with are that of the assignment asked for (``asked_ns``) and that of DDP's default under
    the same switches (``default_ns``).
    """

    assignment: Assignment
    step_ns: int
    asked_ns: int
    default_ns: int
    lines: str

    @property
    def lost_ns(self) -> int:
        """By how much its step is longer than that of the assignment asked for."""
        return self.step_ns - self.asked_ns


def nearest_setting(
    workload: Workload,
    hardware: Hardware,
    assignment: Assignment,
    framework: str,
    *,
    setting: Setting | None = None,
) -> NearestSetting:
    """The setting of ``framework`` whose step is shortest, with the lines that set it.

    It is ``setting``, or its round cap, where that is given and the framework can set it. Else all caps that
    the framework can set are played, under those switches of ``assignment`` that it can set.
    ``assignment`` itself is played, too, if the framework can set all its keywords.

    Args:
        workload: what backward makes ready.
        hardware: what the machine carries.
        assignment: what is wished for, such as ``sim.tune``'s.
        framework: ``transformers``, ``accelerate``, ``lightning``, ``ray`` or ``mmengine``.
        setting: what ``sim.tune`` says to set for this very job.

    Raises:
        AssignmentError: the assignment does not fit ``workload``.
        InputError: a framework that is not known, or a switch that is not legal.
        NotModelledError: an assignment of another system than DistributedDataParallel, or a workload that
            the framework cannot train with the switches that it has.
    """
    one_of("framework", framework, FRAMEWORKS)
    assignment.check_fits(workload)
    if assignment.policy not in DDP_POLICIES:
        raise NotModelledError(
            f"policy: {assignment.policy!r} is no system of DistributedDataParallel, which {framework} sets"
        )
    check_code(assignment)
    row = FRAMEWORKS[framework]
    given = {name: value for name, value in assignment.ddp_kwargs.items() if name not in CAP_KWARGS}
    switches = {name: value for name, value in given.items() if row.can_set(name)}
    settings = dict(assignment.settings)
    lacks = [f"{name}={value!r}" for name, value in given.items() if name not in switches]
    hook = settings.get("comm_hook")
    if hook is not None and row.hooks is not None and hook not in row.hooks:
        lacks.append(f"comm_hook={settings.pop('comm_hook')!r}")
    workload = replace(workload, job=None)  # what a framework cannot set is not set
    job = workload.with_switches(switches | settings)
    default = assign(job)
    default_ns, asked_ns = (simulated_step_ns(workload, hardware, one) for one in (default, assignment))
    best, is_complete = _said(job, setting, row) if not lacks else None, True
    if best is None:
        also = [assignment] if not lacks and assignment.by_keywords else []
        best, is_complete = _best(job, hardware, row, also)
    best_ns = simulated_step_ns(workload, hardware, best)
    told = [
        f"# bucketsim: the nearest for {workload.name!r} that {row.title} can set; predicted are",
        f"# {format_ms(best_ns)} a step, {_compared(best_ns, asked_ns)} the assignment asked for "
        f"(DDP's default: {format_ms(default_ns)}).",
    ]
    told += [f"# {row.note}"] if row.note else []
    elsewhere = {name: value for name, value in best.settings.items() if name != "comm_hook"}
    told += [
        f"# Set elsewhere: {name}={value}." for name, value in best.requires.get("environment", {}).items()
    ]
    told += [f"# Set elsewhere: {name}={value!r}." for name, value in elsewhere.items()]
    if "torch" in best.requires:
        told.append(f"# Needs torch {best.requires['torch']}.")
    if lacks:
        told.append(f"# {row.title} cannot set {', '.join(lacks)}, and these times are without.")
    searches = switches.get("find_unused_parameters") or switches.get("static_graph")
    if "find_unused_parameters" in row.always_says and not searches:
        searching, _ = _best(job.with_switches({"find_unused_parameters": True}), hardware, row, [])
        caps = [f"ddp_{name}={value}" for name, value in searching.ddp_kwargs.items() if name in CAP_KWARGS]
        cap = caps[0] if caps else "no ddp_bucket_cap_mb"
        step_ns = simulated_step_ns(workload, hardware, searching)
        told += [
            "# The Trainer's own default is ddp_find_unused_parameters=True unless activations are "
            "checkpointed, and",
            f"# buckets are then never rebuilt. Where it has to stay, {cap} is best: {format_ms(step_ns)}.",
        ]
    if not is_complete:
        told.append("# There are too many caps to try them all: some were left out.")
    # DDP's defaults where the framework's own differ; caps first.
    kwargs: dict[str, Any] = {name: SWITCHES[name].default for name in row.always_says} | best.ddp_kwargs
    caps_first = sorted(kwargs, key=lambda name: name not in CAP_KWARGS)
    if "bucket_cap_mb" in kwargs and row.whole_caps:
        kwargs["bucket_cap_mb"] = int(kwargs["bucket_cap_mb"])
    lines = _lines(row, {name: kwargs[name] for name in caps_first}, best.settings.get("comm_hook"))
    return NearestSetting(
        assignment=best,
        step_ns=best_ns,
        asked_ns=asked_ns,
        default_ns=default_ns,
        lines="\n".join([*told, *lines]) + "\n",
    )


def _said(job: Workload, setting: Setting | None, framework: Framework) -> Assignment | None:
    """What ``setting`` says to set; None where the framework cannot, or nothing is said."""
    if setting is None:
        return None
    cap_mb = None if setting.pick == "default" else setting.cap_mb
    if setting.pick != "default" and (cap_mb is None or not framework.can_cap({"bucket_cap_mb": cap_mb})):
        return None
    return assign(job, bucket_cap_mb=cap_mb)


def _best(
    job: Workload, hardware: Hardware, framework: Framework, also: list[Assignment]
) -> tuple[Assignment, bool]:
    """The shortest step of all caps that the framework can set and, the first of equals, of DDP's default and
    what is tried ``also`` where it can be set; and whether all caps were tried."""
    problem = Problem(job, hardware)
    curve = cap_curve(problem)
    plain = [assign(job), *(one for one in also if framework.can_cap(one.ddp_kwargs))]
    best = min(plain, key=lambda one: problem.sync_end_ns(one.bucket_indices))
    best_ns, best_mb = problem.sync_end_ns(best.bucket_indices), None
    rows = zip(curve.low_bytes.tolist(), curve.high_bytes.tolist(), curve.sync_end_ns.tolist(), strict=True)
    for low, high, end_ns in rows:
        cap_mb = framework.cap_between(low, high) if end_ns < best_ns else None
        if cap_mb is not None:
            best_ns, best_mb = end_ns, cap_mb
    return best if best_mb is None else assign(job, bucket_cap_mb=best_mb), curve.complete


def _lines(row: Framework, kwargs: Mapping[str, Any], hook: str | None) -> list[str]:
    """The lines that set these keywords and this communication hook."""
    given = [f"{row.prefix}{name}={value!r}" for name, value in kwargs.items()]
    ahead, behind = [], []
    if hook is not None:
        imported, call = hook_call(hook)
        name = hook.partition("_")[0].upper()
        ahead.append(row.hook_import.format(torch=imported))
        given += [row.hook_keyword.format(hook=call, name=name)] if row.hook_keyword else []
        behind += [row.hook_line.format(hook=call)] if row.hook_line else []
    return [*ahead, row.lines.format(given=", ".join(given), kwargs=dict(kwargs)), *behind]


def _compared(ours_ns: int, theirs_ns: int) -> str:
    if ours_ns == theirs_ns:
        return "as long as with"
    longer = "longer" if ours_ns > theirs_ns else "shorter"
    away = abs(ours_ns - theirs_ns)
    return f"{format_ms(away)} ({format_percent(away / theirs_ns)}) {longer} than with"
