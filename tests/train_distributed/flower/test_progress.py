"""Whoever waits is told for whom, and who refused and why, in one line each time that changes."""

from train_distributed.flower.progress import MOST_SHOWN, Log, Progress


def test_an_operator_that_waits_is_told_for_whom_and_why() -> None:
    said, log = list[str](), Log()
    progress = Progress(log, say=lambda line: said.append(line.partition(" s  ")[2]))
    progress.present([], 3, ["a", "b", "c"])
    progress.present([], 3, ["a", "b", "c"])
    log.refuse("user 1 (b)", "refused: budget")
    progress.present([0], 3, ["c"])
    progress.present([0, 2], 3)
    progress.stage("start", [0, 2])
    log.refuse("user 2 (c)", b"refused: \x1b")
    progress.answered(1, 2)
    progress.answered(1, 2)
    assert said == [
        "0 of 3 present; waiting for a, b, c",
        "1 of 3 present; user 1 (b): refused: budget; waiting for c",
        "2 of 3 present; user 1 (b): refused: budget",
        "start: 1 of 2; user 2 (c): refused: \\x1b",
        "start: 1 of 2",
    ]


def test_a_crowd_does_not_fill_the_line() -> None:
    said, log = list[str](), Log()
    for number in range(50):
        log.refuse(f"user {number}", "refused")
    Progress(log, say=said.append).present([], 100, map(str, range(100)))
    assert said[0].endswith("waiting for 0, 1, 2, 3, 4, ...")
    assert said[0].count("refused") == MOST_SHOWN
