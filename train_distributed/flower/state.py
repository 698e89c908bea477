from pathlib import Path


def party_state(digest: bytes, party: str, root: Path) -> Path:
    return root / f"{digest.hex()[:16]}-{party}"
