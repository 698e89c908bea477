"""Metrics whose labels are bounded, and a log that strangers cannot fill."""

import json
import logging
import urllib.request
from pathlib import Path

import pytest

from tests.ports import free_port
from train_distributed.federation import aggregator_watch
from train_distributed.federation.aggregator_watch import EVENTS, LOG, Seldom, Watch, logged


def lines(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / EVENTS).read_text().splitlines()]


def test_a_place_of_the_code_writes_seldom_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    now = [0.0]
    monkeypatch.setattr(Seldom.__init__, "__defaults__", (60.0, lambda: now[0]))
    with logged(tmp_path):
        for round_ in range(3):
            for stranger in range(1000):
                LOG.warning("refused", extra={"fields": {"why": f"\n\x1b{stranger}" * 9999}})
            LOG.info("round %d", round_)
            now[0] += 61.0
        logging.getLogger("asyncio").error("of a library")
        logging.getLogger("httpx").info("HTTP Request: POST")
        try:
            raise ZeroDivisionError("x" * 10_000)
        except ZeroDivisionError:
            LOG.exception("a request fails")
    found = lines(tmp_path)
    rounds = [event for number in range(3) for event in ("refused", f"round {number}")]
    assert [each["event"] for each in found] == [*rounds, "of a library", "a request fails"]
    refused = [each.get("left_out") for each in found if each["event"] == "refused"]
    assert refused == [None, 999, 999]
    assert all(len(each["why"]) <= 2000 for each in found if "why" in each)
    assert (found[-1]["level"], len(found[-1]["error"])) == ("ERROR", 2000)
    shown = capsys.readouterr().err
    assert [json.loads(line) for line in shown.splitlines()] == found
    assert "\x1b" not in shown


def test_the_file_is_rotated(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(aggregator_watch, "LOG_BYTES", 10_000)
    monkeypatch.setattr(Seldom, "filter", lambda self, record: True)
    with logged(tmp_path):
        for number in range(1000):
            LOG.info("an event", extra={"fields": {"number": number, "words": "x" * 100}})
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == aggregator_watch.LOG_FILES
    assert max(sizes) <= 10_000
    assert lines(tmp_path)[-1]["number"] == 999


def test_logs_of_one_process_may_end_in_any_order(tmp_path: Path, capsys) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    logs = []
    for folder in folders:
        folder.mkdir()
        logs.append(logged(folder))
        logs[-1].__enter__()
    logs[0].__exit__(None, None, None)
    LOG.warning("after the first")
    logs[1].__exit__(None, None, None)
    LOG.warning("after both")
    assert [len(lines(folder)) for folder in folders] == [0, 1]


def test_metrics_are_served_where_the_operator_says_with_counts_of_the_database(
    monkeypatch,
) -> None:
    watch, port, asked = Watch(), free_port(), list[int]()

    def counts() -> dict[int, int]:
        asked.append(1)
        if len(asked) > 1:
            raise OSError("gone")
        return {0: 3, 1: 5, 2: 1}

    def scraped() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.read().decode()

    watch.count_reports(counts)
    watch.reports.labels("BadSignature").inc(2)
    end = watch.serve("127.0.0.1", port)
    try:
        text = scraped()
        assert 'aggregator_reports{state="added"} 5.0' in text
        assert 'aggregator_reports_received_total{answer="BadSignature"} 2.0' in text
        before = len(asked)
        scraped()
        assert len(asked) == before  # not once more within seconds
        monkeypatch.setattr(aggregator_watch.time, "monotonic", lambda: 1e12)
        assert "aggregator_reports{" not in scraped()  # no figure rather than an old one
    finally:
        end()
    with pytest.raises(OSError, match=r"refused|timed out"):
        scraped()
