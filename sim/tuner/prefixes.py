"""What every partition of one workload has in common: the compute lane and sums along the ready order."""

from sim.engine.ddp import copied_bytes
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import transfer_ns


class Prefixes:
    """Times in ns and bytes along the ready order, on a compute lane that nothing but copies delays.

    ``ready[k]``: the k-th gradient is copied in; ``wire[k]`` and ``copied[k]``: bytes of the first k
    gradients on the wire and in copies; ``compute_end``: backward with all copies in.
    ``launches_block``: launches occupy the compute lane; ``is_slowed``: collectives stretch it.
    """

    __slots__ = ("compute_end", "copied", "is_slowed", "launches_block", "order", "ready", "wire")

    def __init__(self, workload: Workload, hardware: Hardware) -> None:
        included = workload.ready_includes
        into = None if "copy_in" in included else hardware.copy_in_bytes_per_s
        self.order = workload.order()
        self.ready: list[int] = []
        self.wire, self.copied = [0], [0]
        lane = 0
        for index in self.order:
            num_bytes = copied_bytes(workload, index)
            lane += transfer_ns(num_bytes, into)
            self.ready.append((workload.gradients[index].ready_ns or 0) + lane)
            self.wire.append(self.wire[-1] + workload.gradients[index].on_wire)
            self.copied.append(self.copied[-1] + num_bytes)
        self.compute_end = workload.backward_ns + lane
        self.launches_block = hardware.launch_blocks_compute and "launch" not in included
        self.is_slowed = hardware.compute_slowdown != 1 and "interference" not in included
