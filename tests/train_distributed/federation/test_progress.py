"""Whoever waits is told for whom, and who refused and why, in one line each time that changes."""

from train_distributed.federation.progress import MOST_SHOWN, Log


def test_an_operator_that_waits_is_told_for_whom_and_why() -> None:
    said = list[str]()
    log = Log(say=lambda line: said.append(line.partition(" s  ")[2]))
    log.present([], 3, ["a", "b", "c"])
    log.present([], 3, ["a", "b", "c"])
    log.refuse("user 1 (b)", "refused: budget")
    log.present([0], 3, ["c"])
    log.present([0, 2], 3)
    log.stage("start", [0, 2])
    log.refuse("user 2 (c)", b"refused: \x1b")
    log.answered(1, 2)
    log.answered(1, 2)
    assert said == [
        "0 of 3 present; waiting for a, b, c",
        "1 of 3 present; user 1 (b): refused: budget; waiting for c",
        "2 of 3 present; user 1 (b): refused: budget",
        "start: 1 of 2; user 2 (c): refused: \\x1b",
        "start: 1 of 2",
    ]


def test_a_crowd_does_not_fill_the_line() -> None:
    said = list[str]()
    log = Log(say=said.append)
    for number in range(50):
        log.refuse(f"user {number}", "refused")
    log.present([], 100, map(str, range(100)))
    assert said[0].endswith("waiting for 0, 1, 2, 3, 4, ...")
    assert said[0].count("refused") == MOST_SHOWN
