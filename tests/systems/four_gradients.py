"""The model and the machine of the examples by hand in RULES A9 and A10."""

from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Gradient, Workload

FLAT = (CurvePoint(num_bytes=0, duration_ns=25),)
HARDWARE = Hardware(
    name="h",
    world_size=2,
    all_reduce=FLAT,
    reduce_scatter=FLAT,
    all_gather=FLAT,
    copy_in_bytes_per_s=4e10,
    copy_out_bytes_per_s=4e10,
    accumulate_bytes_per_s=4e10,
)


def four_gradients(*modules: str) -> Workload:
    """A workload of 100, 30, 50 and 20 elements, in ``modules``; the last is ready first."""
    return Workload(
        name="four",
        gradients=tuple(
            Gradient(
                index=index,
                name=f"{module}.weight",
                shape=(size,),
                dtype="float32",
                num_bytes=4 * size,
                ready_ns=10 * (4 - index),
            )
            for index, (module, size) in enumerate(zip(modules, (100, 30, 50, 20), strict=True))
        ),
        forward_ns=40,
        backward_ns=50,
        optimizer_ns=1000,
    )
