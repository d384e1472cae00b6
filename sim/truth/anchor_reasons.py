"""Why a factor was chosen, and what a profile said of the link: the sentences of an anchor."""

from sim.nouns.anchored import Factor, InStepCurve
from sim.nouns.hardware import Hardware


def why(factor: Factor, hardware: Hardware, *, asked: bool, slowed: bool) -> str:
    """Why the anchor fixes this factor: it was ``asked`` for, or the workload's times contain interference
    already (``slowed``), or it is the one that is not known otherwise."""
    if asked:
        return f"one number fixes one factor: {factor}, as asked for"
    if slowed:
        return (
            f"one number fixes one factor: {factor}; what collectives do to computation is in the workload's "
            f"times already"
        )
    if factor == "mutual":
        return (
            "one number fixes one factor: computation and communication share one GPU, and who yields is not "
            "known, so that both are slowed alike"
        )
    known = "comm_slowdown" if factor == "compute_slowdown" else "compute_slowdown"
    return f"one number fixes one factor: {factor}; {known} is known, {getattr(hardware, known):.3g}"


def told_of_link(found: InStepCurve) -> str:
    """What the durations seen in the step say of the link, and of how many collectives that is known."""
    sizes = f"{found.least_bytes / 1e6:.3g} to {found.most_bytes / 1e6:.3g} MB"
    if not found.alone:
        return (
            f"all-reduces in the step take {found.ratio:.3g} times as long as alone (median of "
            f"{found.count}, {found.low:.3g} to {found.high:.3g}, {sizes}); none is known to lie wholly "
            f"after backward, so that what computation adds to them is in it"
        )
    return (
        f"all-reduces after backward take {found.ratio:.3g} times as long as alone ({found.alone} of "
        f"{found.count}; all: {found.low:.3g} to {found.high:.3g}, {sizes}), those during backward "
        f"{found.comm_slowdown:.3g} times that; {_fixed_by(found)} for all sizes"
    )


def _fixed_by(found: InStepCurve) -> str:
    return "one all-reduce fixes this" if found.alone == 1 else f"{found.alone} all-reduces fix this"
