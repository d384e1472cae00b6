"""What each training framework can set of DistributedDataParallel, one row each, and the lines for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sim.nouns.assignment import CAP_KWARGS
from sim.systems.snippets import hook_call, typed
from sim.units import MIB, cap_bytes

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

    def cap_between(
        self, low_bytes: int, high_bytes: int, round_mb: Callable[[int, int], float]
    ) -> float | None:
        """A cap in MiB that it can set, of those from ``low_bytes`` to ``high_bytes``; None: there is none.

        ``round_mb`` finds a round one between two sizes in bytes.
        """
        if self.whole_caps:
            least = max(1, -(-low_bytes // MIB))
            found = next((cap for cap in (least, least + 1) if self.can_cap({"bucket_cap_mb": cap})), least)
            if found * MIB <= high_bytes:
                return found
            return 0 if low_bytes == 0 else None
        cap = round_mb(low_bytes, high_bytes)
        if self.can_cap({"bucket_cap_mb": cap}):
            return cap
        default = cap_bytes(_DDP_DEFAULT_MB)
        if high_bytes > default:
            return round_mb(default + 1, high_bytes)
        if low_bytes < default:
            return round_mb(low_bytes, default - 1)
        return _DDP_DEFAULT_MB + 1e-7  # the same bytes, and not equal to the default


def _arguments(kwargs: Mapping[str, Any], prefix: str = "") -> list[str]:
    return [f"{prefix}{name}={typed(name, value)}" for name, value in kwargs.items()]


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
        *_import_torch(kwargs),
        "from lightning.pytorch.strategies import DDPStrategy  # Fabric's: lightning.fabric.strategies",
        *imported,
        "",
        f"strategy = DDPStrategy({', '.join(given)})  # Trainer(strategy=strategy)",
    ]


def _ray(kwargs: Mapping[str, Any], hook: str | None) -> list[str]:
    lines = [
        *_import_torch(kwargs),
        "import ray.train.torch",
        "",
        f"ddp_model = ray.train.torch.prepare_model(model, parallel_strategy_kwargs={_as_dict(kwargs)})",
    ]
    if hook is not None:
        imported, name = hook_call(hook)
        lines += [imported, f"ddp_model.register_comm_hook(None, {name})"]
    return lines


def _mmengine(kwargs: Mapping[str, Any], hook: str | None) -> list[str]:
    given = ", ".join(["type='MMDistributedDataParallel'", *_arguments(kwargs)])
    return [*_import_torch(kwargs), f"model_wrapper_cfg = dict({given})"]


def _fairseq(kwargs: Mapping[str, Any], hook: str | None) -> list[str]:
    words = ["--ddp-backend c10d", f"--bucket-cap-mb {kwargs['bucket_cap_mb']}"]
    words += [f"--{name.replace('_', '-')}" for name, value in kwargs.items() if value is True]
    if hook is not None:
        words.append("--ddp-comm-hook fp16")
    return [f"fairseq-train {' '.join(words)}  # with your own"]


def _import_torch(kwargs: Mapping[str, Any]) -> list[str]:
    return ["import torch"] if kwargs.get("mixed_precision") else []


def _as_dict(kwargs: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{name!r}: {typed(name, value)}" for name, value in kwargs.items()) + "}"


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
