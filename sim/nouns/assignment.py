"""How the gradients are cut into buckets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from sim.errors import AssignmentError
from sim.nouns.checks import Count, Legal, Positive, check, no_duplicates
from sim.nouns.workload import Workload

_POLICIES = (
    "ddp per-parameter single explicit per-parameter-sync per-parameter-async after-backward arrival-counted "
    "flat-views last-hook last-hook-safe zero1 zero2 megatron fully_shard"
)
Policy = Annotated[str, Legal(words=tuple(_POLICIES.split()))]

# What DistributedDataParallel does itself: the others are systems of their own.
DDP_POLICIES = ("ddp", "per-parameter", "single", "explicit")
OTHERS = ("zero1", "zero2", "megatron", "fully_shard")  # policies whose own buckets have a best size
CAP_KWARGS = ("bucket_cap_mb", "bucket_cap_mb_list")


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFor:
    """What an assignment was made for: its workload's gradients, by index, and the world size.

    ``world_size`` is that of the hardware it was tuned for; None where no hardware was asked.
    """

    workload: str
    names: tuple[str, ...]
    num_bytes: tuple[Count, ...]
    dtypes: tuple[str, ...]
    world_size: Positive | None = None

    def __post_init__(self) -> None:
        for what, values in (("num_bytes", self.num_bytes), ("dtypes", self.dtypes)):
            if len(values) != len(self.names):
                raise AssignmentError(f"{what}: {len(values)} values for {len(self.names)} names")
        check(self)


def made_for(workload: Workload, world_size: int | None = None) -> MadeFor:
    """The fingerprint of ``workload`` that its assignments carry."""
    rows = ((one.name, one.num_bytes, one.dtype) for one in workload.gradients)
    told = dict(zip(("names", "num_bytes", "dtypes"), zip(*rows, strict=True), strict=True))
    return MadeFor(workload=workload.name, world_size=world_size, **told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Buckets in launch order, by parameter index, and what makes a real system use them.

    ``bucket_bytes`` are parameter bytes, as DDP's logger counts them (A4.4). ``ddp_kwargs`` is what
    to pass to ``DistributedDataParallel``, ``settings`` what is set elsewhere (a communication hook, micro-
    batches a step) or by another system (ZeRO's configuration, by DeepSpeed's names); ``requires`` names the
    torch version and settings that these keywords need (``sim.apply`` needs none of them). ``made_for`` is
    what ``sim.apply`` holds against the model that it is given.
    """

    KIND: ClassVar[str] = "assignment"
    policy: Policy = "explicit"
    bucket_indices: tuple[tuple[Count, ...], ...]
    bucket_bytes: tuple[Count, ...] | None = None
    ddp_kwargs: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    requires: dict[str, Any] = field(default_factory=dict)
    made_for: MadeFor | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        buckets, sizes = self.bucket_indices, self.bucket_bytes
        if not buckets:
            raise AssignmentError("bucket_indices: an empty list is not legal; give at least one bucket")
        if () in buckets:
            raise AssignmentError(f"bucket_indices.{buckets.index(())}: an empty bucket is not legal")
        no_duplicates("bucket_indices", [index for bucket in buckets for index in bucket])
        if sizes is not None and len(sizes) != len(buckets):
            raise AssignmentError(f"bucket_bytes: {len(sizes)} sizes for {len(buckets)} buckets")

    @property
    def by_keywords(self) -> bool:
        """Whether ``ddp_kwargs`` alone make stock DDP use these buckets; otherwise only injection does."""
        if self.policy == "explicit":
            return any(name in self.ddp_kwargs for name in CAP_KWARGS)
        return self.policy in DDP_POLICIES

    def check_fits(self, workload: Workload) -> None:
        """Raise ``AssignmentError`` unless this is a legal assignment for ``workload`` (A8.3)."""
        count, name = len(workload.gradients), workload.name
        assigned = {index for bucket in self.bucket_indices for index in bucket}
        unknown, missing = sorted(assigned - set(range(count))), sorted(set(range(count)) - assigned)
        if unknown:
            raise AssignmentError(
                f"bucket_indices: index {unknown[0]} is not legal; workload {name!r} has gradients 0 to "
                f"{count - 1}"
            )
        if missing:
            raise AssignmentError(
                f"bucket_indices: index {missing[0]} ({workload.gradients[missing[0]].name}) is in no "
                f"bucket; every index must occur once ({len(missing)} missing)"
            )
        for number, bucket in enumerate(self.bucket_indices):
            members = [workload.gradients[index] for index in bucket]
            keys = {gradient.key for gradient in members}
            why = ""
            if len(keys) > 1:
                why = f"mixes {sorted(map(str, keys))}; a bucket holds one dtype and device (A8.3)"
            elif len(members) > 1 and any(gradient.sparse for gradient in members):
                why = "a sparse gradient must be alone in its bucket (A1.2)"
            if why:
                raise AssignmentError(f"bucket_indices.{number}: {why}")
        real = bucket_bytes(workload, self.bucket_indices)
        for number, (given, expected) in enumerate(zip(self.bucket_bytes or real, real, strict=True)):
            if given != expected:
                raise AssignmentError(
                    f"bucket_bytes.{number}: {given} is not legal; these gradients of workload {name!r} have "
                    f"{expected} bytes"
                )


def assigned(
    workload: Workload, policy: str, indices: tuple[tuple[int, ...], ...], settings: Mapping[str, Any]
) -> Assignment:
    """What a system makes of ``workload`` that has ``settings`` of its own and takes no keywords of DDP."""
    return Assignment(
        policy=policy,
        bucket_indices=indices,
        bucket_bytes=bucket_bytes(workload, indices),
        settings=dict(settings),
        made_for=made_for(workload),
    )


def bucket_bytes(workload: Workload, bucket_indices: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Parameter bytes of each bucket."""
    sizes = [gradient.num_bytes for gradient in workload.gradients]
    return tuple(sum(map(sizes.__getitem__, bucket)) for bucket in bucket_indices)
