"""Keys and certificates."""

import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from train_distributed.flower.documents.certificates import write_certificates
from train_distributed.flower.documents.party import public_keys, read_private, write_party


def test_keys_are_private_and_never_overwritten(tmp_path: Path) -> None:
    write_party(tmp_path / "party")
    for name in ("private.json", "node-key"):
        assert stat.S_IMODE((tmp_path / "party" / name).stat().st_mode) == 0o600
    keys = read_private(tmp_path / "party")
    public = public_keys(keys.public)
    assert keys.public.verifying.hex() == public["verifying"]
    assert keys.public.sealing.hex() == public["sealing"]
    secret = (tmp_path / "party" / "private.json").read_text()
    assert public["verifying"] not in secret
    with pytest.raises(FileExistsError):
        write_party(tmp_path / "party")
    assert read_private(tmp_path / "party") == keys
    node = load_ssh_private_key((tmp_path / "party" / "node-key").read_bytes(), None)
    other = load_ssh_public_key((tmp_path / "party" / "node-key.pub").read_bytes())
    assert isinstance(node, ec.EllipticCurvePrivateKey)
    assert node.public_key() == other


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"signing": "00", "opening": "00"}'])
def test_a_file_without_keys_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "private.json").write_text(content)
    with pytest.raises(ValueError, match=r"private\.json.* must (be|hold)"):
        read_private(tmp_path)


def test_the_certificate_is_the_authoritys_for_these_hosts(tmp_path: Path) -> None:
    write_certificates(tmp_path, ["sum.example.org", "10.0.0.7"])
    ca = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    server = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["sum.example.org"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600
