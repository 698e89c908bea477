"""The list of mutants fits the code: every old text is there once, every named test exists."""

import ast

import pytest

from tests import mutants

LIST = mutants.read()


@pytest.mark.parametrize("mutant", LIST, ids=lambda mutant: mutant.name)
def test_the_fault_can_be_planted(mutant):
    ast.parse(mutants.planted(mutant))


def test_every_killer_exists():
    """With its parameters: one name that pytest does not know stops them all."""
    killers = {killer for mutant in LIST for killer in mutant.killers}
    parametrised = {killer for killer in killers if killer.endswith("]")}
    for killer in killers - parametrised:
        file, _, name = killer.partition("::")
        assert f"\ndef {name}(" in (mutants.ROOT / file).read_text(), killer
    code, printed = mutants.run_tests(mutants.ROOT, ["--collect-only", *parametrised])
    assert code == 0, printed


def test_a_list_that_no_longer_fits_is_refused(tmp_path):
    mutant = LIST[0]
    (tmp_path / mutant.file).parent.mkdir(parents=True)
    (tmp_path / mutant.file).write_text(mutant.old * 2)
    with pytest.raises(ValueError, match=r"must occur once in .*, got it 2 times"):
        mutants.planted(mutant, tmp_path)
    entry = '[[mutant]]\nname = "a"\nfile = "f"\nold = "x"\nnew = "y"\nkillers = []\n'
    (tmp_path / "twice.toml").write_text(2 * entry)
    with pytest.raises(ValueError, match="names must differ, got 'a' twice"):
        mutants.read(tmp_path / "twice.toml")
