"""docs/findings.md, block by block in an empty directory."""

from pathlib import Path

import pytest

from tests.test_quickstart import FENCED, ROOT, run, typed


def test_it_is_played_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    printed, names = "", {}
    for language, block in FENCED.findall((ROOT / "docs" / "findings.md").read_text()):
        if language == "python":
            exec(block, names)
        else:
            printed += "".join(run(words, monkeypatch, capsys) for words in typed(block))
    found = dict(line.split(None, 2)[1:] for line in printed.splitlines() if "macro" in line[:6])
    assert float(found["auroc"].split()[0]) > 0.55
    assert capsys.readouterr().out == "(3, 10)\n"
