"""`blind-averaging`: commands, helps, what is retired, loaded, and added as docs/ say."""

import functools
import io
import json
import re
import subprocess
import sys
import tarfile
import tomllib
from contextlib import redirect_stdout
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from embed import EmbeddingSet, PublicTransform
from embed.__main__ import MENU as EMBED
from pretrain.__main__ import MENU as PRETRAIN
from pretrain.retired import RETIRED, RIVALS, Retired
from tests.embedding_sets import clusters
from train_distributed.__main__ import MENU, ROOMS
from train_distributed.commands import options
from train_distributed.commands.federation import Init
from train_distributed.commands.federation.collecting import MakeWindow
from train_distributed.commands.rehearsing import Demo
from train_distributed.one_shot.request import Noise
from train_distributed.research.experiments.catalogue import EXPERIMENTS
from train_distributed.research.experiments.conditions import ExperimentName
from train_distributed.research.protection import study
from train_distributed.research.rivals import learn
from train_distributed.research.rivals.options import OPTIONS

ROOT = Path(__file__).parents[3]
BY_SERVERS = ["1 of 2 servers are honest", "     3.73063", "noise in the sum  5.27590"]
WORDS = dict(ROOMS.lines())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@functools.cache
def helped(typed: str) -> str:
    with redirect_stdout(io.StringIO()) as said, pytest.raises(SystemExit) as stopped:
        ROOMS.parse([*typed.split(), "--help"], "blind-averaging")
    assert not stopped.value.code
    return said.getvalue()


def test_help_lists_every_command_of_every_room_once(say) -> None:
    printed = say.done("--help")
    listed = re.findall(r"^  (\S+(?: \S+)?)  +(\S.*[.`])$", printed, re.MULTILINE)
    names = [name for name, _ in ROOMS.lines()]
    assert [name for name, _ in listed] == names
    assert {"run", "federation init", "pretrain simclr", "embed run", "heads fit"} <= set(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", WORDS)
def test_every_command_explains_its_options(say, name: str) -> None:
    own = name.startswith("heads")  # a room that parses its own command
    printed = say.done(*name.split(), "--help") if own else helped(name)
    assert printed.startswith(f"usage: blind-averaging {name} [-h]")
    assert own or " ".join(WORDS[name].split()) in " ".join(printed.split())


def test_help_shows_the_options_of_the_method_that_is_typed() -> None:
    assert "--l2-reg" not in helped("run")  # of a method with heads alone
    assert "--l2-reg" in helped("run --method softmax")
    assert "--l2-reg" in helped("simulate --method=svm")
    assert helped("run").count("\n") <= 100


def test_it_is_declared_as_a_program_says_its_version_and_has_a_default(say, call, monkeypatch):
    module, _, name = PROJECT["scripts"]["blind-averaging"].partition(":")
    assert callable(getattr(import_module(module), name))
    monkeypatch.setattr("train_distributed.__main__.version", lambda name: f"1.2 of {name}")
    assert say("--version") == (0, f"blind-averaging 1.2 of {PROJECT['name']}\n", "")
    ran = []
    monkeypatch.setattr(Demo, "run", lambda self: ran.append(self))
    assert say() == call() == (0, "", "")
    assert ran == [Demo(), Demo()]
    account = ("account --epsilon 1 --delta 1e-5", "account --epsilon 0", "account --colour red")
    for typed in (*account, "run --epsilon soon", "federation join", "sweep all"):
        code, printed, error = call(typed)  # ends as the module does
        error = error.replace("python -m train_distributed", "blind-averaging")
        assert say(typed) == (code, printed, error)


def test_options_offer_what_their_rooms_know() -> None:
    rivals = [name.split()[1] for name in WORDS if name.startswith("rival ")]
    assert {*get_args(options.MethodName), *rivals} == set(learn.ALL_METHODS)
    assert set(RIVALS) == set(OPTIONS) == set(rivals)
    assert get_args(options.Noise) == get_args(Noise)
    assert list(get_args(ExperimentName)) == list(EXPERIMENTS)
    assert get_args(options.Cost) == get_args(study.Cost)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--epsilon 1 --delta 1e-5", ["noise_multiplier  3.73063"]),
        ("--delta 1e-5 --noise-multiplier 3.7306316", ["epsilon           1.00000"]),
        ("--epsilon 1 --noise-multiplier 3.73063165", ["delta             9.9999"]),
        ("--epsilon 1 --delta 1e-5 --users 100", ["50 of 100 users are honest", "     0.52759"]),
        ("--epsilon 1 --delta 1e-5 --users 100 --noise-by servers", BY_SERVERS),
    ],
)
def test_account_solves_each_of_three_from_two_others(call, typed: str, said: list[str]) -> None:
    printed = call.done(f"account {typed}")
    assert [words for words in said if words not in printed] == []


@pytest.mark.parametrize(
    ("retired", "command"), [(each, command) for each in RETIRED for command in each.commands]
)
def test_what_is_retired_is_refused_in_one_line(say, retired: Retired, command: str) -> None:
    """As typed, as Python spells it, and with a value; whatever else is on the line."""
    name, _, value = retired.option.partition(" ")
    spelled = f"{name[:2]}{name[2:].replace('-', '_')}={value or 1}"
    typed = [["--seed", "1", *retired.option.split()], [spelled] if name else ["--help"]]
    if name and not name.startswith("--"):
        typed = [[name, "--seeds", "1"]]
    for words in typed:
        assert say(*command.split(), *words) == (2, "", f"error: {retired.line(command)}\n")
    assert (command in WORDS) == bool(name)
    if name:
        shown = helped(command)
        assert (name in re.findall(r"--[a-z0-9-]+", shown)) == bool(value)
        assert not value or value not in re.findall(r"[\w-]+", shown)


def test_other_words_are_not_refused(capsys: pytest.CaptureFixture[str]) -> None:
    others = ("--method softmax", "--alphabet 1", "--out alpha", "--method-of class-sums")
    for typed in (*others, "class-sums --method svm"):
        assert not any(each.typed("run", typed.split()) for each in RETIRED)
    for menu, line in ((MENU, "run --alpha 1"), (EMBED, "fit-transform --no-whiten")):
        with pytest.raises(SystemExit, match="2"):
            menu.parse(line.split(), "python -m room")
        assert "has been retired: " in capsys.readouterr().err


HEAVY = {
    *("torch", "torchvision", "timm", "safetensors", "matplotlib", "PIL", "sklearn", "scipy"),
    *("pandas", "mlxtend", "networkx", "dp_accounting", "opacus", "skimage"),
}
# All command lines run in one process, so what one loads is there for all after it: the first is
# the one that is named. After them, the modules of a room.
PROGRAM = """
import contextlib, importlib, io, json, pkgutil, runpy, sys

found, before = [], set(sys.modules)
for module, *arguments in json.loads(sys.argv[1]):
    sys.argv = [module, *arguments]
    for name in ("pretrain", "embed", "heads", "train_distributed"):
        sys.modules.pop(name + ".__main__", None)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            assert not stop.code, (module, arguments, stop.code)
    assert said.getvalue()
    found.append(sorted(set(sys.modules) - before))
    before |= set(sys.modules)
room = importlib.import_module("train_distributed.commands.federation")
for module in pkgutil.iter_modules(room.__path__, room.__name__ + "."):
    importlib.import_module(module.name)
print(json.dumps([*found, sorted(sys.modules)]))
"""


def loaded(typed: list[str]) -> list[list[str]]:
    """Per command line, the modules that it was the first to load; at last, all."""
    lines = json.dumps([line.split() for line in typed])
    command = [sys.executable, "-W", "error", "-c", PROGRAM, lines]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def heavy(names: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in names} & HEAVY


def test_options_are_explained_and_epsilon_is_solved_without_a_heavy_package() -> None:
    typed = ["train_distributed account --help"]
    for menu in (PRETRAIN, EMBED, MENU):
        room = menu.room or "train_distributed"
        typed += [f"{room} {name} --help" for name in (*menu.commands, "")]
    typed += [f"train_distributed {name} --help" for name in ("federation", "ledger")]
    typed += ["heads --help", "heads fit --help"]
    typed += ["train_distributed account --epsilon 1 --delta 1e-5"]
    found = loaded(typed)
    assert len(typed) >= 25
    for line, names in zip(typed, found, strict=False):  # keys and graphs need scipy.special
        assert heavy(names) <= ({"scipy"} if "federation" in line or "1e-5" in line else set())
    ours = [name for name in found[0] if name.startswith("train_distributed.commands.")]
    assert ours == ["train_distributed.commands.counting"]  # of the command that was typed alone


def test_a_federation_s_commands_load_torch_for_rows_and_sums_alone(tmp_path: Path) -> None:
    parties = {"a": "--rows 12", "b": "--rows 12", "adder": "--server --hosts localhost"}
    join, status = (f"train_distributed federation {word} --folder" for word in ("join", "status"))
    typed = [f"{join} {tmp_path}/{name} --name {name} {more}" for name, more in parties.items()]
    transform, fed = tmp_path / "public.safetensors", tmp_path / "fed"
    PublicTransform.fit(clusters(6, 2, 4)).save(transform)
    joined = loaded(typed)
    files = tuple(tmp_path / name / f"{name}.party.json" for name in parties)
    Init(fed, files, transform, ("localhost",), num_classes=2, protocol="shares").run()
    MakeWindow(fed, ("h:1", "h:2"), tmp_path / "window").run()  # computes noise and lengths
    ran = loaded([f"{status} {fed}", f"{status} {tmp_path}/a"])
    assert heavy(ran[-1]) == {"scipy"}
    assert all(heavy(names) <= {"scipy"} for names in (*joined, *ran))
    words = f"train_distributed federation init --folder {tmp_path}/again --hosts localhost"
    words += f" --parties {' '.join(map(str, files))} --transform {transform} --num-classes 2"
    assert heavy(loaded([f"{words} --protocol shares"])[0]) <= {"torch", "safetensors", "scipy"}


# Hides the named distributions and modules, then starts the program.
CORE = """
import sys
from dataclasses import replace
from importlib import metadata

hidden, modules = map(set, (sys.argv[1].split(","), sys.argv[2].split(",")))


def from_name(name, real=metadata.Distribution.from_name):
    if name.lower().replace("_", "-") in hidden:
        raise metadata.PackageNotFoundError(name)
    return real(name)


sys.modules.update(dict.fromkeys(modules))  # whose import fails
metadata.Distribution.from_name = from_name

from pretrain import recipes
from train_distributed.__main__ import main

recipes.DIGITS = replace(recipes.DIGITS, epochs=1)  # seconds rather than a minute
sys.argv[:] = ["blind-averaging", *sys.argv[3:]]
sys.exit(main())
"""


def plain(name: str) -> str:
    return re.split(r"[ ;<>=!~\[(]", name)[0].lower().replace("_", "-")


def needed() -> set[str]:
    """Names of the core dependencies and of all that they need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, left = {"blind-averaging"}, list(map(plain, project["dependencies"]))
    while left:
        if (name := left.pop()) in found:
            continue
        found.add(name)
        try:
            wanted = requires(name) or ()
        except PackageNotFoundError:  # of another platform
            continue
        left += [plain(each) for each in wanted if "extra ==" not in each]
    return found


def test_the_demo_writes_its_table_and_picture(tmp_path: Path) -> None:
    """The first command of the README, smaller, where extras are hidden."""
    core, modules, hidden = needed(), set(), set()
    for module, names in packages_distributions().items():
        names = {plain(name) for name in names}
        if not names & core:
            modules.add(module)
            hidden |= names
    assert {"dp_accounting", "opacus", "starlette", "datasets"} <= modules
    assert "torch" not in modules
    words = [sys.executable, "-c", CORE, ",".join(hidden), ",".join(modules), "demo"]
    words += ["--seeds", "1", "--users", "10", "--epsilons", "3", "--out", "demo"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "discriminant" in done.stdout
    written = {path.name for path in (tmp_path / "demo").iterdir()}
    assert written == {"accuracy.png", "accuracy_pixels.png", "results.json"}


COMMAND = """
from dataclasses import dataclass

from pretrain.public import function
from train_distributed.commands import COMMANDS
from train_distributed.commands.releasing import Run


@dataclass(frozen=True, kw_only=True)
class Care:
    \"\"\"How careful.\"\"\"

    half: bool = True
    \"\"\"Take half of it.\"\"\"


@dataclass(frozen=True, kw_only=True)
class Careful(Care, Run):
    \"\"\"Train as `run` does, at half of the epsilon.\"\"\"

    command = "careful"

    @classmethod
    def groups(cls, typed):
        return super().groups(typed) | {"care": (Care,)}


careful = function("careful", Careful)
COMMANDS["careful"] = f"{__name__}:careful"
"""
MAIN = """
import json, sys
from train_distributed.__main__ import main

for line in json.load(open("lines.json")):
    sys.argv[1:] = line.split()
    try:
        code = main()
    except SystemExit as stop:  # of --help
        code = stop.code
    if code:
        sys.exit(f"{line}: {code}")
"""
SETS = "--embeddings mine --public public --epsilon 5"
PICTURES = "--layout user-class --encoder pooled.safetensors"
LINES = [
    f"careful {SETS} --out careful",
    "card --model careful --out card",
    f"run {SETS} --method plain-mean --components 4 --out plain",
    "card --model plain --out plain_card",
    f"simulate {SETS} --method plain-mean --users 20 --sums 2 --out played",
    "embed fit-transform --public public --components 4 --out transform",
    *(f"federation join --folder u{user} --name u{user} --rows 9" for user in range(3)),
    "federation init --folder fed --transform transform/transform.safetensors --hosts 127.0.0.1 "
    "--num-classes 3 --config plain.json --parties u0/u0.party.json u1/u1.party.json "
    "u2/u2.party.json",
    f"embed run --data mine_pictures --out m {PICTURES} --class-names a b",
    f"embed run --data public_pictures --out p {PICTURES}",
    "run --embeddings m --public p --epsilon 3 --delta 1e-3 --out pooled",
    "card --model pooled --out pooled_card",
    f"predict --model pooled --data mine_pictures {PICTURES} --out found",
    *("--help", "careful --help", "run --help", "embed run --help"),
]


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where one program with the entries of docs/extending.md ran all lines, and what it said."""
    folder = tmp_path_factory.mktemp("added")
    clusters(1200, 3, 8, scale=1, noise=0.1, test=300, users=30).save(folder / "mine")
    clusters(1200, 3, 8, scale=1, noise=0.1, seed=1).save(folder / "public")
    draw = np.random.default_rng(1)
    for name in ("mine", "public"):
        for number in range(120):
            shade = np.full((8, 8, 3), 60 + 120 * (number % 2)) + draw.integers(0, 50, (8, 8, 3))
            place = folder / f"{name}_pictures" / f"user{number % 10}" / "ab"[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(shade.astype(np.uint8)).save(place / f"{number}.png")
    config = {"method": "plain-mean", "options": {}, "privacy": {"epsilon": 5.0, "delta": 1e-5}}
    (folder / "plain.json").write_text(json.dumps(config))
    page = (ROOT / "docs" / "extending.md").read_text()
    encoder, method = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    method = method.partition("if __name__")[0]
    (folder / "program.py").write_text(encoder + method + COMMAND + MAIN)
    (folder / "lines.json").write_text(json.dumps(LINES))
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_each_is_in_help_report_and_card(added: tuple[Path, str]) -> None:
    folder, said = added
    for words in ("Take half of it", "plain-mean", "3 users", "pooled:"):
        assert words in said
    assert re.search("^  careful +Train as `run` does, at half", said, re.MULTILINE)
    for name, words in {
        "card/card.md": "blind-averaging careful --embeddings mine",
        "plain_card/card.md": "the nearest class mean",
        "fed/federation.json": '"plain-mean"',
        **dict.fromkeys(("m/meta.json", "pooled/report.json"), "pooled.safetensors"),
        "pooled_card/card.md": "pooled.safetensors",
    }.items():
        assert words in (folder / name).read_text()
    careful, plain, played = (
        json.loads((folder / name / "report.json").read_text())
        for name in ("careful", "plain", "played")
    )
    assert careful["configuration"]["command"] == "careful"
    assert (plain["method"], plain["prior"]) == ("plain-mean", "equal")
    assert plain["suitable_for_release"] is True
    assert plain["test_accuracy"] > 0.9
    assert played["test_accuracy"] > 0.8


CLASSES = ("normal", "pneumonia")


def lines() -> list[str]:
    text = (ROOT / "docs" / "data.md").read_text()
    page = text[text.index("## Pictures") : text.index("## Encoders")]
    block = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)[0].replace("\\\n", " ")
    return [line.split(" # ")[0] for line in block.strip().splitlines()]


def picture(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (40, 36, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def laid_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight pictures of four users and two classes, as every command expects them."""
    datasets = pytest.importorskip("datasets")
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    files = [picture(k) for k in range(8)]
    finding = [CLASSES[k % 2] for k in range(8)]
    site = [f"clinic {k // 2}" for k in range(8)]
    for k in range(8):
        of_class = f"{finding[k]}/{k}.png"
        own = (f"photos/{of_class}", f"clinics/{site[k]}/{of_class}")
        for path in map(Path, (*own, f"pictures/{k}.png", f"xrays/{k}.png")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[k])
    rows = [f"{k}.png,{finding[k]},{site[k]},{'test' if k > 5 else 'train'}" for k in range(8)]
    Path("xrays/table.csv").write_text("\n".join(["image,finding,hospital,part", *rows]) + "\n")
    for part in range(2):
        own = slice(4 * part, 4 * part + 4)
        columns = {"image": files[own], "label": finding[own], "site": site[own]}
        pq.write_table(pa.table(columns), f"scans-{part}.parquet")
        with tarfile.open(f"shard-{part}.tar", "w") as tar:
            for k in range(8)[own]:
                fields = json.dumps({"finding": finding[k], "user": site[k]}).encode()
                for name, content in ((f"{k}.png", files[k]), (f"{k}.json", fields)):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))}
    features = datasets.Features(kinds | {"site": datasets.Value("string")})
    images = [{"bytes": file, "path": None} for file in files]
    columns = {"image": images, "label": finding, "site": site}
    whole = datasets.Dataset.from_dict(columns, features=features)
    parts = {"train": whole.select(range(5)), "test": whole.select(range(5, 8))}
    datasets.DatasetDict(parts).save_to_disk("saved")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 32, 32), np.uint8)
    np.savez("digits.npz", x_train=pixels, y_train=np.arange(8))


def test_every_command_works(laid_out: None, say) -> None:
    for line in lines():
        code, _, error = say(line.removeprefix("blind-averaging "))
        assert code == 0, (line, error)
    sets = {name: EmbeddingSet.open(name) for name in "abcdefgh"}
    assert {len(each) for each in sets.values()} == {8}
    assert [name for name, each in sets.items() if each.users is not None] == list("bdefg")
    rows = [int(Path(sets["b"].name(row)).stem) for row in range(8)]
    for name in "bcdefg":  # the same pictures: the same embeddings, to the bit
        found = np.array(sets[name].embeddings)
        if name == "b":
            found[rows] = sets[name].embeddings
        assert np.array_equal(found, sets["d"].embeddings), name
    assert sets["d"].split.tolist() == [0] * 6 + [1] * 2
    assert sets["e"].split.sum() == 2  # a user of four
    assert sets["f"].meta["users_in_both_splits"] == 1
    assert [sets[name].declared_classes for name in "bdf"] == [CLASSES] * 3
    assert EmbeddingSet.open("i").declared_classes == ("not pneumonia", "pneumonia")
