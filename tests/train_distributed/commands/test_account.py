"""`account` solves each of ε, δ and noise from the other two."""


def test_account_solves_each_direction(call):
    code, printed, _ = call("account", "--epsilon", "1", "--delta", "1e-5")
    assert code == 0
    assert "noise_multiplier  3.73063" in printed
    _, printed, _ = call("account", "--delta", "1e-5", "--noise-multiplier", "3.7306316")
    assert "epsilon           1.00000" in printed
    _, printed, _ = call("account", "--epsilon", "1", "--noise-multiplier", "3.7306316")
    assert "delta             1.00000" in printed or "delta             9.9999" in printed


def test_account_says_whom_the_promise_needs_and_who_adds_how_much(call):
    promise = ("account", "--epsilon", "1", "--delta", "1e-5", "--users", "100")
    _, by_users, _ = call(*promise)
    assert "holds if          50 of 100 users are honest" in by_users
    assert "noise of each     0.52759" in by_users  # 3.7306316 / sqrt(50)
    _, by_servers, _ = call(*promise, "--noise-by", "servers")
    assert "holds if          1 of 2 servers are honest" in by_servers
    assert "noise of each     3.73063" in by_servers
    assert "noise in the sum  5.27590" in by_users
    assert "noise in the sum  5.27590" in by_servers  # both 3.7306316 sqrt(2)
