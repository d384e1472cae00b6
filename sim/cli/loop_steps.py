"""Whether the loop can close on a machine: record, calibrate, tune, validate."""

from sim.nouns.diagnosis import Diagnosis, LoopStep, TorchFacts

RECORD = "bucketsim record MODULE:FACTORY -o workload.json"
CALIBRATE = "bucketsim calibrate --ranks 2 -o hardware.json"
# of nccl-tests, one rank a GPU, by mpirun, srun or a build of its own: what `calibrate` over gloo is not
ALL_REDUCE_PERF = "all_reduce_perf -b 8 -e 1G -f 2 > link.txt"
_NCCL_LINK = f"nccl-tests: {ALL_REDUCE_PERF}; then: bucketsim import auto link.txt -o ."
TUNE = "bucketsim tune workload.json --hardware hardware.json -o assignment.json"
REPLAY = "bucketsim validate workload.json --hardware hardware.json --ranks 2 -o measured"
REPLAY_IN_BOX = "bucketsim validate workload.json --hardware hardware.json --box 2 --rate 4gbit -o measured"
RECORD_ON_GPU = "bucketsim record MODULE:FACTORY --device cuda -o workload.json"
_ON_GPUS = (
    "bucketsim validate --ab --model MODULE:FACTORY --device cuda --ranks {gpus} --assignment assignment.json"
)
_ON_ONE_GPU = (
    "bucketsim validate workload.json --hardware hardware.json --link emulated --device cuda -o measured"
)

INSTALL_TORCH = "pip install 'torch>=2.9,<2.16'"
REINSTALL_TORCH = "pip install --force-reinstall torch"
INSTALL_IPROUTE2 = "apt-get install iproute2"
OLDEST_TORCH = (2, 9)

_TUNING = ("numpy", "simpy", "networkx")
_BY_CPU = ("record", "calibrate", "tune", "validate_loopback")
_LATE_NS = 1_000_000


def loop_steps(machine: Diagnosis) -> tuple[LoopStep, ...]:
    """Each step of the loop in order, with what makes it possible or what stands in its way."""
    return (
        _record(machine),
        _calibrate(machine),
        _tune(machine),
        _step("validate_loopback", _replay_obstacle(machine), REPLAY),
        _in_box(machine),
        _on_gpus(machine),
        _on_one_gpu(machine),
    )


def loop_obstacle(steps: tuple[LoopStep, ...]) -> str | None:
    """Why the loop cannot close on the CPU: its first impossible step in a sentence; None where it can."""
    for step in steps:
        if step.name in _BY_CPU and not step.possible:
            return f"{step.name}: {step.reason}; {step.run}"
    return None


def cautions(machine: Diagnosis) -> list[str]:
    """What makes a replay here scatter, in sentences; empty on a quiet machine with cores enough."""
    said = []
    if machine.threads < 2:
        said.append("1 thread for 2 ranks: they wait for each other as much as for the wire")
    if machine.load is not None and machine.load > machine.threads:
        said.append(f"load {machine.load:.1f} on {machine.threads} threads: measured steps will scatter")
    if machine.torch is not None and machine.torch.sleep_late_p90_ns > _LATE_NS:
        late_ms = machine.torch.sleep_late_p90_ns / 1e6
        said.append(f"one sleep in ten ends more than {late_ms:.1f} ms late: a paced backward will too")
    return said


def _torch_obstacle(machine: Diagnosis) -> tuple[str, str] | None:
    """Why torch is of no use here, and what to run."""
    if machine.torch is None:
        installed = machine.versions["torch"] is not None
        return machine.torch_obstacle or "no torch", REINSTALL_TORCH if installed else INSTALL_TORCH
    if _release(machine.torch) < OLDEST_TORCH:
        return f"torch {machine.torch.version} is too old", INSTALL_TORCH
    return None


def _release(torch: TorchFacts) -> tuple[int, ...]:
    return tuple(int(part) for part in torch.version.split(".")[:2])


def _gloo_obstacle(machine: Diagnosis) -> tuple[str, str] | None:
    """Why no ranks can meet over gloo here, and what to run."""
    if machine.platform != "linux":
        return f"real ranks need Linux, not {machine.platform}", "run on Linux"
    obstacle = _torch_obstacle(machine)
    if obstacle is not None or machine.torch is None:
        return obstacle
    if not machine.torch.distributed:
        return f"torch {machine.torch.version} is built without torch.distributed", REINSTALL_TORCH
    if not machine.torch.gloo:
        return f"torch {machine.torch.version} is built without gloo", REINSTALL_TORCH
    return None


def _replay_obstacle(machine: Diagnosis) -> tuple[str, str] | None:
    """Why no assignments can be replayed here, some of which no keyword of DDP reaches, and what to run."""
    obstacle = _gloo_obstacle(machine)
    if obstacle is None and machine.torch is not None and machine.torch.missing_for_injection:
        lacking = ", ".join(machine.torch.missing_for_injection)
        return f"torch {machine.torch.version} lacks {lacking} for free bucket_indices", INSTALL_TORCH
    return obstacle


def _calibrate(machine: Diagnosis) -> LoopStep:
    """Several GPUs train over NCCL, which `bucketsim calibrate` does not measure."""
    gpus = [] if machine.torch is None else machine.torch.gpus
    is_nccl = len(gpus) > 1 and machine.torch is not None and machine.torch.nccl
    return _step("calibrate", _gloo_obstacle(machine), _NCCL_LINK if is_nccl else CALIBRATE)


def _step(name: str, obstacle: tuple[str, str] | None, run: str) -> LoopStep:
    reason, instead = obstacle or (None, run)
    return LoopStep(name=name, reason=reason, run=instead)


def _record(machine: Diagnosis) -> LoopStep:
    has_gpu = machine.torch is not None and bool(machine.torch.gpus)
    return _step("record", _torch_obstacle(machine), RECORD_ON_GPU if has_gpu else RECORD)


def _tune(machine: Diagnosis) -> LoopStep:
    missing = [package for package in _TUNING if machine.versions.get(package) is None]
    words = " ".join(missing)
    return _step("tune", (f"{words} missing", f"pip install {words}") if missing else None, TUNE)


def _in_box(machine: Diagnosis) -> LoopStep:
    obstacle = _replay_obstacle(machine)
    if obstacle is None and machine.box_obstacle is not None:
        if not machine.iproute2:
            remedy = INSTALL_IPROUTE2
        elif not machine.root:
            remedy = "run as root"
        else:
            remedy = "start the container with --privileged"
        obstacle = machine.box_obstacle, f"{remedy}, or: {REPLAY}"
    return _step("validate_box", obstacle, REPLAY_IN_BOX)


def _on_gpus(machine: Diagnosis) -> LoopStep:
    obstacle = _torch_obstacle(machine) or _gpu_obstacle(machine)
    gpus = 0 if machine.torch is None else len(machine.torch.gpus)
    if obstacle is None and machine.torch is not None:
        if not (machine.torch.distributed and machine.torch.nccl):
            obstacle = f"torch {machine.torch.version} is built without NCCL", REINSTALL_TORCH
        elif gpus == 1:
            obstacle = "1 GPU; several ranks on one GPU: gloo only, not NCCL", f"instead: {REPLAY}"
    return _step("validate_nccl", obstacle, _ON_GPUS.format(gpus=gpus))


def _on_one_gpu(machine: Diagnosis) -> LoopStep:
    """One rank whose wire is a curve on side streams: everything but the wire is real."""
    obstacle = _replay_obstacle(machine) or _gpu_obstacle(machine)
    return _step("validate_one_gpu", obstacle, _ON_ONE_GPU)


def _gpu_obstacle(machine: Diagnosis) -> tuple[str, str] | None:
    """Why torch computes on no GPU here, and what to run."""
    if machine.torch is None or machine.torch.gpus:
        return None
    if not machine.nvidia_driver:
        return "no GPU", f"instead: {REPLAY}"
    if machine.torch.cuda is None:
        return f"torch {machine.torch.version} is built without CUDA", REINSTALL_TORCH
    return "torch sees no GPU though nvidia-smi is here", "look at nvidia-smi and CUDA_VISIBLE_DEVICES"
