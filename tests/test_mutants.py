"""The list of mutants fits the code: every old text is there once, every named test exists."""

import ast

import pytest

from tests import mutants

LIST = mutants.read()


@pytest.mark.parametrize("mutant", LIST, ids=lambda mutant: mutant.name)
def test_the_fault_can_be_planted(mutant):
    ast.parse(mutants.planted(mutant))


def test_names_differ_and_every_killer_exists():
    """With its parameters: one name that pytest does not know stops them all."""
    assert len({mutant.name for mutant in LIST}) == len(LIST)
    killers = {killer for mutant in LIST for killer in mutant.killers}
    parametrised = {killer for killer in killers if killer.endswith("]")}
    for killer in killers - parametrised:
        file, _, name = killer.partition("::")
        assert f"\ndef {name}(" in (mutants.ROOT / file).read_text(), killer
    code, printed = mutants.run_tests(mutants.ROOT, ["--collect-only", *parametrised])
    assert code == 0, printed
