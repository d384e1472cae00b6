"""The model and the machine of the examples by hand in RULES A9 and A10."""

from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from tests.handmade import handmade

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
    return handmade(
        [40, 30, 20, 10],
        [400, 120, 200, 80],
        name="four",
        names=[f"{module}.weight" for module in modules],
        forward_ns=40,
        backward_ns=50,
        optimizer_ns=1000,
    )
