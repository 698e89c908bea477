"""Keys, certificates and the local line to Flower's processes."""

import stat
import subprocess
import sys
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from train_distributed.flower.bundle import write_bundle
from train_distributed.flower.certificates import write_certificates
from train_distributed.flower.party import read_private, read_public, write_party
from train_distributed.flower.pipe import open_desk
from train_distributed.flower.processes import free_port, running, wait_for_port


def test_keys_are_private_and_never_overwritten(tmp_path: Path) -> None:
    write_party(tmp_path / "party")
    for name in ("private.json", "node-key"):
        assert stat.S_IMODE((tmp_path / "party" / name).stat().st_mode) == 0o600
    keys, public = read_private(tmp_path / "party"), read_public(tmp_path / "party")
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
    with pytest.raises(ValueError, match="must hold"):
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


def test_a_desk_answers_those_who_know_its_key() -> None:
    with open_desk() as desk:
        assert stat.S_IMODE(desk.folder.stat().st_mode) == 0o700
        threading.Thread(target=desk.serve, args=(lambda r: b"re: " + r,), daemon=True).start()
        address, key = str(desk.folder / "desk.sock"), (desk.folder / "desk.key").read_bytes()
        with pytest.raises(AuthenticationError):
            Client(address, authkey=b"wrong")
        with Client(address, authkey=key):
            pass  # an app that dies at once does no harm
        for _ in range(2):
            with Client(address, authkey=key) as app:
                app.send_bytes(b"x" * 10**6)
                assert app.recv_bytes() == b"re: " + b"x" * 10**6
    assert not desk.folder.exists()


def test_the_bundle_holds_the_two_pipes_and_nothing_of_ours(tmp_path: Path) -> None:
    write_bundle(tmp_path / "app")
    names = sorted(path.name for path in (tmp_path / "app").iterdir())
    assert names == ["pyproject.toml", "relay_client.py", "relay_server.py"]
    for name in names[1:]:
        text = (tmp_path / "app" / name).read_text()
        assert "train_distributed" not in text
        assert "pickle" not in text


def test_a_program_and_its_children_end_with_the_block(tmp_path: Path) -> None:
    port = free_port()
    server = f"import http.server as h; h.HTTPServer(('127.0.0.1', {port}), None).serve_forever()"
    with running([sys.executable, "-c", server], tmp_path, tmp_path / "log") as process:
        wait_for_port("127.0.0.1", port, process, 30)
        assert process.poll() is None
    assert process.poll() is not None
    with (
        running([sys.executable, "-c", "raise SystemExit(3)"], tmp_path, tmp_path / "log") as gone,
        pytest.raises(TimeoutError, match="must listen on"),
    ):
        wait_for_port("127.0.0.1", port, gone, 20)


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_program_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = (
        "import sys, time\nfrom pathlib import Path\n"
        "from train_distributed.flower.processes import running\n"
        "with running([sys.executable, '-c', 'import time; time.sleep(600)'], Path(sys.argv[1]), "
        "Path(sys.argv[1]) / 'log') as child:\n"
        "    print(child.pid, flush=True)\n    time.sleep(600)\n"
    )
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", parent, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while _alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
