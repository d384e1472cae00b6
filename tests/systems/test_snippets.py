"""What an assignment says of the model it was made for, in files; the snippet that uses ``sim.apply``."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

import sim
from sim.errors import AssignmentError, InputError, NotModelledError
from sim.formats import documents
from sim.nouns.assignment import Assignment, MadeFor, made_for
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from tests.commands import bucketsim
from tests.strategies import workloads

EXAMPLES = Path(__file__).parents[1] / "contracts" / "examples"


def example() -> Workload:
    return sim.load_workload(EXAMPLES / "workload.json")


@given(workloads())
def test_made_for_survives_a_file(workload: Workload) -> None:
    made = Assignment(bucket_indices=((0,),), made_for=made_for(workload, 4))
    read = documents.parse_text(documents.to_text(made), Assignment, "here")
    assert read == made
    assert read.made_for is not None
    assert read.made_for.names == tuple(gradient.name for gradient in workload.gradients)
    assert read.made_for.num_bytes == tuple(gradient.num_bytes for gradient in workload.gradients)
    assert read.made_for.dtypes == tuple(gradient.dtype for gradient in workload.gradients)
    assert read.made_for.world_size == 4


def test_assign_and_tune_say_what_they_were_made_for() -> None:
    workload = example()
    hardware = Hardware(
        name="h", world_size=8, all_reduce=(CurvePoint(num_bytes=1 << 20, duration_ns=10**6),)
    )
    assert sim.assign(workload).made_for == made_for(workload)
    assert sim.tune(workload, hardware).assignment.made_for == made_for(workload, 8)


def test_files_from_before_made_for_are_read() -> None:
    document = documents.to_document(sim.assign(example()))
    del document["made_for"]
    assert documents.parse_document(document, Assignment, "old").made_for is None


def test_a_wrong_made_for_is_named() -> None:
    document = documents.to_document(sim.assign(example()))
    document["made_for"]["num_bytes"] = [1]
    with pytest.raises(InputError, match=r"old: made_for\.num_bytes: 1 values for \d+ names"):
        documents.parse_document(document, Assignment, "old")
    with pytest.raises(InputError, match="world_size"):
        MadeFor(workload="w", names=(), num_bytes=(), dtypes=(), world_size=0)


def alternating(workload: Workload) -> Assignment:
    """Buckets that no list of caps reaches: not contiguous in ready order."""
    count = len(workload.gradients)
    bare = Assignment(bucket_indices=(tuple(range(0, count, 2)), tuple(range(1, count, 2))))
    bare.check_fits(workload)
    return bare


def test_buckets_that_no_keyword_reaches_are_pasted_with_apply(tmp_path: Path) -> None:
    """What it does on real ranks is tested in tests/dist/test_apply.py."""
    workload = example()
    assignment = replace(alternating(workload), ddp_kwargs={"gradient_as_bucket_view": True})
    assert not assignment.by_keywords
    text = sim.snippet(assignment, workload)
    compile(text, "snippet", "exec")
    assert "needs bucketsim" in text
    assert text.endswith("ddp_model = sim.apply(model, assignment)\n")
    names = {"sim": sim}
    exec(re.sub(r"^ddp_model.*$", "", text, flags=re.MULTILINE), names)
    assert names["assignment"] == assignment
    file = tmp_path / "a.json"
    file.write_text(sim.to_text(assignment))
    said = bucketsim("export", EXAMPLES / "workload.json", "--assignment", file, "--as", "snippet")
    assert (said.code, said.out) == (0, text)


def test_keywords_that_reach_other_buckets_are_still_refused() -> None:
    workload = example()
    wrong = replace(alternating(workload), ddp_kwargs={"bucket_cap_mb": 25})
    with pytest.raises(AssignmentError, match="ddp_kwargs"):
        sim.snippet(wrong, workload)


def test_a_snippet_for_a_newer_torch_names_the_way_round() -> None:
    workload = example()
    text = sim.snippet(sim.assign(workload, bucket_cap_mb_list=[4.0, 8.0]), workload)
    assert "needs torch '>=2.11' (before: sim.apply)" in text


@pytest.mark.parametrize("policy", ["zero2", "arrival-counted", "last-hook-safe"])
def test_no_lines_of_ddp_for_another_system(policy: str) -> None:
    workload = example()
    with pytest.raises(NotModelledError, match=policy):
        sim.snippet(sim.assign(workload, policy), workload)


def test_what_is_set_elsewhere_is_said() -> None:
    workload = example()
    lines = sim.snippet(sim.assign(workload, accumulation_steps=4, bucket_cap_mb=4), workload)
    assert "# Set elsewhere, and part of this assignment: accumulation_steps=4" in lines
    assert "DistributedDataParallel(model, bucket_cap_mb=4)" in lines
