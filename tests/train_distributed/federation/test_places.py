"""Strangers' lines leave first, oldest first, from where most of them are; users' lines stay."""

from train_distributed.federation.places import Places


class Held:
    """A line that remembers whether it had to leave."""

    def __init__(self) -> None:
        self.here = True

    def leave(self, why: str) -> None:
        self.here = False


def enter(places: Places, address: str, count: int) -> list[Held]:
    lines = [Held() for _ in range(count)]
    for line in lines:
        places.enter(line, address)
    return lines


def test_the_oldest_stranger_leaves_for_the_newest() -> None:
    lines = enter(Places(3, 2), "192.0.2.1", 5)
    assert [line.here for line in lines] == [False, False, True, True, True]


def test_a_crowd_from_one_address_shuts_nobody_else_out() -> None:
    places = Places(100, 2)
    (other,) = enter(places, "198.51.100.1", 1)
    crowd = enter(places, "192.0.2.1", 1000)
    assert other.here
    assert sum(line.here for line in crowd) == 99


def test_all_addresses_of_one_network_are_one_crowd() -> None:
    places = Places(10, 2)
    (other,) = enter(places, "2001:db8:2::1", 1)
    crowd = [enter(places, f"2001:db8:1::{i:x}", 1)[0] for i in range(50)]
    assert other.here
    assert sum(line.here for line in crowd) == 9


def test_a_proven_line_is_out_of_reach_of_strangers_at_its_own_address() -> None:
    places = Places(10, 2)
    (user,) = enter(places, "192.0.2.1", 1)
    places.prove(user, b"key")
    enter(places, "192.0.2.1", 1000)
    assert user.here


def test_a_key_has_its_own_places_and_no_more() -> None:
    places = Places(10, 2)
    lines = enter(places, "192.0.2.1", 3)
    for line in lines:
        places.prove(line, b"key")
        places.prove(line, b"key")
    assert [line.here for line in lines] == [False, True, True]
    (other,) = enter(places, "192.0.2.1", 1)
    places.prove(other, b"other")
    assert other.here


def test_places_of_lines_that_are_gone_are_free() -> None:
    places = Places(2, 1)
    for _ in range(5):
        (line,) = enter(places, "192.0.2.1", 1)
        places.gone(line)
        places.prove(line, b"key")  # too late: it holds no place of the key's
    kept = enter(places, "192.0.2.1", 2)
    assert all(line.here for line in kept)
    places.make_room()
    assert [line.here for line in kept] == [False, True]


def test_room_can_be_made_where_nobody_is() -> None:
    Places(2, 1).make_room()
