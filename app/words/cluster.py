"""Words of the Cluster page: names, help, captions, sentences made of figures."""

from app.figures.curve import CurveRow
from sim.nouns.hardware import Hardware
from sim.nouns.scaling_row import ScalingRow
from sim.nouns.step_distribution import PairedRow, StepDistribution
from sim.nouns.workload import Workload
from sim.units import format_ms, format_number, format_percent, format_size, format_time

MACHINE_WORDS: dict[str, str] = {
    "dgx_h100": "DGX H100",
    "dgx_a100": "DGX A100",
    "dgx_v100": "DGX-1 with V100",
    "p5": "AWS p5",
    "p4de": "AWS p4de (and p4d)",
    "gh200_slingshot": "4 x GH200 on Slingshot",
    "nvl72": "GB200 NVL72",
    "pcie_box": "one host of PCIe GPUs",
    "pcie_hosts": "hosts of PCIe GPUs on Ethernet",
    "hgx_ethernet": "8 GPUs on NVSwitches, hosts on Ethernet",
    "upload": "upload",
}
HOST_STOPS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CURVE_CAPTION = (
    "Computed by NCCL's own cost model from data sheets: nothing is measured. Shaded: the range in which a "
    "measurement may be expected. Bus bandwidth is nccl-tests': 2 (n - 1) / n times size over time."
)
SCALING_CAPTION = (
    "Each GPU keeps its batch. Efficiency: samples a second and GPU over those of one GPU alone. Best "
    "buckets: the best found that are contiguous in ready order; hover for whether it is proved. Exposed: "
    "copies and launches too. Shaded: what the range of the all-reduce curve allows, and the caps around the "
    "best that are within 0.1 % of it. A ring around a cap: hover for why it changes."
)
IN_TUNE = "Open this workload on this machine in Tune"
NOT_IN_TUNE = (
    "Tune has no knob for Computing ×. Where that stands at 1, the workload can be opened on this machine in "
    "Tune, where Backward × makes backward alone faster."
)
RANKS_CAPTION = (
    "A collective starts when its last rank has come, so a step follows the slowest. Solid: the mean. "
    "Dashed: the step if all ranks were alike. The same draws for each assignment."
)

HELP: dict[str, str] = {
    "machine": "A ready-made cluster, from data sheets, or one of your own as JSON (`kind: cluster`).",
    "up_cluster": "What `bucketsim cluster PRESET --save-cluster C.json` writes; change it by hand.",
    "hosts_per_leaf": "Hosts that share the leaf switches; traffic to others goes over the spines.",
    "oversubscription": "What a leaf's hosts can send, over what it can pass up: 1 is full bisection.",
    "peer_to_peer": "Off: data between GPUs without NVLink goes through host memory.",
    "scaled": "What each GPU computes and sends in a step; it stays the same at every size.",
    "computing": "Multiplies forward, loss, backward and optimizer: 0.1 is a GPU ten times as fast as the "
    "device that the workload was recorded on.",
    "most_hosts": "Powers of two up to so many hosts.",
    "jitter": "Sigma of a lognormal factor of mean 1 on all that a rank computes, drawn anew in each step.",
    "spread": "Sigma of such a factor that each rank draws once and keeps: no two GPUs are equally fast.",
    "slow": "Rank 0 takes so many times as long for all that it computes.",
    "computed": "By NCCL's cost model over the links of this machine; nobody measured it.",
    "cluster_json": "The machine, to be changed by hand and uploaded, or given to `bucketsim cluster`",
    "hardware_json": "Its collectives, for the Tune page and every command that takes a hardware",
}


def is_computed(hardware: Hardware) -> bool:
    """Whether a machine was computed from published figures, so that nobody measured it."""
    return "methods" in hardware.provenance  # by which NCCL sends each size


def device_sentence(workload: Workload, factor: float | None) -> str | None:
    """A warning where GPUs are asked for, and the workload was timed on a CPU; None where it was not.

    ``factor`` is what the page's knob makes of its computing; None: the page has no such knob.
    """
    if workload.provenance.get("device") != "cpu":
        return None
    step = workload.forward_ns + workload.loss_ns + workload.backward_ns + workload.optimizer_ns
    how = "GPUs compute faster, so that less communication hides. "
    if factor is not None and factor != 1.0:
        how = f"Here it takes {format_number(factor, 6)} of that. "
    elif factor is not None:
        how += "Set Computing × to what yours are, or "
    record = "record" if how.endswith("or ") else "Record"
    return (
        f"This workload was recorded on a CPU, where a step computes for {format_ms(step)}, and not on these "
        f"GPUs. {how}{record} the workload on one of them."
    )


def range_words(row: CurveRow | None) -> str:
    """What a measurement of one size may come to; nothing where no range is stated."""
    if row is None or row.low_ns == row.high_ns:
        return ""
    low, high = format_time(row.low_ns), format_time(row.high_ns)
    return f"A measurement of {format_size(row.num_bytes)} may be expected from {low} to {high}."


def scaling_sentence(workload: str, row: ScalingRow, *, is_as_slow: bool = False) -> str:
    """What one machine comes to, and what to set there: DDP's default, where no cap is better that shows.

    ``is_as_slow``: its GPUs are taken to compute no faster than the CPU of the recording.
    """
    behind = row.default_step_ns - row.cap_step_ns
    where = f"{workload} on {row.world_size:,} GPUs{' no faster than that CPU' if is_as_slow else ''}"
    if row.default_is_alike or behind <= 0:
        saved = f"saves {format_ms(behind)} a step, less than 0.1 %" if behind > 0 else "saves nothing"
        return (
            f"{where}: {format_percent(row.default_efficiency)} of what one GPU alone does, "
            f"with DDP's default; {format_ms(row.default_exposed_comm_ns)} of communication is exposed. "
            f"Keep it: the best bucket_cap_mb, {format_number(row.bucket_cap_mb, 4)}, {saved}."
        )
    unsure = ""
    if not row.cap_is_sure:
        low, high = sorted((row.best_cap_low_mb, row.best_cap_high_mb))
        unsure = (
            f" Not certain: at the ends of the range of the all-reduce curve the best caps are "
            f"{format_number(low, 4)} and "
            f"{format_number(high, 4)}."
        )
    return (
        f"{where}: {format_percent(row.cap_efficiency)} of what one GPU alone does, with "
        f"the best bucket_cap_mb, {format_number(row.bucket_cap_mb, 4)}; "
        f"{format_ms(row.cap_exposed_comm_ns)} of "
        f"communication is exposed. DDP's default is {format_ms(behind)} slower.{unsure}"
    )


def ranks_sentence(default: StepDistribution, best: PairedRow) -> str:
    """What differing ranks cost under DDP's default, and which assignment is the best of them."""
    cost = (
        f"With {default.ranks}, {default.world_size:,} ranks take {format_ms(default.mean_step_ns)} a step "
        f"in the mean, {format_ms(default.slowest_cost_ns)} more than if all were alike, under DDP's default."
    )
    if best.distribution is default or best.gain_ns <= 0:
        return f"{cost} None of the other assignments does better."
    how = ""
    if best.gain_low_ns is not None and best.gain_high_ns is not None:
        how = f" (95 % interval {format_ms(best.gain_low_ns)} to {format_ms(best.gain_high_ns)})"
    return f"{cost} {best.name.capitalize()}: {format_ms(best.gain_ns)} less{how}."
