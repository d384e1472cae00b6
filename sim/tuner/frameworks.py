"""What each training framework can set of DistributedDataParallel, one row each, and the best step that its
own settings reach, for an assignment that they may not allow."""

from collections.abc import Callable, Iterator, Mapping
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
from sim.tuner.caps import find_intervals, make_walk, round_cap_mb
from sim.units import MIB, format_ms, format_percent

Lines = Callable[[Mapping[str, Any], Any], list[str]]
_DDP_DEFAULT_MB = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework.

    ``takes``: DistributedDataParallel's keywords that it passes on; None: all of them. ``hooks``: the
    communication hooks that it registers; None: all of torch's. ``lines`` writes keywords and hook as one
    sets them. ``drops_default``: a cap equal to 25 is not passed on, so that DDP makes its small first bucket
    (A2.1); ``passes_always``: a cap is passed on even where the user gives none. ``whole_caps``: a cap must
    be whole MiB. ``always_says``: keywords that ``lines`` must have, as the framework's defaults differ.
    """

    title: str
    lines: Lines
    takes: frozenset[str] | None = None
    hooks: frozenset[str] | None = None
    whole_caps: bool = False
    drops_default: bool = False
    passes_always: bool = False
    always_says: tuple[str, ...] = ()
    note: str = ""

    def can_set(self, keyword: str) -> bool:
        """Whether it passes this keyword on."""
        return self.takes is None or keyword in self.takes

    def can_register(self, hook: str | None) -> bool:
        """Whether it registers this communication hook; None is no hook."""
        return hook is None or self.hooks is None or hook in self.hooks

    def can_cap(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether the caps among these keywords reach DistributedDataParallel as they are."""
        caps = {name: value for name, value in kwargs.items() if name in CAP_KWARGS}
        if not caps:
            return not self.passes_always
        cap = caps.get("bucket_cap_mb")
        return all(map(self.can_set, caps)) and (
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


def _arguments(kwargs: Mapping[str, Any], prefix: str = "") -> list[str]:
    return [f"{prefix}{name}={value!r}" for name, value in kwargs.items()]


def _transformers(kwargs: Mapping[str, Any], hook: str | None) -> list[str]:
    return [
        "from transformers import TrainingArguments",
        "",
        f"arguments = TrainingArguments({', '.join(_arguments(kwargs, 'ddp_'))})  # with your own",
    ]


_ACCELERATE_HOOKS = {"fp16_compress": "FP16", "bf16_compress": "BF16"}


def _accelerate(kwargs: Mapping[str, Any], hook: str | None) -> list[str]:
    given, names = _arguments(kwargs), ["DistributedDataParallelKwargs"]
    if hook is not None:
        given.append(f"comm_hook=DDPCommunicationHookType.{_ACCELERATE_HOOKS[hook]}")
        names.insert(0, "DDPCommunicationHookType")
    return [
        "from accelerate import Accelerator",
        f"from accelerate.utils import {', '.join(names)}",
        "",
        f"accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs({', '.join(given)})])",
    ]


def _lightning(kwargs: Mapping[str, Any], hook: str | None) -> list[str]:
    given, imported = _arguments(kwargs), []
    if hook is not None:
        line, name = hook_call(hook)
        imported.append(line)
        given += ["ddp_comm_state=None", f"ddp_comm_hook={name}"]
    return [
        "from lightning.pytorch.strategies import DDPStrategy  # Fabric's: lightning.fabric.strategies",
        *imported,
        "",
        f"strategy = DDPStrategy({', '.join(given)})  # Trainer(strategy=strategy)",
    ]


def _ray(kwargs: Mapping[str, Any], hook: str | None) -> list[str]:
    lines = [
        "import ray.train.torch",
        "",
        f"ddp_model = ray.train.torch.prepare_model(model, parallel_strategy_kwargs={dict(kwargs)!r})",
    ]
    if hook is not None:
        imported, name = hook_call(hook)
        lines += [imported, f"ddp_model.register_comm_hook(None, {name})"]
    return lines


def _mmengine(kwargs: Mapping[str, Any], hook: str | None) -> list[str]:
    given = ", ".join(["type='MMDistributedDataParallel'", *_arguments(kwargs)])
    return [f"model_wrapper_cfg = dict({given})"]


def _fairseq(kwargs: Mapping[str, Any], hook: str | None) -> list[str]:
    words = ["--ddp-backend c10d", f"--bucket-cap-mb {kwargs['bucket_cap_mb']}"]
    words += [f"--{name.replace('_', '-')}" for name, value in kwargs.items() if value is True]
    if hook is not None:
        words.append("--ddp-comm-hook fp16")
    return [f"fairseq-train {' '.join(words)}  # with your own"]


_COMMON = {"bucket_cap_mb", "broadcast_buffers", "find_unused_parameters"}
FRAMEWORKS: Mapping[str, Framework] = {
    "transformers": Framework(
        title="transformers' Trainer",
        lines=_transformers,
        takes=frozenset({*_COMMON, "static_graph"}),
        hooks=frozenset(),
        whole_caps=True,
        drops_default=True,
        always_says=("find_unused_parameters",),
        note="ddp_bucket_cap_mb=25 and none are the same there: 1 MiB first, then 25 MiB.",
    ),
    "accelerate": Framework(
        title="Accelerate",
        lines=_accelerate,
        takes=frozenset({*_COMMON, "static_graph", "gradient_as_bucket_view"}),
        hooks=frozenset(_ACCELERATE_HOOKS),
        drops_default=True,
        note="bucket_cap_mb=25 and none are the same there: 1 MiB first, then 25 MiB.",
    ),
    "lightning": Framework(title="Lightning", lines=_lightning),
    "ray": Framework(title="Ray Train", lines=_ray),
    "mmengine": Framework(
        title="MMEngine",
        lines=_mmengine,
        hooks=frozenset(),
        always_says=("broadcast_buffers",),
        note="Without a model_wrapper_cfg MMEngine itself says broadcast_buffers=False.",
    ),
    "fairseq": Framework(
        title="fairseq",
        lines=_fairseq,
        takes=frozenset(_COMMON),
        hooks=frozenset({"fp16_compress"}),
        whole_caps=True,
        passes_always=True,
        note="--bucket-cap-mb is always passed on, 25 if not given: there is no first bucket of 1 MiB.",
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
        framework: ``transformers``, ``accelerate``, ``lightning``, ``ray``, ``mmengine`` or ``fairseq``.
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
    workload = replace(workload, job=None)  # what a framework cannot set is not set
    row = FRAMEWORKS[framework]
    search = _Search(workload, hardware, assignment, row)
    asked_ns = simulated_step_ns(workload, hardware, assignment)
    said = search.of(setting)
    best, best_ns = search.best(search.switches) if said is None else (said, search.step_of(said))
    default_ns = search.step_of(assign(workload, **search.switches, **search.settings))
    told = [
        f"# bucketsim: the nearest for {workload.name!r} that {row.title} can set; predicted are",
        f"# {format_ms(best_ns)} a step, {_compared(best_ns, asked_ns)} the assignment asked for "
        f"(DDP's default: {format_ms(default_ns)}).",
        *([f"# {row.note}"] if row.note else []),
        *_elsewhere(best, row, search.lacks),
        *_where_unused_are_searched(search),
        *([] if search.is_complete else ["# There are too many caps to try them all: some were left out."]),
    ]
    hook = best.settings.get("comm_hook")
    lines = row.lines(_said(best.ddp_kwargs, row, workload), hook)
    return NearestSetting(
        assignment=best,
        step_ns=best_ns,
        asked_ns=asked_ns,
        default_ns=default_ns,
        lines="\n".join([*told, *lines]) + "\n",
    )


class _Search:
    """Candidates of one framework, played under given switches."""

    def __init__(
        self, workload: Workload, hardware: Hardware, asked: Assignment, framework: Framework
    ) -> None:
        self.workload, self.hardware, self.asked, self.framework = workload, hardware, asked, framework
        given = {name: value for name, value in asked.ddp_kwargs.items() if name not in CAP_KWARGS}
        self.switches = {name: value for name, value in given.items() if framework.can_set(name)}
        self.settings = dict(asked.settings)
        self.is_complete = True
        self.lacks = [f"{name}={value!r}" for name, value in given.items() if name not in self.switches]
        if not framework.can_register(self.settings.get("comm_hook")):
            self.lacks.append(f"comm_hook={self.settings.pop('comm_hook')!r}")

    def best(self, switches: Mapping[str, Any]) -> tuple[Assignment, int]:
        """The setting with the shortest step, the simplest of equals, and that step in ns."""
        played = [(one, self.step_of(one)) for one in self._candidates(switches)]
        return min(played, key=lambda pair: pair[1])  # the first of equals

    def of(self, setting: Setting | None) -> Assignment | None:
        """What ``setting`` says to set; None where the framework cannot, or nothing is said."""
        options = {**self.switches, **self.settings}
        if setting is None or self.lacks:
            return None
        if setting.pick == "default":
            return None if self.framework.passes_always else assign(self.workload, **options)
        if setting.cap_mb is None or not self.framework.can_cap({"bucket_cap_mb": setting.cap_mb}):
            return None
        return assign(self.workload, bucket_cap_mb=setting.cap_mb, **options)

    def step_of(self, assignment: Assignment) -> int:
        """The step of ``assignment`` in ns."""
        return simulated_step_ns(self.workload, self.hardware, assignment)

    def _candidates(self, switches: Mapping[str, Any]) -> Iterator[Assignment]:
        """DDP's default, what was asked for if its keywords are enough, and a cap of each layout."""
        options = {**switches, **self.settings}
        framework = self.framework
        if not framework.passes_always:
            yield assign(self.workload, **options)
        is_whole = switches == self.switches and not self.lacks
        if is_whole and self.asked.by_keywords and framework.can_cap(self.asked.ddp_kwargs):
            yield self.asked
        intervals = find_intervals(make_walk(self.workload, switches))
        self.is_complete = self.is_complete and intervals.complete
        for low, high in zip(intervals.low_bytes.tolist(), intervals.high_bytes.tolist(), strict=True):
            cap = framework.cap_between(low, high)
            if cap is not None:
                yield assign(self.workload, bucket_cap_mb=cap, **options)


def _said(kwargs: Mapping[str, Any], framework: Framework, workload: Workload) -> dict[str, Any]:
    """The keywords to write down, with DDP's defaults where the framework's own differ."""
    said = {name: SWITCHES[name].default for name in framework.always_says}
    if framework.passes_always and workload.buffers:
        said["broadcast_buffers"] = True  # DDP's default, which this framework must be told
    said |= kwargs
    caps: dict[str, Any] = {name: value for name, value in said.items() if name in CAP_KWARGS}
    if "bucket_cap_mb" in caps and framework.whole_caps:
        caps["bucket_cap_mb"] = int(caps["bucket_cap_mb"])
    return {**caps, **{name: value for name, value in said.items() if name not in CAP_KWARGS}}


def _elsewhere(made: Assignment, framework: Framework, lacks: list[str]) -> list[str]:
    """Comments on what has to be set outside of the framework, and on what it cannot set."""
    lines = [f"# Set elsewhere: {name}={value}." for name, value in _environment(made).items()]
    lines += [
        f"# Set elsewhere: {name}={value!r}." for name, value in made.settings.items() if name != "comm_hook"
    ]
    if "torch" in made.requires:
        lines.append(f"# Needs torch {made.requires['torch']}.")
    if lacks:
        lines.append(f"# {framework.title} cannot set {', '.join(lacks)}, and these times are without.")
    return lines


def _environment(made: Assignment) -> dict[str, Any]:
    found: dict[str, Any] = made.requires.get("environment", {})
    return found


def _where_unused_are_searched(search: _Search) -> list[str]:
    """Comment lines on the best cap if the Trainer's default, a search for unused parameters, stays on."""
    if "find_unused_parameters" not in search.framework.always_says:
        return []
    if search.switches.get("find_unused_parameters") or search.switches.get("static_graph"):
        return []
    best, best_ns = search.best({**search.switches, "find_unused_parameters": True})
    caps = [f"ddp_{name}={value}" for name, value in best.ddp_kwargs.items() if name in CAP_KWARGS]
    which = caps[0] if caps else "no ddp_bucket_cap_mb"
    return [
        "# The Trainer's own default is ddp_find_unused_parameters=True unless activations are checkpointed, "
        "and",
        f"# buckets are then never rebuilt. Where it has to stay, {which} is best: {format_ms(best_ns)}.",
    ]


def _compared(ours_ns: int, theirs_ns: int) -> str:
    if ours_ns == theirs_ns:
        return "as long as with"
    longer = "longer" if ours_ns > theirs_ns else "shorter"
    away = abs(ours_ns - theirs_ns)
    return f"{format_ms(away)} ({format_percent(away / theirs_ns)}) {longer} than with"
