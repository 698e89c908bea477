"""The file that `select` writes and `run --config` reads: damaged ones are refused in one line."""

import json

import pytest

CONFIGURATION = {
    "method": "softmax",
    "transform_options": {"components": 3},
    "options": {"l2_reg": 1.0},
    "privacy": {"epsilon": 1.0, "delta": 1e-5},
    "public_hash": None,
}
BAD_CONFIGURATIONS = [
    ({"options": {"known_noise": [0]}}, "known_noise is no option"),
    ({"options": {"epochs": 2.5, "solver": "sgd"}}, "epochs must be a whole number or None"),
    ({"options": {"l2_reg": True}}, "l2_reg must be a number or None"),
    ({"options": {"edges": 5}, "method": "admm-dual"}, "edges must be"),
    ({"transform_options": {"components": "3"}}, "components must be a whole number or None"),
    ({"privacy": {"epsilon": 1.0, "delta": 1e-5, "unit": "user"}}, "privacy must be what config"),
    ({"privacy": {"epsilon": "soon", "delta": 1e-5}}, "could not convert"),
    ({"users": 3}, "unexpected keyword"),
]


@pytest.fixture
def run(call, sets, tmp_path):
    """Runs with a configuration."""

    def with_configuration(change):
        path = tmp_path / "c.json"
        path.write_text(json.dumps(CONFIGURATION | change))
        return call("run", "--embeddings", sets[0], "--public", sets[1], "--config", str(path))

    return with_configuration


@pytest.mark.parametrize(("change", "message"), BAD_CONFIGURATIONS)
def test_a_damaged_configuration_is_refused_in_one_line(run, tmp_path, change, message):
    before = sorted(tmp_path.rglob("*"))
    code, _, error = run(change)
    assert code == 2
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error
    (tmp_path / "c.json").unlink()
    assert sorted(tmp_path.rglob("*")) == before


def test_the_one_they_are_made_of_is_taken(run):
    assert run({})[0] == 0
