"""What each training framework can set of DistributedDataParallel, one row each, and the best step that its
own settings reach, for an assignment that they may not allow."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from sim.errors import NotModelledError
from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES, Assignment
from sim.nouns.checks import Legal
from sim.nouns.ddp_switches import SETTINGS, SWITCHES, read_switches
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Setting
from sim.nouns.workload import AsRun, Workload
from sim.systems.ddp_assignment import as_the_job
from sim.systems.registry import assign
from sim.systems.simulate import simulated_step_ns
from sim.tuner.caps import cap_curve
from sim.tuner.problem import Problem
from sim.tuner.recommend import compared_with, tune
from sim.units import format_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework.

    ``lines`` set it: with ``{given}`` keywords, or all of them as ``{kwargs}``. ``takes``: keywords of
    DistributedDataParallel that it passes on; None: all of them. ``hooks``: communication hooks that it can
    register; None: all of torch's. ``drops_default``: a cap equal to 25 is not passed on, so that DDP makes
    its small first bucket (A2.1). ``whole_caps``: a cap must be whole MiB. ``always_says``: keywords that
    ``lines`` must have, as the framework's defaults differ.
    """

    title: str
    lines: str
    prefix: str = ""
    takes: frozenset[str] | None = None
    hooks: frozenset[str] | None = None
    whole_caps: bool = False
    drops_default: bool = False
    always_says: tuple[str, ...] = ()
    note: str = ""

    def can_set(self, name: str, value: Any) -> bool:
        """Whether a keyword, or what else a job sets, can be set; caps aside, which it may set otherwise."""
        if name == "comm_hook":
            return self.hooks is None or value in self.hooks
        return name in CAP_KWARGS or name in SETTINGS or self.takes is None or name in self.takes

    def can_cap(self, made: Assignment) -> bool:
        """Whether caps make these buckets, and reach DistributedDataParallel as they are."""
        cap, given = made.ddp_kwargs.get("bucket_cap_mb", 0), made.ddp_kwargs.keys() & {*CAP_KWARGS}
        passes = made.by_keywords and (self.takes is None or self.takes.issuperset(given))
        is_dropped = self.drops_default and cap == 25
        return passes and not is_dropped and not (self.whole_caps and cap % 1)


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
        note="ddp_bucket_cap_mb=25 and none are the same there: 1 MiB first, then 25 MiB. Its own default "
        "searches for unused parameters.",
    ),
    "accelerate": Framework(
        title="Accelerate",
        lines="from accelerate import Accelerator\n"
        "from accelerate.utils import DistributedDataParallelKwargs\n\n"
        "accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs({given})])",
        takes=frozenset({*_COMMON, "gradient_as_bucket_view"}),
        hooks=frozenset({"fp16_compress", "bf16_compress"}),
        drops_default=True,
        note="bucket_cap_mb=25 and none are the same there: 1 MiB first, then 25 MiB.",
    ),
    "lightning": Framework(
        title="Lightning",
        lines="from lightning.pytorch.strategies import DDPStrategy  # Fabric's: lightning.fabric.strategies"
        "\n\nstrategy = DDPStrategy({given})  # Trainer(strategy=strategy)",
    ),
    "ray": Framework(
        title="Ray Train",
        lines="import ray.train.torch\n\n"
        "ddp_model = ray.train.torch.prepare_model(model, parallel_strategy_kwargs={kwargs})",
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
    """The ``lines`` that set a framework, the buckets that it then uses, and their step."""

    assignment: Assignment
    step_ns: int
    lines: str


def nearest_setting(
    workload: Workload,
    hardware: Hardware,
    assignment: Assignment,
    framework: str,
    *,
    setting: Setting | None = None,
) -> NearestSetting:
    """The setting of ``framework`` whose step is shortest, with the lines that set it.

    It is ``setting``, or its round cap, where that is given and the framework can set it; of a job with
    switches that it cannot set, what ``sim.tune`` says without them. Else it is the best cap that it can set,
    DDP's default, or ``assignment`` itself if it can set all its keywords.

    Args:
        workload, hardware: what backward makes ready, and what the machine carries.
        assignment: what is wished for, such as ``sim.tune``'s.
        framework: one of ``FRAMEWORKS``.
        setting: what ``sim.tune`` says to set for this very job.

    Raises:
        AssignmentError: the assignment does not fit ``workload``.
        InputError: a framework that is not known, or a switch that is not legal.
        NotModelledError: another system, or a workload that the framework's switches cannot train.
    """
    Legal(words=tuple(FRAMEWORKS)).take("framework", framework)
    assignment.check_fits(workload)
    if assignment.policy not in DDP_POLICIES:
        raise NotModelledError(
            f"policy: {assignment.policy!r} is no system of DistributedDataParallel, which {framework} sets"
        )
    read_switches(assignment)
    row = FRAMEWORKS[framework]
    asked = assignment.ddp_kwargs | assignment.settings
    lacks = [name for name, value in asked.items() if not row.can_set(name, value)]
    switches = {name: value for name, value in asked.items() if name not in (*CAP_KWARGS, *lacks)}
    job = replace(workload, job=replace(workload.job or AsRun(), switches=switches))  # no more is set
    wished = as_the_job(job, Assignment(bucket_indices=assignment.bucket_indices))
    if lacks and setting is not None:
        found = tune(job, hardware)
        assignment, setting = found.assignment, found.setting
    problem, tried = Problem(job, hardware), list[Assignment]()
    if setting is not None:
        kept = {"default": compared_with(problem)[0], "recommended": assignment}.get(setting.pick)
        cap = None if setting.cap_mb is None else assign(job, bucket_cap_mb=setting.cap_mb)
        tried = [one for one in (kept, cap) if one is not None and row.can_cap(one)][:1]
    if not tried:
        curve = cap_curve(problem)
        by_step = map(curve.cap_mb, np.argsort(curve.steps_ns, kind="stable").tolist())
        caps = (one for one in (assign(job, bucket_cap_mb=cap) for cap in by_step) if row.can_cap(one))
        tried = [assign(job), *islice(caps, 1)] + [assignment] * (not lacks and row.can_cap(assignment))
    best = min(tried, key=(played := partial(simulated_step_ns, job, hardware)))
    step_ns, asked_ns, default_ns = map(played, (best, wished, assign(job)))
    lacking = ", ".join(f"{name}={asked[name]!r}" for name in lacks)
    elsewhere = ", ".join(f"{name}={value!r}" for name, value in best.settings.items())
    told = [
        f"bucketsim: the nearest for {workload.name!r} that {row.title} can set; predicted are",
        f"{format_ms(step_ns)} a step, {format_ms(asked_ns)} with the assignment asked for, and "
        f"{format_ms(default_ns)} with DDP's default.",
        row.note,
        f"Set elsewhere: {elsewhere}." if elsewhere else "",
        f"Needs torch {best.requires['torch']}." if "torch" in best.requires else "",
        f"{row.title} cannot set {lacking}, and these times are without." if lacks else "",
    ]
    # DDP's defaults where the framework's own differ; caps first.
    kwargs: dict[str, Any] = {name: SWITCHES[name].default for name in row.always_says} | best.ddp_kwargs
    kwargs = {name: kwargs[name] for name in sorted(kwargs, key=lambda name: name not in CAP_KWARGS)}
    if "bucket_cap_mb" in kwargs and row.whole_caps:
        kwargs["bucket_cap_mb"] = int(kwargs["bucket_cap_mb"])
    given = ", ".join(f"{row.prefix}{name}={value!r}" for name, value in kwargs.items())
    lines = [*(f"# {line}" for line in told if line), row.lines.format(given=given, kwargs=kwargs)]
    return NearestSetting(assignment=best, step_ns=step_ns, lines="\n".join(lines) + "\n")
