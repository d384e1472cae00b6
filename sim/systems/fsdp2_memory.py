"""What FSDP2's units hold in memory beside gradients and a rank's own parameters (A10.4)."""

from sim.nouns.memory import Holding
from sim.nouns.timeline import Timeline
from sim.systems.fsdp2_settings import REPLICATED


def hold(timeline: Timeline) -> tuple[Holding, ...]:
    """The buffers of all-gathers in backward, until they can be used, and those that gradients are copied
    into, until they are reduced. Unsharded parameters of units that compute are not counted. An all-reduce
    over replicas needs no buffer, since it works in a rank's own gradients. So do those of ``replicate``: its
    buffer is free as the next unit is reduced."""
    held = [played for played in timeline.collectives if played.collective.after is None]
    ends = [played.usable_ns for played in held]
    if timeline.assignment.policy == REPLICATED:
        ends = [played.launch_ns for played in held[1:]] + ends[-1:]
    return tuple(
        Holding(
            what="gathered" if played.collective.bucket is None else "gradients to send",
            num_bytes=played.collective.num_bytes,
            start_ns=played.launch_ns,
            end_ns=end,
        )
        for played, end in zip(held, ends, strict=True)
    )
