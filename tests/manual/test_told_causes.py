"""Every cause that a sentence of the tuner may begin with stands in the manual's table of causes."""

import re

from tests.manual.pages import HOME, ROOT

WITHOUT_COLON = {"backward stands still", "head-of-line blocked"}


def test_every_cause_is_explained() -> None:
    source = (ROOT / "sim" / "metrics" / "bottleneck.py").read_text()
    causes = set(re.findall(r'"([a-z][a-z -]+): ', source)) | WITHOUT_COLON
    assert {"interference-bound", "no overlap", "tail exposed"} < causes
    assert all(f'"{cause}' in source for cause in causes)
    told = (HOME / "answer.md").read_text()
    assert [cause for cause in sorted(causes) if f"\n| {cause} |" not in told] == []
