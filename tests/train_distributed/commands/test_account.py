"""`account` solves each of ε, δ and noise from the other two."""


def test_account_solves_each_direction(call):
    code, printed, _ = call("account", "--epsilon", "1", "--delta", "1e-5")
    assert code == 0
    assert "noise_multiplier  3.73063" in printed
    _, printed, _ = call("account", "--delta", "1e-5", "--noise-multiplier", "3.7306316")
    assert "epsilon           1.00000" in printed
    _, printed, _ = call("account", "--epsilon", "1", "--noise-multiplier", "3.7306316")
    assert "delta             1.00000" in printed or "delta             9.9999" in printed
