"""``sim.apply`` on two gloo ranks: the gradients of plain DDP in the buckets asked for, and what it refuses.

All cases run in one job (``apply_worker``); the tests look at its answers from both ranks.
"""

import json
import re
from typing import Any

import pytest

from tests.ranks import run_together

pytestmark = pytest.mark.dist

Answers = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What each rank answered."""
    folder = tmp_path_factory.mktemp("apply")
    ended = run_together("tests.dist.apply_worker", folder)
    assert [code for code, _ in ended] == [0, 0], "".join(errors[-2000:] for _, errors in ended)
    return [json.loads((folder / f"answers-{rank}.json").read_text()) for rank in (0, 1)]


def of(ranks: Answers, case: str) -> list[Any]:
    """The answers to one case, by rank."""
    return [answers[case] for answers in ranks]


def test_any_assignment_gives_plain_ddps_gradients_in_the_buckets_asked_for(ranks: Answers) -> None:
    """30 random partitions and orders, up to three dtypes or a sparse gradient, views, accumulation."""
    for rows in of(ranks, "random_assignments"):
        assert len(rows) == 30
        assert max(len(row["asked"]) for row in rows) >= 5
        for row in rows:
            assert row["injected"]
            assert row["observed"] == row["asked"]
            assert row["equal"], row["asked"]


@pytest.mark.parametrize(
    "case",
    [
        "find_unused_parameters",
        "used_under_no_sync_only",
        "two_forwards_before_one_backward",
        "static_graph",
        "communication_hook",
        "uneven_inputs",
    ],
)
def test_gradients_are_plain_ddps(case: str, ranks: Answers) -> None:
    assert all(answer["equal"] for answer in of(ranks, case))


@pytest.mark.parametrize("case", ["find_unused_parameters", "pickled", "pasted_snippet"])
def test_buckets_are_those_asked_for(case: str, ranks: Answers) -> None:
    for answer in of(ranks, case):
        assert answer["observed"] == answer["asked"]


def test_ddps_other_keywords_work(ranks: Answers) -> None:
    for answers in of(ranks, "switches"):
        assert set(answers) >= {"buffers", "no buffers", "group", "mesh"}
        for name, answer in answers.items():
            assert answer["injected"], name
            assert answer["equal"], name
            assert answer["observed"] == answer["asked"], name


def test_a_communication_hook_sees_the_buckets_from_iteration_1_on(ranks: Answers) -> None:
    """Four synchronised backwards, each launching the buckets asked for in their order (A3.5)."""
    for answer in of(ranks, "communication_hook"):
        assert answer["seen"] == 4 * answer["asked"]


def test_torchs_error_on_an_unused_parameter_is_kept(ranks: Answers) -> None:
    for answer in of(ranks, "an_unused_parameter"):
        assert "Expected to have finished reduction" in answer["error"]
        assert "did not receive grad for rank" in answer["error"]
        assert "2 3" in answer["error"]


def test_nothing_piles_up_for_a_rebuild_that_never_comes(ranks: Answers) -> None:
    """The real Reducer asserts that it recorded each parameter once when it is made to rebuild at last."""
    for case in ("what_is_recorded_for_a_rebuild", "uneven_inputs"):
        assert [answer["rebuilt"] for answer in of(ranks, case)] == [True, True]


def test_keywords_are_used_where_they_reach_the_buckets(ranks: Answers) -> None:
    for answers in ranks:
        rows, has_list = answers["by_keywords"], answers["has_list"]
        major, minor = (int(part) for part in answers["torch"].split(".")[:2])
        injected = {name for name, row in rows.items() if row["injected"]}
        expected = {"list, unused", "list, static", "last cap"}
        expected |= set() if has_list else {"list", "other order"}
        expected |= set() if (major, minor) >= (2, 12) else {"cap 0"}
        assert injected == expected
        for name, row in rows.items():
            if name == "other order" and has_list:
                assert row["observed"] != row["asked"]
                assert len(row["warned"]) == 1
                assert "ready in another order than the recorded one" in row["warned"][0]
            else:
                assert [set(bucket) for bucket in row["observed"]] == [set(b) for b in row["asked"]], name
                assert row["warned"] == [], name


def test_another_world_size_gives_a_warning_with_both(ranks: Answers) -> None:
    for answer in of(ranks, "another_world_size"):
        assert len(answer["warned"]) == 1
        assert "tuned for 8 ranks and runs on 2" in answer["warned"][0]
        assert answer["file"][0].endswith("apply_worker.py")


def test_names_that_torch_or_a_wrapper_changes_are_the_same_model(ranks: Answers) -> None:
    assert of(ranks, "compiled_names") == [{}, {}]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("names", "AssignmentError: .*another model .'tried'.*gradient 0: 'layers.0.weight'.*'other.layers"),
        ("size", r"AssignmentError: .*6 gradients there, 6 here.*144 bytes\) there.*196 bytes\) here"),
        ("dtype", r"AssignmentError: .*first of 6.*\(float32, 144 bytes\) there.*\(float16, 72 bytes\) here"),
        ("fewer", "AssignmentError: .*6 gradients there, 4 here; 'layers.2.weight' is only there"),
        ("more", "AssignmentError: .*6 gradients there, 8 here; 'layers.3.weight' is only here"),
        ("count, old file", "AssignmentError: .*hold 6 gradients .*this model has 8"),
        ("bytes, old file", "AssignmentError: .*bucket 0 has 504 bytes there and 672 here"),
        ("mixed dtypes", r"AssignmentError: bucket_indices.0: mixes .*bfloat16.*A8\.3"),
        ("sparse", "AssignmentError: bucket_indices.0: 'layers.0.weight' has a sparse gradient"),
        ("cap", "InputError: bucket_cap_mb: 4 is not legal; the assignment says"),
        ("switch", "InputError: gradient_as_bucket_view: False is not legal; .*made for True"),
        ("unknown", "InputError: bucket_caps: DistributedDataParallel has no such keyword in torch"),
        ("delayed", "InputError: delay_all_reduce_named_params: .*out of the buckets"),
        ("mixed precision", "NotModelledError: mixed_precision: not supported"),
        ("both", "InputError: find_unused_parameters: leave it out"),
        ("policy", "NotModelledError: policy: 'zero1'"),
        ("ddp", "InputError: model: is wrapped in DistributedDataParallel already"),
        ("ddp inside", "InputError: model: module '1' is wrapped in DistributedDataParallel"),
        ("fsdp", "InputError: model: is sharded by FullyShardedDataParallel"),
        ("fsdp2", r"InputError: model: is sharded by fully_shard \(FSDP2\)"),
        ("tensor parallel", "InputError: model: parameter 'layers.0.weight' is a DTensor"),
        ("meta", "InputError: model: 'layers.0.weight' is on the meta device"),
        ("a dict", "InputError: assignment: a dict is not legal; give an Assignment, or the path of one"),
        ("no file", "InputError: none.json: cannot be read: No such file or directory"),
        ("no module", "InputError: model: str is not legal"),
    ],
)
def test_refusals_say_why(case: str, words: str, ranks: Answers) -> None:
    for said in of(ranks, "refusals"):
        assert re.search(words, said[case]), said[case]


def test_every_refusal_is_tested(ranks: Answers) -> None:
    tested = {case for mark in test_refusals_say_why.pytestmark for case, _ in mark.args[1]}  # type: ignore[attr-defined]
    assert set(ranks[0]["refusals"]) == tested
