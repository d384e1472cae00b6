"""What real ranks tell each other goes over a group of ours, and a failure of one reaches all at once."""

import json
from typing import Any

import pytest

from tests.ranks import run_together

pytestmark = pytest.mark.dist
Answers = list[dict[str, Any]]
WORLDS = (2, 3, 4)


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world} ranks")
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("unison")
    world: int = request.param
    ended = run_together("tests.autotune.unison_worker", folder, str(world), world_size=world)
    for code, error in ended:
        assert code == 0, error
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def test_all_ranks_hear_the_same(ranks: Answers) -> None:
    last = len(ranks) - 1
    for rank, said in enumerate(one["says"] for one in ranks):
        assert said["from_first"] == {"rank": 0, "more": [1, 2.5]}
        assert said["gather"] == (["x" * k for k in range(last + 1)] if rank == 0 else [])
        assert (said["slowest"], said["quickest"]) == ([last, 0], [0, -last])
        assert (said["no_reason"], said["all_reasons"]) == (None, "same")
        assert (said["one_reason"], said["many_reasons"]) == (f"rank {last}: mine", "rank 1: 1")


def test_nothing_of_it_asks_for_the_current_device_or_the_jobs_group(ranks: Answers) -> None:
    """``_get_object_coll_device`` is where torch's object collectives take the current GPU."""
    for said in (one["says"] for one in ranks):
        assert said["called"] == {}


def test_a_failure_reaches_all_whatever_they_call(ranks: Answers) -> None:
    for said in (one["fails"] for one in ranks):
        assert set(said.values()) == {f"rank {len(ranks) - 1}: planted"}
        assert len(said) == 5


def test_ranks_part_and_meet_again(ranks: Answers) -> None:
    sums = [one["comes_and_goes"] for one in ranks]
    assert sums == [50 * len(ranks) + 1225, *[1225] * (len(ranks) - 1)]


def test_a_group_of_some_ranks_needs_no_other(ranks: Answers) -> None:
    last = len(ranks) - 1
    assert [one["of_some"] for one in ranks[-2:]] == [[0, last - 1, [last]], [1, last - 1, [last]]]


def test_who_cannot_be_reached_is_told_to_all_and_training_goes_on(ranks: Answers) -> None:
    for outcome, why, steps, is_own in (one["unreachable"] for one in ranks):
        assert (outcome, steps, is_own) == ("refused", 1, True)
        assert why.startswith(f"rank {len(ranks) - 1}: no connection over gloo")
        assert "GLOO_SOCKET_IFNAME" in why


def test_of_a_tuning_only_the_links_probes_use_the_jobs_group(ranks: Answers) -> None:
    for said in (one["only_probes"] for one in ranks if "only_probes" in one):
        assert said["outcome"] == "kept"
        assert set(said["called"]) == {"job_link.py: all_reduce"}


def test_what_fails_on_one_rank_ends_the_tuning_on_all_in_the_same_step(ranks: Answers) -> None:
    """Wherever that is, and whatever was raised; training goes on with DDP's own buckets."""
    last = len(ranks) - 1
    for name in (name for name in ranks[0] if name.startswith("failing ")):
        answers = [one[name] for one in ranks]
        for answer in answers:
            assert answer["outcome"] == "refused", (name, answer)
            assert answer["why"].endswith("AttributeError: planted")
            assert answer["why"].startswith(("rank 0: ", f"rank {last}: "))
            assert (answer["own"], answer["hooks"], answer["reducers"]) == (True, [0] * 4, 0), name
            assert (answer["ended"], answer["threads"]) == (answers[0]["ended"], 1), name
            if len(ranks) == 2:  # with more, sums of other buckets round otherwise
                assert answer["differs"] == [], name
        assert [answer["late"] for answer in answers if answer["late"] is not None] == [0], name
