"""Files of TLS become contexts, are read again when they change, and bad ones replace nothing."""

import datetime
import ssl
from pathlib import Path

import pytest
import trustme
from support.cases import case
from support.certificates import LONG_AGO, write_ca, write_tls

from vq.errors import InvalidArgument
from vq.security.tls import (
    ClientCertificates,
    Tls,
    TlsContexts,
    closed_early,
    expiry_of,
    why_no_tls,
)


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


def refusal(tls: Tls, **more: object) -> str:
    with pytest.raises(InvalidArgument) as refused:
        TlsContexts(tls, **{"serves": True, **more})  # type: ignore[arg-type]
    return str(refused.value)


def test_both_ends_take_nothing_below_tls_1_2_and_check_certificates(
    tmp_path: Path, ca: trustme.CA
) -> None:
    tls = write_tls(tmp_path, ca)
    contexts = TlsContexts(tls, serves=True, client_certificates=ClientCertificates.REQUIRED)
    for context in (contexts.client(), contexts.server()):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert context.verify_mode is ssl.CERT_REQUIRED
    assert contexts.client().check_hostname
    optional = TlsContexts(tls, serves=True, client_certificates=ClientCertificates.OPTIONAL)
    assert optional.server().verify_mode is ssl.CERT_OPTIONAL


def test_a_client_may_trust_what_its_machine_trusts() -> None:
    for tls in (Tls(), Tls(ca="system")):
        assert TlsContexts(tls).client().verify_mode is ssl.CERT_REQUIRED


def test_files_that_cannot_be_used_are_named_with_what_to_do(
    tmp_path: Path, ca: trustme.CA
) -> None:
    good = write_tls(tmp_path / "good", ca)
    other = write_tls(tmp_path / "other", ca)
    text = Path(str(good.certificate)).read_text()
    no_pem = tmp_path / "no.pem"
    no_pem.write_text("hello")
    no_pem.chmod(0o600)
    cut = tmp_path / "cut.pem"
    cut.write_text(text[: len(text) // 3])
    missing = tmp_path / "missing"
    for wanted, tls in (
        ("cannot be read: No such file", Tls(ca=missing)),
        ("certificate = .*missing.* cannot be read", Tls(certificate=missing, key=good.key)),
        ("key = .*missing.* cannot be read", Tls(certificate=good.certificate, key=missing)),
        ("no.pem' has no certificates", Tls(ca=no_pem, certificate=good.certificate, key=good.key)),
        ("not a certificate in PEM", Tls(certificate=no_pem, key=good.key)),
        ("cut.pem' is cut off", Tls(certificate=cut, key=good.key)),
        ("cut off in the middle", Tls(ca=cut, certificate=good.certificate, key=good.key)),
        ("does not belong to", Tls(certificate=good.certificate, key=other.key)),
        ("no private key in PEM", Tls(certificate=good.certificate, key=no_pem)),
    ):
        with case(wanted), pytest.raises(InvalidArgument, match=wanted):
            TlsContexts(tls, serves=tls.certificate is not None)
    with pytest.raises(InvalidArgument, match="is not the path"):
        Tls(ca=b"bytes")  # type: ignore[arg-type]


#: Of TLS to brokers, as a program, a command or a broker gives it.
_PAIR = (
    "tls_certificate and tls_key in the file that --config or VQ_CONFIG names, VQ_TLS_CERTIFICATE "
    "and VQ_TLS_KEY, --tls-certificate and --tls-key, or vq.Tls(certificate=..., key=...)"
)


def test_what_is_missing_is_told_with_each_way_to_give_it(tmp_path: Path, ca: trustme.CA) -> None:
    """And what is given: it may come from a shell that is nobody's thought."""
    good = write_tls(tmp_path, ca)
    text = refusal(Tls(ca=good.ca))
    assert f"tls_ca = {str(good.ca)!r} is given" in text
    assert f"no certificate and no key: give {_PAIR}. Without TLS" in text
    text = refusal(Tls(certificate=good.certificate))
    assert f"tls_certificate = {str(good.certificate)!r} is given, and no private key" in text
    assert "give tls_key in the file that" in text
    assert "VQ_TLS_KEY, --tls-key, or vq.Tls(key=...)" in text
    asked = {"client_certificates": ClientCertificates.REQUIRED}
    text = refusal(Tls(certificate=good.certificate, key=good.key), **asked)
    assert "client certificates are required" in text
    assert "VQ_TLS_CA, --tls-ca, or vq.Tls(ca=...)" in text
    with pytest.raises(InvalidArgument) as refused:
        Tls(key=good.key)
    assert f"tls_key = {str(good.key)!r} is given, and no certificate" in str(refused.value)
    assert "VQ_TLS_CERTIFICATE, --tls-certificate, or vq.Tls(certificate=...)" in str(refused.value)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path, ca: trustme.CA) -> None:
    tls = write_tls(tmp_path, ca)
    key = Path(str(tls.key))
    by_root = key.stat().st_uid == 0
    for mode in (0o604, 0o644, 0o620, *(() if by_root else (0o640,))):
        key.chmod(mode)
        with case(oct(mode)):
            assert f"mode {mode:04o}" in refusal(tls)
            assert "chmod 600" in refusal(tls)
    for mode in (0o600, 0o400, *((0o640, 0o440) if by_root else ())):
        key.chmod(mode)
        TlsContexts(tls, serves=True)


def test_a_key_with_a_password_is_refused_without_asking_for_it(
    tmp_path: Path, ca: trustme.CA
) -> None:
    from cryptography.hazmat.primitives import serialization

    tls = write_tls(tmp_path, ca)
    key = Path(str(tls.key))
    clear = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        clear.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    assert "is encrypted" in refusal(tls)


def test_the_key_may_stand_in_the_file_of_the_certificate(tmp_path: Path, ca: trustme.CA) -> None:
    tls = write_tls(tmp_path, ca)
    both = tmp_path / "both.pem"
    both.touch(mode=0o600)
    both.write_bytes(Path(str(tls.key)).read_bytes() + Path(str(tls.certificate)).read_bytes())
    TlsContexts(Tls(certificate=both), serves=True)
    both.chmod(0o644)
    assert "mode 0644" in refusal(Tls(certificate=both))


# Reload ---------------------------------------------------------------------------------------
def test_files_that_have_changed_are_used_from_the_next_look_on(
    tmp_path: Path, ca: trustme.CA
) -> None:
    until = datetime.datetime(2040, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
    tls = write_tls(tmp_path, ca)
    contexts = TlsContexts(tls, serves=True)
    before = contexts.server(), contexts.client()
    assert contexts.look()
    assert (contexts.server(), contexts.client()) == before, "nothing has changed"
    write_tls(tmp_path, ca, expires=until)
    assert contexts.server() is before[0], "nobody has looked"
    assert contexts.look()
    assert contexts.server() is not before[0]
    assert contexts.client() is not before[1]
    assert contexts.expires_s == until.timestamp()
    assert contexts.reloads == 1


def test_half_written_and_mismatching_files_leave_the_earlier_contexts_in_use(
    tmp_path: Path, ca: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    """One log line tells, however often it is looked; whole files end it."""
    tls = write_tls(tmp_path, ca)
    certificate, key, ca_file = (Path(str(each)) for each in (tls.certificate, tls.key, tls.ca))
    contexts = TlsContexts(tls, serves=True)
    whole = {path: path.read_bytes() for path in (certificate, key, ca_file)}
    new = write_tls(tmp_path / "new", ca)
    server = contexts.server()
    for path, data, why in (
        (certificate, whole[certificate][:300], "cut off"),
        (certificate, b"", "not a certificate"),
        (key, whole[key][:50], "no private key"),
        (key, Path(str(new.key)).read_bytes(), "does not belong"),
        (ca_file, whole[ca_file][:300], "cut off"),
        (ca_file, b"", "no certificates"),
    ):
        with case(path.name, why):
            path.write_bytes(data)
            caplog.clear()
            assert [contexts.look(), contexts.look()] == [False, False]
            assert contexts.server() is server
            assert why in contexts.trouble
            told = [each for each in caplog.records if "cannot be used" in each.getMessage()]
            assert len(told) == 1
            path.write_bytes(whole[path])
            assert contexts.look()
            assert contexts.trouble == ""
            server = contexts.server()
    key.unlink()
    assert not contexts.look()
    assert "cannot be read" in contexts.trouble


def test_a_new_mode_of_a_key_is_seen(tmp_path: Path, ca: trustme.CA) -> None:
    tls = write_tls(tmp_path, ca)
    contexts = TlsContexts(tls, serves=True)
    Path(str(tls.key)).chmod(0o644)
    assert not contexts.look()
    Path(str(tls.key)).chmod(0o600)
    assert contexts.look()


def test_an_expired_certificate_is_used_and_told(
    tmp_path: Path, ca: trustme.CA, caplog: pytest.LogCaptureFixture
) -> None:
    contexts = TlsContexts(write_tls(tmp_path, ca, expires=LONG_AGO), serves=True)
    assert contexts.expires_s == LONG_AGO.timestamp()
    assert "certificate has expired" in caplog.text


def test_an_expired_certificate_takes_the_place_of_no_valid_one(
    tmp_path: Path, ca: trustme.CA
) -> None:
    """Nobody could connect any more: an old file copied by mistake changes nothing."""
    contexts = TlsContexts(write_tls(tmp_path, ca), serves=True)
    server = contexts.server()
    write_tls(tmp_path, ca, expires=LONG_AGO)
    assert not contexts.look()
    assert contexts.server() is server
    assert "has expired" in contexts.trouble
    write_tls(tmp_path, ca)
    assert contexts.look()
    assert contexts.server() is not server


def test_a_server_knows_whether_its_certificate_holds_at_its_address(
    tmp_path: Path, ca: trustme.CA
) -> None:
    """As those see it that have the same files; also where it asks for a certificate."""
    required = ClientCertificates.REQUIRED
    tls = write_tls(tmp_path / "good", ca, "b1.example", "10.0.0.11")
    good = TlsContexts(tls, serves=True, client_certificates=required)
    assert [good.why_not_for("b1.example"), good.why_not_for("10.0.0.11")] == ["", ""]
    assert "another name" in good.why_not_for("b2.example")
    other = TlsContexts(write_tls(tmp_path / "1", ca, trusts=trustme.CA()), serves=True)
    assert "not signed by" in other.why_not_for("localhost")
    old = TlsContexts(write_tls(tmp_path / "2", ca, expires=LONG_AGO), serves=True)
    assert "expired" in old.why_not_for("localhost")


# Texts ----------------------------------------------------------------------------------------
def test_the_expiry_of_damaged_certificates_is_an_error(tmp_path: Path, ca: trustme.CA) -> None:
    good = Path(str(write_ca(tmp_path, ca).ca)).read_bytes()
    assert expiry_of(b"something in front\n" + good) > 0
    lines = good.splitlines()
    for damaged in (b"", b"hello", b"\n".join([lines[0], lines[1], lines[-1]]), good[:80]):
        with case(damaged[:20]), pytest.raises(ValueError):
            expiry_of(damaged)


def test_a_failed_handshake_says_what_to_do() -> None:
    def of(reason: str) -> str:
        error = ssl.SSLError(1, reason)
        error.reason = reason
        return why_no_tls(error)

    assert "does not seem to speak TLS" in of("WRONG_VERSION_NUMBER")
    assert "give tls_certificate and tls_key" in of("TLSV13_ALERT_CERTIFICATE_REQUIRED")
    assert "1.2 and 1.3" in of("TLSV1_ALERT_PROTOCOL_VERSION")
    assert "SOMETHING_NEW" in of("SOMETHING_NEW")
    assert "speak TLS" in why_no_tls(ConnectionResetError(104, "reset"))
    assert why_no_tls(TimeoutError()) == ""
    assert "client certificates" in closed_early(encrypted=True)
    assert "--tls-ca" in closed_early(encrypted=False)
