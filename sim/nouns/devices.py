"""Devices and backends by name, as torch writes them, and what of them the ranks of one job have alike."""

# torch's own defaults for a process group that was made without a backend's name
# (``torch.distributed.Backend.default_device_backend_map``)
_BY_DEFAULT = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl", "mps": "gloo"}


def device_type(device: str) -> str:
    """``"cuda"`` of ``"cuda:3"``: the ranks of one host have a device each, of one type."""
    return device.split(":", 1)[0].lower()


def backend_of(said: str, device: str) -> str:
    """The backend that reduces tensors on ``device``, of what torch says of a whole process group.

    ``said`` is one backend ("nccl"), one for each type of device ("cpu:gloo,cuda:nccl"), or "undefined",
    where the group was made without a name and each type has torch's default. What names none for this
    device is returned as it is.
    """
    place, said = device_type(device), said.lower()
    if said == "undefined":
        return _BY_DEFAULT.get(place, said)
    pairs = dict(pair.split(":", 1) for pair in said.split(",") if ":" in pair)
    return pairs.get(place, said)
