"""What buckets are worth: common models on common machines, a row each. ``python -m sim.examples.table``

Nobody measured most of it, and each cell says what it rests on. Prints Markdown; takes some minutes.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import sim
from sim.nouns.cluster import Cluster, HostKind, Hosts, Step
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.recorder.estimate import estimate
from sim.recorder.models import seeded
from sim.units import format_percent, in_ms

DRAWS = 100
HF, HERE = "models:huggingface", "sim.examples.table"
LLAMA = {"model_type": "llama", "vocab_size": 128256, "num_attention_heads": 32, "num_key_value_heads": 8}
# Each with the batch of one GPU: under autocast to bfloat16, the Llamas in bfloat16 altogether.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ResNet-50, 64 images": (HF, {"model_type": "resnet", "num_labels": 1000, "batch": 64}),
    "ViT-B/16, 64 images": (HF, {"model_type": "vit", "num_labels": 1000, "batch": 64}),
    "BERT-base, 16 x 512": (HF, {"model_type": "bert", "batch": 16, "tokens": 512}),
    "BERT-large, 8 x 512": (
        HF,
        {"model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
        | {"intermediate_size": 4096, "batch": 8, "tokens": 512},
    ),
    "GPT-2 124M, 8 x 1024": (HF, {"model_type": "gpt2", "batch": 8, "tokens": 1024}),
    "GPT-2 774M, 4 x 1024": (
        HF,
        {"model_type": "gpt2", "n_layer": 36, "n_embd": 1280, "n_head": 20, "batch": 4, "tokens": 1024},
    ),
    "Llama 1B, 2 x 2048": (
        HF,
        {**LLAMA, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
        | {"tie_word_embeddings": True, "batch": 2, "tokens": 2048},
    ),
    "Llama 8B, 1 x 2048": (
        HF,
        {**LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        | {"batch": 1, "tokens": 2048},
    ),
    "T5-large, 8 x 512": (
        HF,
        {"model_type": "t5", "d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_heads": 16}
        | {"batch": 8, "tokens": 512},
    ),
    "Whisper-large, 8 x 30 s": (f"{HERE}:whisper", {}),
    "diffusion U-Net, 16 latents of 64 x 64": (f"{HERE}:unet", {}),
    "DLRM's dense layers, 2048": (f"{HERE}:dlrm", {}),
}


def whisper(batch: int = 8) -> tuple[nn.Module, dict[str, Tensor]]:
    """Whisper-large-v3 on half a minute of sound each, and 128 tokens of text."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        num_mel_bins=128,
        d_model=1280,
        encoder_layers=32,
        decoder_layers=32,
        encoder_attention_heads=20,
        decoder_attention_heads=20,
        encoder_ffn_dim=5120,
        decoder_ffn_dim=5120,
        vocab_size=51866,
    )
    with seeded():
        sound, text = torch.randn(batch, 128, 3000), torch.randint(51866, (batch, 128))
        return WhisperForConditionalGeneration(config), {"input_features": sound, "labels": text}


class Residual(nn.Module):
    """Two convolutions beside one of a single pixel."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.skip = nn.Conv2d(into, out, 1)
        norms = [nn.Sequential(nn.GroupNorm(32, width), nn.SiLU()) for width in (into, out)]
        convolutions = [nn.Conv2d(width, out, 3, padding=1) for width in (into, out)]
        self.body = nn.Sequential(norms[0], convolutions[0], norms[1], convolutions[1])

    def forward(self, x: Tensor) -> Tensor:
        """``[B, into, H, W] -> [B, out, H, W]``."""
        found: Tensor = self.skip(x) + self.body(x)
        return found


class UNet(nn.Module):
    """A diffusion model's U-Net with the widths of Stable Diffusion's, of residual blocks alone."""

    def __init__(self, widths: tuple[int, ...] = (320, 640, 1280, 1280)) -> None:
        super().__init__()
        before = (widths[0], *widths[:-1])
        self.first, self.last = nn.Conv2d(4, widths[0], 3, padding=1), nn.Conv2d(widths[0], 4, 3, padding=1)
        self.down = nn.ModuleList(
            nn.Sequential(Residual(into, out), Residual(out, out))
            for into, out in zip(before, widths, strict=True)
        )
        self.up = nn.ModuleList(
            nn.Sequential(Residual(2 * out, out), Residual(out, into))
            for into, out in zip(before, widths, strict=True)
        )

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        """The loss of what noise is told in ``x``."""
        kept, x = [], self.first(x)
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        for block, beside in zip(reversed(self.up), reversed(kept), strict=True):
            x = block(torch.cat([nn.functional.interpolate(x, scale_factor=2), beside], 1))
        return nn.functional.mse_loss(self.last(x), noise)


def unet(batch: int = 16) -> tuple[nn.Module, dict[str, Tensor]]:
    """The U-Net on latents of 512 x 512 pixels."""
    with seeded():
        return UNet(), {"x": torch.randn(batch, 4, 64, 64), "noise": torch.randn(batch, 4, 64, 64)}


class Dlrm(nn.Module):
    """MLPerf's DLRM without its tables, which no DDP reduces: both perceptrons and the interaction."""

    def __init__(self, sparse: int = 26, width: int = 128) -> None:
        super().__init__()
        pairs = (sparse + 1) * sparse // 2
        self.bottom, self.top = (
            nn.Sequential(*(layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())))
            for sizes in ((13, 512, 256, width), (pairs + width, 1024, 1024, 512, 256, 1))
        )

    def forward(self, dense: Tensor, looked_up: Tensor, clicked: Tensor) -> Tensor:
        """The loss of clicks told from ``dense`` figures and rows of the tables."""
        low = self.bottom(dense)
        every = torch.cat([low[:, None], looked_up], 1)
        rows, columns = torch.tril_indices(every.shape[1], every.shape[1], -1)
        crossed = (every @ every.transpose(1, 2))[:, rows, columns]
        told = self.top(torch.cat([low, crossed], 1))[:, 0]
        return nn.functional.binary_cross_entropy_with_logits(told, clicked)


def dlrm(batch: int = 2048) -> tuple[nn.Module, dict[str, Tensor]]:
    """MLPerf's DLRM."""
    with seeded():
        inputs = {"dense": torch.randn(batch, 13), "looked_up": torch.randn(batch, 26, 128)}
        return Dlrm(), inputs | {"clicked": torch.rand(batch)}


def hdr(hosts: int) -> Cluster:
    """Hosts of 8 A100 with four NICs of 200 Gbit/s, one for two GPUs."""
    made = sim.cluster("dgx_a100", hosts=hosts, rails=4)
    return replace(made, kinds=(replace(made.kinds[0], nics=4),))


def mi300x() -> Cluster:
    """Eight GPUs, each joined to all others by a link that carries 48 GB/s of its 64 each way (AMD,
    "Understanding RCCL Bandwidth and xGMI Performance on AMD Instinct MI300X", 2025); RCCL is taken to choose
    as NCCL does."""
    link = Step(kind="nvlink", bytes_per_s=7 * 48e9)
    kind = HostKind(name="mi300x", gpus=8, generation="hopper", between_gpus=(link,), cpu="amd")
    return Cluster(name="MI300X", kinds=(kind,), hosts=(Hosts(kind=kind.name, count=1),))


# kopernik278/nccl-network-benchmark 69fb1efe, docs/experiments/p8-contention.md: 4 A40, NCCL, bytes and us.
A40_US = {1 << 20: 341, 1 << 24: 4742.8, 1 << 27: 37403.3, 330405888: 85400}
# GPU, its GiB, the machine.
MACHINES: dict[str, tuple[str, int, Cluster]] = {
    "2 RTX 4090, PCIe 4": ("rtx-4090", 24, sim.cluster("pcie_box", gpus=2, peer_to_peer=False)),
    "4 A40, PCIe 4": ("a40", 48, sim.cluster("pcie_box", gpus=4, peer_to_peer=False)),
    "8 V100 (DGX-1)": ("v100-sxm2", 32, sim.cluster("dgx_v100")),
    "8 A100": ("a100-80gb-sxm", 80, sim.cluster("dgx_a100")),
    "8 H100": ("h100-sxm", 80, sim.cluster("dgx_h100")),
    "8 MI300X": ("mi300x", 192, mi300x()),
    "2 x 8 A100, 4 x HDR": ("a100-80gb-sxm", 80, hdr(2)),
    "16 x 8 A100, 4 x HDR": ("a100-80gb-sxm", 80, hdr(16)),
    "16 x 8 H100, 8 x NDR": ("h100-sxm", 80, sim.cluster("dgx_h100", hosts=16)),
    "4 x 8 A100, EFA (p4de)": ("a100-80gb-sxm", 80, sim.cluster("p4de", hosts=4)),
    "4 x 8 A100, 100 GbE": (
        "a100-80gb-sxm",
        80,
        sim.cluster("hgx_ethernet", hosts=4, gbit_per_s=100, generation="ampere"),
    ),
    "4 x 4 A40, 25 GbE": ("a40", 48, sim.cluster("pcie_hosts", hosts=4, gpus=4, gbit_per_s=25, pcie_gen=4)),
}


def hardware_of(name: str) -> tuple[Hardware, str]:
    """The machine, and what its link rests on: a curve that was measured (M), or data sheets (D)."""
    cluster = MACHINES[name][2]
    computed = sim.cluster_hardware(cluster)
    if name != "4 A40, PCIe 4":
        return computed, "D"
    points = tuple(CurvePoint(num_bytes=size, duration_ns=round(us * 1000)) for size, us in A40_US.items())
    given = replace(computed, all_reduce=points, provenance={}, spread={**computed.spread, "all_reduce": {}})
    return sim.extrapolate_hardware([(cluster, given)], cluster), "M"


def cells(workload: Workload, machine: str) -> tuple[str, str, str, str]:
    """DDP's default, the best round cap with gain and interval, what holds the step up, what it rests on."""
    _, gib, _ = MACHINES[machine]
    needed = 5 * sum(one.num_bytes for one in workload.gradients) / 2**30
    if needed > gib:  # parameters, gradients, buckets and Adam's two moments, before any activation
        return f"does not fit: {needed:.0f} of {gib} GiB", "", "", "E"
    hardware, link = hardware_of(machine)
    default = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload), "analytic"))
    row = sim.round_cap(sim.sweep(workload, hardware))
    cap = 25.0 if row is None or row.bucket_cap_mb is None else row.bucket_cap_mb
    gain = sim.gain(workload, hardware, sim.assign(workload, bucket_cap_mb=cap), draws=DRAWS)
    low_ns, high_ns = gain.low_ns or 0, gain.high_ns or 0
    low, at, high = (
        format_percent(ns / default.step_ns, sign=True) for ns in (low_ns, gain.gain_ns, high_ns)
    )
    worth = f"cap {cap:g}: {at}, {low} to {high}"
    if not gain.gain_ns and not high_ns:
        worth = "nothing (the default's buckets are the best)"
    elif gain.significant is False or low_ns <= 0:
        worth = f"nothing sure ({worth})"
    else:
        worth = f"**{worth}**"
    return f"{in_ms(default.step_ns)} ms", worth, default.verdict_code, f"E{link}"


def rows_of(model: str) -> list[str]:
    """A row a machine."""
    factory, arguments = MODELS[model]
    half = {"dtype": "bfloat16"} if model.startswith("Llama") else {"autocast": "bfloat16"}
    by_gpu: dict[str, Workload] = {}
    rows = []
    for machine, (gpu, _, _) in MACHINES.items():
        if gpu not in by_gpu:
            cast = {"autocast": "float16"} if gpu == "v100-sxm2" and "autocast" in half else half
            by_gpu[gpu] = estimate(factory, arguments=arguments, gpu=gpu, **cast)  # type: ignore[arg-type]
        rows.append(f"| {' | '.join((model, machine, *cells(by_gpu[gpu], machine)))} |")
    return rows


def main() -> None:
    """Write the table, as models are done."""
    head = (
        "| model, batch a GPU | machine | DDP's default | best round cap: its gain | held up by | rests on |"
    )
    sys.stdout.write(f"{head}\n{'|---' * 6}|\n")
    with ProcessPoolExecutor() as pool:
        for rows in pool.map(rows_of, MODELS):
            sys.stdout.write("\n".join(rows) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
