"""``sim.autotune``: what the user holds, and what it does at each step boundary, from top to bottom."""

import logging
import os
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from secrets import randbits
from typing import Any, Literal, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.prediction import LinkProbe, measure_link, predict
from sim.autotuner.progress import AUTOTUNE, Autotuned, AutotuneProgress, Outcome, TrialLook
from sim.autotuner.switch import (
    Boundary,
    BucketSwitch,
    Room,
    check_even,
    check_switchable,
    recorded,
    unwrapped,
)
from sim.autotuner.unison import FailedSomewhereError, Unison, backend_of
from sim.errors import InputError, NotModelledError, SimError
from sim.formats.documents import load_assignment, save, to_text
from sim.formats.files import scratch_directory, write_atomically
from sim.importer.recorded.recorded_workload import warmup_by
from sim.nouns.assignment import Assignment, MadeFor
from sim.nouns.checks import at_least
from sim.nouns.recommendation import Recommendation
from sim.recorder.clocks import clock_for
from sim.recorder.live_recording import trained_parameters
from sim.recorder.training_step import dtype_name, surroundings
from sim.truth.turns import AbTest, Turns, judge_turns
from sim.units import format_percent

SETTLING_STEPS = 3  # after which DDP has rebuilt its buckets (A2.6)
PREDICTION_STEPS = 5  # that ranks train on while the first one predicts
TRIAL_WARMUP_STEPS = 3  # with the candidate; with static_graph the first one reduces nothing until its end
FEWEST_STEPS = 12  # of a trial: six pairs
_MOST_POSTPONED = 100

_log = logging.getLogger(__name__)
Steps = Generator[None, None, Any]
Found = TypeVar("Found")


class _Ended(Exception):
    """The tuning has come to an end, the same on all ranks."""

    def __init__(self, outcome: Outcome, why: str, **found: Any) -> None:
        super().__init__(why)
        self.outcome, self.why, self.found = outcome, why, found


def autotune(
    ddp: torch.nn.Module,
    record_steps: int = 10,
    verify_steps: int = 20,
    max_verify_steps: int = 200,
    memory: Literal["auto"] | None = "auto",
    cache: str | os.PathLike[str] | None = None,
    live: str | os.PathLike[str] | None = None,
) -> "Autotune":
    """Tune the buckets of ``ddp`` while it trains, and keep what was shown to be faster.

    On every rank, before the loop: ``tuner = sim.autotune(ddp)``; in it, after each ``optimizer.step()``:
    ``tuner.step()``. It records some steps, measures the link for about two seconds, predicts the best
    buckets, and runs them in turns with those in use. Without a gain shown, DDP's own Reducer is back; what
    is not safe to switch is refused, with the reason in ``tuner.result``. Gradients are at every step those
    of an all-reduce of the buckets in use: on 2 ranks to the bit those of plain DDP.

    Args:
        ddp: a DistributedDataParallel, or what ``torch.compile``, Accelerate or Fabric made of one.
        record_steps: steps that are recorded, after warm-up.
        verify_steps: steps of the trial before it is first judged.
        max_verify_steps: steps after which it ends without a gain shown.
        memory: ``"auto"`` refuses where one more copy of the gradients does not fit on a GPU; None does not
            look.
        cache: a file for what is kept: the next run of the same model, on as many ranks of this machine,
            begins with a trial of it, half as long.
        live: a directory for a file that says what it is doing, which ``bucketsim dash --watch`` shows.

    Raises:
        InputError: an argument that is not legal.
    """
    at_least("record_steps", record_steps, 3)
    at_least("verify_steps", verify_steps, FEWEST_STEPS)
    at_least("max_verify_steps", max_verify_steps, verify_steps)
    if memory not in ("auto", None):
        raise InputError(f"memory: {memory!r} is not legal; give 'auto' or None")
    return Autotune(
        ddp,
        steps=(record_steps, verify_steps, max_verify_steps),
        looks_at_memory=memory is not None,
        cache=None if cache is None else Path(cache),
        live=None if live is None else Path(live),
    )


class Autotune:
    """A tuning under way; ``result`` is None until it has ended, and ``str`` says in any case where it is.

    It ends by itself, or by ``stop``; then nothing of it is left on the model.
    """

    def __init__(
        self,
        ddp: torch.nn.Module,
        *,
        steps: tuple[int, int, int],
        looks_at_memory: bool,
        cache: Path | None,
        live: Path | None,
    ) -> None:
        self.result: Autotuned | None = None
        self._record_steps, self._verify_steps, self._most_steps = steps
        self._looks_at_memory, self._cache, self._live = looks_at_memory, cache, live
        self._steps, self._begun = 0, time.perf_counter()
        self._work: Steps | None = None
        self._told: AutotuneProgress | None = None
        try:
            self._ddp = inner = unwrapped(ddp)
            name, ranks = type(inner.module).__name__, inner.process_group
            if ranks.rank() != 0:
                self._live = None
            self._told = AutotuneProgress(
                name=name, world_size=ranks.size(), provenance={"source": "sim.autotune"}
            )
            self._tell()
            check_switchable(inner)
        except NotModelledError as error:
            self._end("refused", str(error))
            return
        self._boundary = Boundary(inner, owner=self)
        self._ranks, self._room = Unison(inner), Room(inner)
        self._work = self._run()

    def __str__(self) -> str:
        if self.result is not None or self._told is None:
            return str(self.result)
        return str(replace(self._told, steps=self._steps))

    def step(self) -> None:
        """To be called after each ``optimizer.step()``, on every rank. Does nothing after the tuning's end.

        What fails on one rank ends the tuning on all ranks, in this call.

        Raises:
            RuntimeError: a collective failed, as it would have in the next backward. Where NCCL's watchdog
                finds that first, it ends the process, and nothing is raised.
        """
        if self._work is None or not self._boundary.take_step():
            return
        if not self._steps:
            self._begun = time.perf_counter()
        self._steps += 1
        try:
            check_even(self._ddp)
            if self._boundary.is_captured:
                raise NotModelledError("CUDA graph: a captured step is replayed without DDP's hooks and ours")
        except NotModelledError as error:
            self._work.close()
            self._end("refused", str(error))
            return
        try:
            self._go_on(self._work)
        except FailedSomewhereError as failed:
            self._end("refused", str(failed))
        except BaseException as error:
            self._end("refused", _in_words(error))
            raise

    def _go_on(self, work: Steps) -> None:
        """To the next step, or to the end that all ranks agree on."""
        try:
            next(work)
        except _Ended as end:
            self._ranks.agree()
            self._end(end.outcome, end.why, **end.found)
        except FailedSomewhereError:
            raise
        except Exception as error:
            if self._ranks.is_broken:
                raise
            _log.warning("autotune: ended by what failed on this rank", exc_info=error)
            self._end("refused", self._ranks.fail(_in_words(error)))

    def stop(self) -> None:
        """End the tuning, on all ranks at once, with the buckets that the model began with.

        Raises:
            InputError: not at a step boundary.
        """
        if self._work is not None:
            if (obstacle := self._boundary.obstacle) is not None:
                raise InputError(f"stop: not legal here: {obstacle}")
            self._work.close()
            self._end("refused", "stopped before it was decided")

    def _end(self, outcome: Outcome, why: str, **found: Any) -> None:
        seconds = time.perf_counter() - self._begun
        if self._work is not None:
            self._work = None
            self._boundary.close()
            self._ranks.close()
        self._tell(phase="ended", outcome=outcome, why=why, seconds=seconds)
        self.result = Autotuned(outcome=outcome, why=why, steps=self._steps, seconds=seconds, **found)

    def _tell(self, **changes: Any) -> None:
        """Write the first rank's file in ``live`` anew, with what has changed of ``AutotuneProgress``.

        A disk that is full ends the telling, never the training.
        """
        if self._told is None:
            return
        self._told = replace(self._told, steps=self._steps, **changes)
        if self._live is None:
            return
        try:
            self._live.mkdir(parents=True, exist_ok=True)
            save(self._live / AUTOTUNE, self._told)
        except (InputError, OSError) as error:
            _log.warning("autotune: no longer telling %s: %s", self._live, error)
            self._live = None

    # ---- what happens at each step boundary: generators that yield wherever training goes on for a step

    def _run(self) -> Steps:
        """The whole tuning; ends by raising ``_Ended``, on all ranks alike.

        Whatever else is raised on one rank is told to the others by ``_go_on``, in their next call of
        ``Unison``: so there is one before each step.
        """
        for _ in range(SETTLING_STEPS - 1):
            yield from self._step()
        yield from self._at_boundary()
        self._check_room()
        ddp = self._ddp
        if not ddp._has_rebuilt_buckets and (ddp.static_graph or not ddp.find_unused_parameters):
            raise NotModelledError(f"buckets: DDP has not rebuilt them after {SETTLING_STEPS} steps")
        switch = BucketSwitch(ddp)
        try:
            if (path := self._cache) is not None:
                known: Assignment | None = self._from_first(lambda: load_kept(path, ddp))
                if known is not None:
                    yield from self._try(switch, known, None)
            found = yield from self._predict(switch)
            yield from self._try(switch, found.assignment, found)
        finally:
            switch.revert()

    def _predict(self, switch: BucketSwitch) -> Generator[None, None, Recommendation]:
        with ExitStack() as stack:
            folder = stack.enter_context(scratch_directory())
            in_use = switch.original.buckets
            self._tell(phase="recording", buckets_in_use=len(in_use))
            yield from self._record(switch, folder)
            yield from self._at_boundary()
            self._tell(phase="link")
            self._check_room()
            link = measure_link(LinkProbe(self._ddp, self._ranks))
            self._tell(phase="prediction")
            with ThreadPoolExecutor(max_workers=1) as pool:
                is_first = self._ranks.is_first
                pending = pool.submit(predict, folder, link, in_use) if is_first else None
                for _ in range(PREDICTION_STEPS):
                    yield from self._step()
                found = self._from_first(lambda: _answer(pending))
        self._tell(in_use_ns=found.baseline.step_ns, best_ns=found.report.step_ns)
        if not _is_worth_a_trial(found):
            why = f"nothing to gain is predicted: {found.gain.sentence}"
            raise _Ended("reverted", why, assignment=found.assignment, **_predicted(found))
        return found

    def _record(self, switch: BucketSwitch, folder: Path) -> Steps:
        """The recording of all ranks, in ``folder`` on the first one."""
        steps = warmup_by(clock_for(self._ddp.device).name) + self._record_steps
        with scratch_directory() as own:
            with recorded(self._ddp, switch, own) as live:
                for _ in range(steps):
                    yield from self._step()
                    live.step()
                yield from self._at_boundary()
            texts = self._ranks.gather(live.path.read_bytes())
        for rank, text in enumerate(texts):
            (folder / f"rank-{rank}.jsonl").write_bytes(text)

    def _try(self, switch: BucketSwitch, assignment: Assignment, found: Recommendation | None) -> Steps:
        """Train with the candidate and the buckets in use in turns, keep one of them, and end the tuning.

        Returns only if a candidate from the cache, which comes without what was ``found``, is not kept. That
        one has half of the steps, since another may be tried after it.
        """
        most = self._most_steps if found is not None else max(self._verify_steps, self._most_steps // 2)
        planned = looks(self._verify_steps, most)
        yield from self._at_boundary()
        self._check_room()
        candidate = switch.make(assignment.bucket_indices)
        said = {"assignment": assignment, **(_predicted(found) if found is not None else {})}
        tried = len(assignment.bucket_indices)
        self._tell(phase="trial", buckets_tried=tried, most_steps=planned[-1], looks=())
        try:
            switch.use(candidate)
            for _ in range(TRIAL_WARMUP_STEPS):
                yield from self._step()
            yield from self._at_boundary()
            times: list[int] = []
            draw: int = self._from_first(lambda: randbits(32))
            for look in planned:
                while len(times) < look:
                    switch.use(candidate if is_candidate_turn(len(times), draw) else switch.original)
                    self._ranks.agree()
                    begun = self._now()
                    yield
                    times.append(self._now() - begun)
                    yield from self._at_boundary()
                verdict = self._judged(times, draw, planned, found)
                if verdict.keeps is not None:
                    break
            if verdict.keeps:
                self._save(assignment)
                self._ranks.agree()
                switch.keep(candidate)
                raise _Ended("kept", verdict.why, ab=verdict.ab, **said)
        finally:
            switch.revert()
        if found is not None:
            raise _Ended("reverted", verdict.why, ab=verdict.ab, **said)

    def _judged(
        self, times: list[int], draw: int, planned: Sequence[int], found: Recommendation | None
    ) -> "Verdict":
        """The first rank's verdict on the steps so far, of the slowest rank in each."""
        slowest = self._ranks.over_ranks(times, longest=True)
        plain_ns = min(slowest) if found is None else found.baseline.step_ns - found.baseline.exposed_comm_ns
        verdict: Verdict = self._from_first(
            partial(
                judge,
                slowest,
                draw,
                len(planned),
                name=type(self._ddp.module).__name__,
                world_size=self._ranks.world_size,
                plain_ns=plain_ns,
                is_last=len(times) == planned[-1],
            )
        )
        ab = verdict.ab
        gain, low, high = ab.gain_fraction, ab.gain_low_fraction, ab.gain_high_fraction
        earlier = () if self._told is None else self._told.looks
        self._tell(looks=(*earlier, TrialLook(steps=len(times), gain=gain, low=low, high=high)))
        return verdict

    def _save(self, assignment: Assignment) -> None:
        if self._cache is not None and self._ranks.is_first:
            try:
                save_kept(self._cache, assignment, self._ddp)
            except (SimError, OSError) as error:
                _log.warning("autotune: the buckets are kept, but not for the next run: %s", error)

    def _now(self) -> int:
        if self._ddp.device.type == "cuda":
            torch.cuda.synchronize(self._ddp.device)
        return time.perf_counter_ns()

    def _check_room(self) -> None:
        if self._looks_at_memory:
            self._room.check()

    def _step(self) -> Steps:
        """Let all ranks train for a step, if none has failed."""
        self._ranks.agree()
        yield

    def _at_boundary(self) -> Steps:
        """Yield steps until all ranks may change buckets; end the tuning if that takes too many."""
        for _ in range(_MOST_POSTPONED):
            why = self._ranks.first_reason(self._boundary.obstacle)
            if why is None:
                return
            yield
        raise _Ended("refused", f"step: never called between two steps: {why}")

    def _from_first(self, act: Callable[[], Found]) -> Found:
        """Run ``act`` on the first rank and return its value on all ranks."""
        found: Found = self._ranks.from_first(act() if self._ranks.is_first else None)
        return found


def _is_worth_a_trial(found: Recommendation) -> bool:
    """Whether anything is to be set by what is predicted."""
    return found.setting is not None and found.setting.pick != "default"


def _predicted(found: Recommendation) -> dict[str, int | None]:
    """The predicted gain, by the names that ``Autotuned`` has for it."""
    gain = found.gain
    names = ("predicted_gain_ns", "predicted_low_ns", "predicted_high_ns")
    return dict(zip(names, (gain.gain_ns, gain.low_ns, gain.high_ns), strict=True))


def _answer(pending: "Future[Recommendation] | None") -> Recommendation:
    """What the thread found; whatever it raised is a reason to end the tuning."""
    assert pending is not None
    error = pending.exception()
    if error is not None:
        raise RuntimeError(f"no prediction: {type(error).__name__}: {error}") from error
    return pending.result()


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


# ---- whether the steps of a trial show a gain; it is judged several times, with 5 % error in all

# Steps come in pairs, the buckets in use and the candidate, in an order that is drawn for each pair: what
# drifts cancels, and what comes back every so many steps (batches that four workers load) meets both alike.
# All pairs so far are judged after a number of steps that doubles each time; the interval of a look is wider
# than 95 %, so that those of all looks hold together 95 % of the time (Pocock). Of simulated trials without
# any gain (normal, heavy-tailed, drifting, in two modes, with a period) 1 to 4 % were kept.

# Two-sided levels of each of so many looks that together leave 5 % (Pocock 1977).
_POCOCK = (0.05, 0.0294, 0.0221, 0.0182, 0.0158, 0.0142, 0.0130, 0.0120, 0.0112, 0.0106)
NOT_WORTH = 0.005  # of the step: a trial ends early if its interval allows no larger gain


def looks(first: int, most: int) -> tuple[int, ...]:
    """After how many steps the trial is judged: ``first``, doubled until ``most``; whole pairs."""
    found = [first + first % 2]
    while 2 * found[-1] < most and len(found) < len(_POCOCK) - 1:
        found.append(2 * found[-1])
    if most - most % 2 > found[-1]:
        found.append(most - most % 2)
    return tuple(found)


def is_candidate_turn(step: int, draw: int) -> bool:
    """Whether step ``step`` of a trial is the candidate's, in the trial that ``draw`` stands for."""
    pair, place = divmod(step, 2)
    return Random(f"{draw} {pair}").getrandbits(1) == place


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the steps so far say; ``keeps`` None: more are needed."""

    keeps: bool | None
    why: str
    ab: AbTest


def judge(
    times_ns: Sequence[int],
    draw: int,
    count: int,
    *,
    name: str,
    world_size: int,
    plain_ns: int,
    is_last: bool,
) -> Verdict:
    """The verdict on the steps of a trial, in the order in which they ran.

    Args:
        times_ns: of the slowest rank, one a step.
        draw: what the order of the steps was drawn from.
        count: how many looks there are in all.
        name: of the job.
        world_size: ranks.
        plain_ns: the step without communication, as far as it is known.
        is_last: whether this is the last look.
    """
    sides: tuple[list[int], list[int]] = ([], [])
    for step, took_ns in enumerate(times_ns):
        sides[is_candidate_turn(step, draw)].append(took_ns)
    ab = judge_turns(
        Turns(default=sides[0], recommended=sides[1], plain=[plain_ns]),
        name=name,
        world_size=world_size,
        level=1 - _POCOCK[count - 1],
    )
    of_step, low, high = (
        format_percent(share, sign=True)
        for share in (ab.gain_fraction, ab.gain_low_fraction, ab.gain_high_fraction)
    )
    gain = f"{of_step} of a step, 95 % interval {low} to {high}, {ab.rounds} pairs of steps"
    if ab.significant and ab.gain_low_ns > 0:
        return Verdict(keeps=True, why=f"faster by {gain}", ab=ab)
    if ab.gain_high_fraction < NOT_WORTH:
        return Verdict(keeps=False, why=f"no gain worth having: {gain}", ab=ab)
    if not is_last:
        return Verdict(keeps=None, why=f"no gain shown yet: {gain}", ab=ab)
    why = (
        f"no gain shown: {gain}, which leave open whether there is one; DDP's own buckets are back; "
        f"max_verify_steps above {len(times_ns)} gives a longer trial"
    )
    return Verdict(keeps=False, why=why, ab=ab)


# ---- what a job kept, for its next run: an assignment file with the machine that it was kept on


def load_kept(path: Path, ddp: DistributedDataParallel) -> Assignment | None:
    """The assignment in the file, if it was kept for this model, number of ranks and machine; else None.

    Raises:
        InputError: not an assignment.
    """
    if not path.exists():
        return None
    kept, named = load_assignment(path), trained_parameters(ddp)
    here = MadeFor(
        workload=kept.made_for.workload if kept.made_for else "",
        names=tuple(name for name, _ in named),
        num_bytes=tuple(parameter.nbytes for _, parameter in named),
        dtypes=tuple(dtype_name(parameter) for _, parameter in named),
        world_size=ddp.process_group.size(),
    )
    return kept if kept.made_for == here and kept.provenance.get("machine") == _machine(ddp) else None


def save_kept(path: Path, assignment: Assignment, ddp: DistributedDataParallel) -> None:
    """Write ``assignment`` with the machine that it was kept on; ``sim.apply`` takes the file too.

    Raises:
        InputError: the file cannot be written.
    """
    provenance = {**assignment.provenance, "source": "sim.autotune", "machine": _machine(ddp)}
    write_atomically(path, to_text(replace(assignment, provenance=provenance)))


def _machine(ddp: DistributedDataParallel) -> dict[str, Any]:
    """CPU, device and backend: on others the link and the computing of the job may differ."""
    found = surroundings(ddp.device)
    return {
        "cpu": found["cpu"],
        "device_name": found.get("device_name", ddp.device.type),
        "backend": backend_of(ddp),
    }
