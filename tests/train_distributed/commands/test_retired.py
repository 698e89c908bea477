"""What has been retired is refused in one line that says what to do instead."""

import re
from collections.abc import Callable

import pytest

from embed.__main__ import MENU as EMBED
from pretrain.retired import RETIRED, Retired
from train_distributed.__main__ import MENU, ROOMS

CASES = [(each, command) for each in RETIRED for command in each.commands]
Say = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(("retired", "command"), CASES)
def test_it_is_refused_with_its_line(say: Say, retired: Retired, command: str) -> None:
    """As typed, as Python spells it, and with a value; whatever else is on the line."""
    line = f"error: {retired.line(command)}\n"
    assert f"{command} {retired.option}".strip() in line
    name, _, value = retired.option.partition(" ")
    spelled = f"{name[:2]}{name[2:].replace('-', '_')}={value or 1}"
    typed = [["--seed", "1", *retired.option.split()], [spelled] if name else ["--help"]]
    if name and not name.startswith("--"):
        typed = [[name, "--seeds", "1"]]
    for words in typed:
        assert say(*command.split(), *words) == (2, "", line)


@pytest.mark.parametrize(("retired", "command"), CASES)
def test_none_is_still_there_and_its_command_is(say: Say, retired: Retired, command: str) -> None:
    every = dict(ROOMS.lines())
    if not retired.option:
        assert command not in every
        return
    assert command in every
    code, printed, _ = say(*command.split(), "--help")
    assert code == 0
    name, _, value = retired.option.partition(" ")
    assert (name in re.findall(r"--[a-z0-9-]+", printed)) == bool(value)
    assert not value or value not in re.findall(r"[\w-]+", printed)


def test_modules_of_rooms_refuse_as_the_program_does(capsys: pytest.CaptureFixture[str]) -> None:
    for menu, program, command in (
        (MENU, "train_distributed", "run --alpha 1"),
        (MENU, "train_distributed", "federation window --adders h:1"),
        (MENU, "train_distributed", "federation adder --folder f"),
        (EMBED, "embed", "fit-transform --no-whiten"),
    ):
        with pytest.raises(SystemExit) as stopped:
            menu.parse(command.split(), f"python -m {program}")
        assert stopped.value.code == 2
        assert "has been retired: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed",
    [
        "--method softmax",
        "--alphabet 1",
        "--out alpha",
        "--method-of class-sums",
        "class-sums --method svm",
    ],
)
def test_other_words_are_not_refused(typed: str) -> None:
    words = typed.split()
    assert not any(each.typed("run", words) for each in RETIRED)
    assert not any(
        each.typed("embed run", ["--alpha", "--method", "class-sums"]) for each in RETIRED
    )


SETS = "--embeddings DIR --public DIR"
DOCUMENTED = {  # commands of the documentation of 0.2, and what they are now told; "": they run
    "account --epsilon 1 --delta 1e-5 --users 100 --noise-by servers": "",
    "audit --method evaluation": "",
    "audit --pipeline PHOTOS --layout user-class": "tests compare neighbours",
    "audit --noise-by servers --trials 250": "take --method servers",
    "audit --method centralised-svm --users 1 --rows 4 --features 1": "has other sizes",
    "audit --trials 250 --out results/audit": "",
    "embed concat --sets mine-lite0 mine-lite2 --out mine": "",
    "embed exclude --embeddings DIR --public PUBLIC --out mine": "",
    "embed fit-transform --public DIR --directions mixed --components 128": "leave it out",
    "embed fit-transform --public PUBLIC --components 128 --out transform": "",
    "embed hold-out --embeddings mine --share 0.2 --out held": "",
    "embed run --data parquet:scans-*.parquet --label-is pneumonia --resize 32 --out i": "",
    "embed run --data hf:saved --user-column site --resize 32": "--columns user=NAME",
    "embed run --data wds:s-{0..1}.tar --label-column finding": "--columns label=NAME",
    "embed run --data PHOTOS --encoder timm:tf_efficientnet_lite0 --weights package": "",
    "embed run --data p --layout user-class --resize 32 --shard 0/2": "RANK=i WORLD_SIZE=n",
    "embed run --data s.npz --encoder timm:x --image-size 128": "NAME@224",
    "evaluate --model model --embeddings held --epsilon 0.5 --out evaluated": "",
    "federation init --folder fed --parties a.party.json --model m --hosts h --epsilon 0.5": "",
    "federation init --folder fed --protocol shares --parties a --transform t --hosts h": "",
    "federation join --folder me --name hospital-a --embeddings held --held-out": "",
    "federation report --folder a --invitation i --window w --embeddings e --accept D": "",
    "federation start --folder fed --out model": "",
    "federation window --folder fed --aggregators h:9301 h:9302 --hours 72 --out window": "",
    "ledger limit --embeddings mine --epsilon 3 --delta 1e-5": "",
    "ledger show --embeddings mine --reports model": "",
    "plot results/cifar10_lite0_frontier": "",
    "predict --model MODEL --data PICTURES --evaluate --out predicted": "",
    "protect --budget .4 --prefer-utility 1 --prefer-efficiency .01": "",
    "protect --images mnist_writers.npz --budget 0.4 --models 14": "the file of --settings",
    f"run {SETS} --epsilon 1": "",
    f"run --config chosen/configuration.json --epsilon 0.4 --honest-fraction 0.5 {SETS}": "",
    f"run {SETS} --directions mixed --components 128 --epsilon 1": "leave it out",
    f"run {SETS} --unit user --user-clip 10 --moments none --epsilon 3": "leave it out",
    "run --embeddings mine --transform transform.safetensors --epsilon 1": "as --public",
    f"run --method admm-dual --graph ring --iterations 10 --epsilon 1.2 {SETS}": "rival admm-dual",
    f"run --method charter-sum --cut-rounds 16 --epsilon 1.2 {SETS}": "rival charter-sum",
    "select --public DIR --users 1000 --rows-per-user 50 --num-classes 10": "type rehearse",
    f"sweep frontier {SETS} --out frontier": "",
    f"sweep trusted {SETS} --users 100 --rows-per-user 70 --epsilons 0.3 1 3": "rival centralised",
    f"sweep frontier --users 1000 --tasks 2 {SETS}": "leave it out",
    f"sweep users --lineup ours paper dp-fl --users 10 100 {SETS}": "methods",
    f"sweep selection --users 1000 --schemes iid {SETS}": "type rehearse",
    f"sweep user-level --epsilons 1 3 10 --seeds 3 {SETS}": "simulate --unit user",
}


@pytest.mark.parametrize("typed", DOCUMENTED)
def test_what_was_documented_is_done_or_refused_in_one_line(
    typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if not DOCUMENTED[typed]:
        assert callable(ROOMS.parse(typed.split(), "x").run)
        return
    with pytest.raises(SystemExit) as stopped:
        ROOMS.parse(typed.split(), "x")
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert DOCUMENTED[typed] in said
