"""Numbers of the parties of a secure sum: users, computation servers, everyone."""

FIRST_SERVER = 2**31  # users have smaller identities; server j has FIRST_SERVER + j
EVERYONE = 2**32 - 1


def name_of(party: int) -> str:
    """A party as people say it."""
    if party < FIRST_SERVER:
        return f"user {party}"
    return f"computation server {party - FIRST_SERVER}" if party > FIRST_SERVER else "operator"
