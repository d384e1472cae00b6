"""What some candidates need beyond torch, asked for before anything starts and again on each rank."""

from importlib.util import find_spec

from sim.errors import MachineError


def check_megatron() -> None:
    """Raise ``MachineError`` unless Megatron-Core is installed; nothing of it is imported."""
    if find_spec("megatron") is None or find_spec("megatron.core") is None:
        raise MachineError(
            "Megatron-Core is not installed, and megatron is replayed with it; run "
            "pip install --no-deps megatron-core==0.16.1"
        )


def check_deepspeed() -> None:
    """Raise ``MachineError`` unless DeepSpeed is installed; nothing of it is imported."""
    if find_spec("deepspeed") is None:
        raise MachineError(
            "deepspeed is not installed, and zero1 and zero2 are replayed with it; run "
            "DS_BUILD_OPS=0 pip install 'bucketsim[deepspeed]'"
        )
