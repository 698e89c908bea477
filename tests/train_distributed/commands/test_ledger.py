"""`ledger` shows, reserves, spends and limits."""

import json

import pytest


def test_show_tells_entries_totals_limit_and_head(run, call, sets, tmp_path, ledger) -> None:
    where = ["--embeddings", sets[0]]
    assert call("ledger", "show", *where)[0] == 2
    run("--out", "one")
    run("--out", "two", "--unit", "user", "--noise-by", "servers")
    promise = ["--epsilon", "2", "--delta", "1e-5"]
    code, printed, _ = call("ledger", "limit", *where, *promise)
    assert code == 0
    assert "limit: epsilon 2 at delta 1e-05 for one record, 1.46" in printed
    code, printed, error = call("ledger", "show", *where, "--reports", "one", "two/report.json")
    assert (code, error) == (0, "")
    one, two = (next(x for x in printed.splitlines() if f"-> {n}" in x) for n in ("one", "two"))
    assert ", noise by users -> one" in one
    assert ", noise by servers -> two" in two
    assert "one record: epsilon 1.46" in printed
    assert "one user: nothing promised by 1 of 2 entries" in printed
    assert f"head {ledger.state().head}, 5 lines" in printed
    assert "2 report(s) agree with it" in printed
    (tmp_path / "one" / "report.json").rename(tmp_path / "one" / "evaluation.json")
    assert call("ledger", "show", *where, "--reports", "one")[0] == 0
    code, printed, _ = call("ledger", "show", *where, "--json")
    shown = json.loads(printed)
    assert [line["kind"] for line in shown["lines"]] == ["reserve", "spend"] * 2 + ["limit"]
    follow = [line["previous"] for line in shown["lines"][1:]]
    assert follow == [line["hash"] for line in shown["lines"][:-1]]
    assert shown["lines"][-1]["hash"] == shown["head"] == ledger.state().head
    assert shown["totals"]["record"]["epsilon"] == pytest.approx(ledger.total().epsilon(1e-5))
    assert shown["totals"]["user"]["epsilon"] == "inf"
    ledger.path.unlink()
    assert call("ledger", "limit", *where, *promise)[0] == 0
    code, _, error = call("ledger", "show", *where, "--reports", "one", "two")
    assert code == 2
    assert "must hold the 1 lines that a report has seen" in error


def test_reserve_and_spend_by_hand(call, sets, ledger) -> None:
    where = ["--embeddings", sets[0]]
    stated = ["--epsilon", "0.5", "--delta", "1e-6", "--method", "survey", "--part", "train"]
    code, printed, _ = call("ledger", "reserve", *where, *stated)
    assert code == 0
    assert call("ledger", "spend", *where, "--id", printed.strip())[0] == 0
    code, _, error = call("ledger", "spend", *where, "--id", printed.strip())
    assert (code, "not spent yet" in error) == (2, True)
    noise = ["--epsilon", "1", "--delta", "1e-5", "--sigma", "3.7307", "--sensitivity", "1"]
    assert call("ledger", "reserve", *where, *noise, "--part", "train")[0] == 0
    assert ledger.total().epsilon(1e-5) == pytest.approx(1.5, abs=0.02)
    file = ["--ledger", "other.ledger", "--data", "letters", "--epsilon", "1", "--delta", "0"]
    assert call("ledger", "reserve", *file)[0] == 0
    limit = ["ledger", "limit", *where, "--delta", "1e-5", "--epsilon"]
    assert call(*limit, "1")[0] == 0
    code, _, error = call("ledger", "reserve", *where, *noise)
    assert code == 2
    assert "limit of ledger private.ledger must be >=" in error
    code, _, error = call(*limit, "3")
    assert code == 2
    assert "(or pass --raise-limit)" in error
    assert "raised 1 time(s)" in call(*limit, "3", "--raise-limit")[1]
