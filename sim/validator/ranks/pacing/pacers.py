"""Who keeps the recorded schedule: the host by sleeping, or a GPU by timed kernels."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from sim.validator.ranks.pacing.emulated_link import EmulatedLink, link_of
from sim.validator.ranks.pacing.paced_module import PacedModule
from sim.validator.ranks.pacing.replay_lane import Manner
from sim.validator.ranks.pacing.stepping import (
    PLAIN,
    Recorder,
    all_reduce,
    run_step,
    set_baseline,
)

_BASELINE_REPEATS = 5


class Pacer(Protocol):
    """One way to run paced steps on this rank."""

    device: torch.device

    def module(
        self,
        parameters: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        order: Sequence[int],
        due_ns: Sequence[int],
        forward_ns: int,
        buffers: Sequence[torch.Tensor] = (),
    ) -> PacedModule:
        """A module that keeps the schedule in this way; arguments as of ``PacedModule``."""

    def link(self, described: dict[str, Any]) -> EmulatedLink:
        """The emulated link that a job describes."""

    def recorder(self, link: EmulatedLink | None) -> Recorder:
        """A communication hook that reduces, over ``link`` where there is one, and stamps what it sees."""

    def prepare(self, model: Any) -> None:
        """Switch off what would disturb the steps of a new ``model``, if that is a DDP."""

    def settle(
        self, modules: Sequence[PacedModule], plain: PacedModule, optimizer_ns: int, adds: bool = False
    ) -> None:
        """Make ready for steps once every DDP is built; ``plain`` is not under DDP.

        ``adds``: some module adds to gradients that are there already.
        """

    def step(
        self,
        model: Any,
        module: PacedModule,
        optimizer_ns: int,
        recorder: Recorder | None = None,
        manner: Manner = PLAIN,
    ) -> dict[str, Any]:
        """One step from a common start of all ranks, as a lane returns it."""

    def state(self) -> dict[str, Any]:
        """What is known now of how well the schedule is kept; empty where nothing drifts."""


class HostPacer:
    """Backward sleeps on the host, which is then as free as under an accelerator."""

    device = torch.device("cpu")

    def module(
        self,
        parameters: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        order: Sequence[int],
        due_ns: Sequence[int],
        forward_ns: int,
        buffers: Sequence[torch.Tensor] = (),
    ) -> PacedModule:
        """A module that sleeps."""
        return PacedModule(parameters, gradients, order, due_ns, forward_ns, buffers)

    def link(self, described: dict[str, Any]) -> EmulatedLink:
        """A link kept by a thread."""
        return link_of(described, self.device)

    def recorder(self, link: EmulatedLink | None) -> Recorder:
        """Stamps on the host's clock."""
        return Recorder(launch=all_reduce if link is None else link.launch)

    def prepare(self, model: Any) -> None:
        """Nothing disturbs: DDP's logger reads the host's clock."""

    def settle(
        self, modules: Sequence[PacedModule], plain: PacedModule, optimizer_ns: int, adds: bool = False
    ) -> None:
        """Measure what autograd's nodes cost without DDP, and count DDP's hooks from now on."""
        set_baseline(modules, plain, optimizer_ns, repeats=_BASELINE_REPEATS, adds=adds)

    def step(
        self,
        model: Any,
        module: PacedModule,
        optimizer_ns: int,
        recorder: Recorder | None = None,
        manner: Manner = PLAIN,
    ) -> dict[str, Any]:
        """One slept step; it also returns ``hooks``, processor time of each AccumulateGrad."""
        return run_step(model, module, optimizer_ns, recorder, manner=manner)

    def state(self) -> dict[str, Any]:
        """The host's clock does not drift."""
        return {}
