"""What a picture of a cluster says in words: its title, and what a part and a link are."""

from textwrap import wrap

from app.figures.machine import Box, Machine, Part, PartKind, Wire
from app.figures.style import safe
from sim.nouns.cluster import HostTemplate, LinkKind
from sim.units import format_number, format_percent

_LINE = 62  # letters of a title's small print

KIND_WORDS: dict[PartKind, str] = {
    "gpu": "GPUs",
    "nic": "NICs",
    "nvswitch": "NVSwitch",
    "pcie_switch": "PCIe switches",
    "cpu": "sockets",
    "memory": "memory",
    "switch": "switches",
    "hosts": "hosts",
}
ONE_WORDS: dict[PartKind, str] = {
    "gpu": "GPU",
    "nic": "NIC",
    "nvswitch": "NVSwitch",
    "pcie_switch": "PCIe switch",
    "cpu": "socket",
    "memory": "host memory",
    "switch": "switch",
    "hosts": "hosts",
}
LINK_WORDS: dict[LinkKind, str] = {
    "nvlink": "NVLink",
    "pcie": "PCIe",
    "c2c": "chip to chip",
    "qpi": "socket to socket",
    "memory": "memory",
    "net": "network",
}


def rate_words(low: float, high: float) -> str:
    """Bandwidths in GB/s, powers of ten."""
    words = _rate(low)
    return f"{words} GB/s" if words == _rate(high) else f"{words} to {_rate(high)} GB/s"


def _number(value: float) -> str:
    """Three digits, and never a power of ten for what is large."""
    return f"{value:,.0f}" if value >= 100 else format_number(value)


def _rate(bytes_per_s: float) -> str:
    return format_number(bytes_per_s / 1e9, 4) if bytes_per_s < 1e12 else f"{bytes_per_s / 1e9:,.0f}"


def title_words(machine: Machine, name: str | None = None) -> tuple[str, str]:
    """The name, or another for it, and what the machine is, in lines that a narrow window holds."""
    cluster = machine.cluster
    by_template: dict[str, int] = {}
    for group in cluster.hosts:
        by_template[group.template] = by_template.get(group.template, 0) + group.count
    kinds = {template.name: template for template in cluster.templates}
    hosts = " and ".join(
        f"{count:,} host{'s' if count > 1 else ''} of {_gpus(kinds[kind])}"
        for kind, count in list(by_template.items())[:3]
    )
    if len(by_template) > 3:
        hosts += f" and {len(by_template) - 3} kinds more"
    gpus = sum(len(kinds[kind].of_kind("gpu")) * count for kind, count in by_template.items())
    words = [hosts, f"{gpus:,} GPUs"]
    if cluster.placement is not None:
        words.append(f"{len(cluster.placement):,} ranks")
    if cluster.network is not None:
        network = cluster.network
        words.append(f"ports of {rate_words(network.bytes_per_s, network.bytes_per_s)}")
        rails = min(network.rails, max(len(kinds[kind].of_kind("nic")) for kind in by_template))
        if rails > 1:
            words.append(f"{rails} rails")
        if cluster.host_count > network.hosts_per_leaf or rails > 1:
            words.append(f"uplinks {format_number(network.oversubscription)} : 1")
    return safe(name or cluster.name), "<br>".join(wrap(", ".join(words), _LINE))


def _gpus(template: HostTemplate) -> str:
    count = len(template.of_kind("gpu"))
    return f"{count} {template.generation.title()} GPU{'s' if count > 1 else ''}"


def box_words(box: Box, is_only_kind: bool, letters: float) -> str:
    """Below a host: its number, and its template where there are others; of several: how many are alike."""
    name = safe(box.segments[0].template.name, 24)
    if not box.is_detailed:
        kinds = {one.template.name for one in box.segments}
        alike = f"{box.count:,} like {name}" if len(kinds) == 1 else f"{box.count:,} of {len(kinds)} kinds"
        return f"<b>{box.name.replace(' … ', '<br>… ')}</b><br>{alike}"
    number = box.name if len(box.name) <= letters else box.name.removeprefix("host")
    return number if is_only_kind else f"{number}<br>{name}"


def part_text(part: Part) -> str:
    """The hover of a part."""
    where = "" if part.host is None else f" of host{part.host}"
    lines = [f"<b>{safe(part.label)}</b>{where}", ONE_WORDS[part.kind]]
    if part.count > 1:
        lines[1] = f"{part.count:,} {KIND_WORDS[part.kind]}"
    if part.kind == "gpu" and part.count == 1:
        lines.append("no rank runs on it" if part.rank is None else f"rank {part.rank:,}")
    return "<br>".join(lines)


def wire_text(wire: Wire, names: tuple[str, str], busy: float | None) -> str:
    """The hover of a link: what it carries each way, how it is made up, what a collective puts on it."""
    lines = [
        f"<b>{safe(names[0])} – {safe(names[1])}</b>",
        f"{LINK_WORDS[wire.kind]}, {rate_words(wire.low_bytes_per_s, wire.high_bytes_per_s)} each way",
    ]
    if wire.count > 1:
        lines.append(
            f"{wire.count} side by side, {rate_words(*[wire.high_bytes_per_s / wire.count] * 2)} each"
        )
    if wire.alike > 1:
        lines.append(f"{wire.alike:,} of these")
    if wire.latency_ns:
        lines.append(f"latency {_number(wire.latency_ns / 1000)} us one way")
    if wire.share is not None and wire.s_per_byte is not None:
        if not wire.share:
            lines.append("the all-reduce does not use it")
        else:
            busy_us = wire.s_per_byte * (1 << 20) * 1e6
            lines.append(f"{format_number(wire.share)} bytes cross it for each byte of the message:")
            lines.append(
                f"busy for {_number(busy_us)} us a MiB, {format_percent(busy or 0, 0)} of the busiest "
                f"link's time"
            )
    return "<br>".join(lines)
