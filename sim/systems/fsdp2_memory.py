"""What FSDP2's units hold in memory beside gradients and a rank's own parameters (A10.4)."""

from sim.nouns.memory import Holding
from sim.nouns.timeline import Timeline


def hold(timeline: Timeline) -> tuple[Holding, ...]:
    """What is gathered in backward until it can be used, and what gradients are copied into until they are
    reduced. Parameters that are unsharded, of units under way, are not counted; an all-reduce of replicas is
    made in a rank's own gradients."""
    return tuple(
        Holding(
            what="gathered" if played.collective.bucket is None else "gradients to send",
            num_bytes=played.collective.num_bytes,
            start_ns=played.launch_ns,
            end_ns=played.usable_ns,
        )
        for played in timeline.collectives
        if played.collective.after is None
    )
