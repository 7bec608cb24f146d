"""No secret is in a text that somebody may see: of settings, values, errors, and options."""

import logging
import traceback
from pathlib import Path
from typing import Any

import click
import pytest
import trustme
from support.cases import case
from support.certificates import write_tls

import vq
from vq.broker.base.config import BrokerConfig
from vq.cli.base.settings import build, read_sources
from vq.cli.main import commands
from vq.console.config import ConsoleConfig
from vq.coordination.tree.acls import checked_auth
from vq.coordination.tree.values.cluster import ClusterSecret
from vq.coordination.tree.values.users import StoredSecret, StoredUser
from vq.errors import VqError
from vq.gateway.tokens import TokenFile
from vq.log_lines import get_logger
from vq.remoting.login import Login
from vq.remoting.membership import Proving
from vq.security.scram import derive
from vq.security.tls import Tls, TlsContexts

#: Of 20 characters, so that it may be any kind.
HIDDEN = "hidden0123456789hidd"


def of_every_kind() -> dict[str, Any]:
    """Return what has a secret, by kind."""
    keys = derive(HIDDEN, b"0123456789abcdef", 4_096)
    return {
        "password of a client": vq.MessageFactoryConfig(user="anna", password=HIDDEN),
        "password of a connection": Login("anna", HIDDEN),
        "keys of a password": keys,
        "stored secret": StoredSecret(keys.secret, 1),
        "stored user": StoredUser(salt=HIDDEN.encode(), iterations=4_096),
        "identity of a client": vq.MessageFactoryConfig(zookeeper_auth=f"name:{HIDDEN}"),
        "identity of a broker": BrokerConfig(
            data=Path("d"), group="b1", node="n1", zookeeper_auth=f"name:{HIDDEN}"
        ),
        "secret of the cluster": ClusterSecret.of(HIDDEN.encode() * 2),
        "secret of a broker": Proving(
            secret=lambda: HIDDEN.encode(), nonce=lambda: b"", now=lambda: 0.0, failed=lambda: None
        ),
        "database of a console": ConsoleConfig(
            clusters={"a": None}, database=f"postgresql://console:{HIDDEN}@db/x"
        ),
    }


def hidden_forms() -> list[str]:
    keys = derive(HIDDEN, b"0123456789abcdef", 4_096)
    parts = [HIDDEN.encode(), *keys.secret]
    return [HIDDEN, *(each.hex() for each in parts), *(repr(each)[2:-1] for each in parts)]


def test_no_text_of_an_object_has_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    """As ``repr``, in a log line, and in the traceback of an error that carries it."""
    caplog.set_level(logging.DEBUG)
    for kind, value in of_every_kind().items():
        get_logger(__name__).info("seen", value=value)
        try:
            raise ValueError(value)
        except ValueError:
            said = traceback.format_exc()
        said += repr(value) + str(value) + f"{[value]}" + caplog.text
        for form in hidden_forms():
            with case(kind, form):
                assert form not in said


def test_no_error_about_a_secret_shows_it(tmp_path: Path) -> None:
    """Whatever is wrong with it: the file, its form, its length, its place."""
    tls = write_tls(tmp_path / "tls", trustme.CA())
    settings = tmp_path / "vq.toml"

    def from_file(text: str) -> object:
        settings.touch(mode=0o600)
        settings.write_text(text)
        return build(vq.MessageFactoryConfig, "client", read_sources(str(settings), {}))

    def private(name: str, text: str) -> Path:
        path = tmp_path / name
        path.touch(mode=0o600)
        path.write_text(text)
        return path

    def encrypted_key() -> object:
        from cryptography.hazmat.primitives import serialization

        key = Path(str(tls.key))
        clear = serialization.load_pem_private_key(key.read_bytes(), None)
        key.write_bytes(
            clear.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(HIDDEN.encode()),
            )
        )
        return TlsContexts(tls, serves=True)

    for kind, fails in {
        "short identity": lambda: checked_auth(f"name:{HIDDEN[:10]}"),
        "identity without a name": lambda: checked_auth(f":{HIDDEN}"),
        "identity in a file": lambda: from_file(f'zookeeper_auth = ["{HIDDEN}"]\n'),
        "password in a file": lambda: from_file(f'user = "anna"\npassword = ["{HIDDEN}"]\n'),
        "password that is none": lambda: derive(f"{HIDDEN}\0", b"0123456789abcdef", 4_096),
        "tokens": lambda: TokenFile(private("tokens", f'version = 1\n[[token]]\nx="{HIDDEN}"\n')),
        "key": lambda: TlsContexts(
            Tls(certificate=tls.certificate, key=private("key", HIDDEN)), serves=True
        ),
        "key with a passphrase": encrypted_key,
    }.items():
        with case(kind):
            with pytest.raises(VqError) as failed:
                fails()
            said = "".join(traceback.format_exception(failed.value)) + repr(failed.value.details)
            assert HIDDEN[:10] not in said


def test_no_option_of_a_command_takes_a_secret() -> None:
    """Everybody on the machine sees the arguments of a process: files, variables and prompts do."""
    words = ("password", "secret", "token", "passphrase", "auth")
    found = set()
    for name, command in commands():
        for each in command.params:
            texts = [*each.opts, *each.secondary_opts]
            takes = isinstance(each, click.Option) and not each.is_flag
            if takes and any(word in text for text in texts for word in words):
                found.add((name, texts[0]))
    files = {(name, option) for name, option in found if option.endswith(("-file", "-files"))}
    assert found - files == KNOWN


#: Options with such a word that take a word or a file.
KNOWN = {("broker", "--authentication"), ("gateway", "--tokens"), ("gateway token", "--tokens")}
