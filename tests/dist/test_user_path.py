"""The user's own job: recorded, imported, tuned, applied, and compared with the default."""

import json
from pathlib import Path

import pytest

import sim
from tests.commands import bucketsim
from tests.dist.starting import forked, forks_ranks
from tests.handmade import wired

pytestmark = pytest.mark.dist

# A slow link, so that the tuner has something to recommend.
LINK = wired({0: 10**5, 1 << 20: 5 * 10**6}, name="slow")
ARGUMENTS = ["--width", "128", "--layers", "4", "--accumulate", "2", "--amp", "--steps", "8"]


def trained(*words: object, cwd: Path) -> str:
    """What two gloo ranks of the example said."""
    ended = forked("sim.examples.train", [[*ARGUMENTS, *words]] * 2, [cwd] * 2)
    said = "".join(told for _, told in ended)
    assert [code for code, _ in ended] == [0, 0], said
    return said


def test_record_import_tune_apply_and_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording, imported = tmp_path / "recording", tmp_path / "imported"
    link, best = tmp_path / "link.json", tmp_path / "best.json"
    link.write_text(sim.to_text(LINK))

    plain = trained("--record", recording, cwd=tmp_path)
    assert sorted(path.name for path in recording.iterdir()) == ["rank-0.jsonl", "rank-1.jsonl"]

    said = bucketsim("import", "recording", recording, "-o", imported)
    assert said.code == 0, said.err
    workload = imported / "workload.json"
    assert len(sim.load_workload(workload).gradients) == 4 * 4 + 2

    said = bucketsim("tune", workload, "--hardware", link)
    assert said.code == 0, said.err
    # On a busy machine steps that were held up are left out, and none may come from this link: it is made up.
    assert any(f" over {few} steps; its parts alone say " in said.out for few in range(3, 7))
    is_refuted = "no gain can be told" in said.out
    assert is_refuted or "held to the job's own recorded step: link " in said.out
    alone = bucketsim("tune", workload, "--hardware", link, "--parts", "-o", best)
    assert "own step" not in alone.out + alone.err
    assert len(sim.load_assignment(best).bucket_indices) > 1

    applied = trained("--assignment", best, cwd=tmp_path)
    assert "another order" not in applied
    # Buckets change when gradients travel, not what they are.
    loss = next(line for line in plain.splitlines() if line.startswith("loss"))
    assert loss in applied

    forks_ranks(monkeypatch)
    model = ["sim.examples.train:model_and_batch", "--arg", "width=128", "--arg", "layers=4"]
    command = ["ab", *model, "--workload", workload, "--hardware", link, "--arg", "amp=true"]
    held = tmp_path / "held.json"  # what is best for the parts alone may be other buckets
    tuned = json.loads(bucketsim("tune", workload, "--hardware", link, "-o", held, "--json").out)
    compared = best if is_refuted else held
    said = bucketsim(*command, "--assignment", compared, "--rounds", "6", "-o", tmp_path / "ab", "--json")
    assert said.code == 0, said.err
    result = json.loads(said.out)
    assert json.loads((tmp_path / "ab" / "ab.json").read_text()) == result
    assert (result["kind"], result["rounds"]) == ("ab", 6)
    assert result["gain_low_ns"] <= result["gain_high_ns"]
    assert result["predicted_gain_ns"] == (None if is_refuted else tuned["gain"]["mean_ns"])
    assert result["environment"]["model"]["arguments"] == {"width": 128, "layers": 4, "amp": True}
