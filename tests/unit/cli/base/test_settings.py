"""Settings: which place wins, how text becomes a type, and what is refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from vq.broker.base.config import BrokerConfig
from vq.cli.base.settings import Sources, build, read_sources
from vq.client.config import MessageFactoryConfig, ProducerConfig
from vq.client.environment import export_tls
from vq.console.config import ConsoleConfig
from vq.errors import InvalidArgument
from vq.gateway.config import GatewayConfig
from vq.model import Address, FlushMode
from vq.security.tls import ClientCertificates, Tls


@dataclass(frozen=True, kw_only=True)
class Inner:
    depth: int = 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    name: str
    zookeeper: str = "default:2181"
    port: int = 8123
    share: float = 0.5
    verify: bool = False
    data: Path = Path("data")
    advertised: Address | None = None
    pool: str | None = None
    flush: FlushMode = FlushMode.SYNC
    labels: Mapping[str, str] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)


def made(sources: Sources) -> Settings:
    return build(Settings, "broker", sources.with_flags(name="n"))


@pytest.mark.parametrize(
    ("flag", "variable", "file", "wins"),
    [
        (1, "2", 3, 1),
        (None, "2", 3, 2),
        (None, None, 3, 3),
        (None, None, None, 8123),
    ],
)
def test_flags_come_before_variables_before_the_file_before_defaults(
    flag: int | None, variable: str | None, file: int | None, wins: int
) -> None:
    environ = {} if variable is None else {"VQ_BROKER_PORT": variable}
    table = {} if file is None else {"broker": {"port": file}}
    assert made(Sources(environ=environ, file=table).with_flags(port=flag)).port == wins


def test_shared_settings_are_said_once_and_a_section_may_say_otherwise() -> None:
    assert made(Sources(environ={"VQ_ZOOKEEPER": "e:1"})).zookeeper == "e:1"
    assert made(Sources(file={"zookeeper": "t:1"})).zookeeper == "t:1"
    own = Sources(file={"zookeeper": "t:1", "broker": {"zookeeper": "s:1"}})
    assert made(own).zookeeper == "s:1"
    both = Sources(environ={"VQ_ZOOKEEPER": "e:1", "VQ_BROKER_ZOOKEEPER": "b:1"})
    assert made(both).zookeeper == "b:1"


def test_the_files_of_tls_stand_beside_other_settings_and_are_shared() -> None:
    """Each file by itself comes from the first place that has it; without any there is no TLS."""
    needed = {"group": "b1", "node": "n1", "data": Path("d")}
    file = {
        "tls_ca": "top.pem",
        "broker": {"tls_certificate": "own.pem", "tls_client_certificates": "required"},
    }
    sources = Sources(environ={"VQ_TLS_KEY": "env.key"}, file=file)
    broker = build(BrokerConfig, "broker", sources.with_flags(**needed))
    assert broker.tls == Tls(ca="top.pem", certificate="own.pem", key="env.key")
    assert broker.tls_client_certificates is ClientCertificates.REQUIRED
    client = build(MessageFactoryConfig, "client", Sources(file={"tls_ca": "top.pem"}))
    assert client.tls == Tls(ca="top.pem")
    flags = Sources(file=file).with_flags(tls_ca=Path("flag.pem"))
    assert build(MessageFactoryConfig, "client", flags).tls == Tls(ca="flag.pem")
    assert build(BrokerConfig, "broker", Sources().with_flags(**needed)).tls is None
    of_zookeeper = Sources(environ={"VQ_ZOOKEEPER_TLS_CA": "zk.pem"}).with_flags(**needed)
    both = build(BrokerConfig, "broker", of_zookeeper)
    assert (both.tls, both.zookeeper_tls) == (None, Tls(ca="zk.pem"))
    with pytest.raises(InvalidArgument, match="unknown key 'tls_cert'"):
        build(BrokerConfig, "broker", Sources(file={"broker": {"tls_cert": "x"}}))
    with pytest.raises(InvalidArgument, match="VQ_BROKER_TLS_CERT"):
        build(BrokerConfig, "broker", Sources(environ={"VQ_BROKER_TLS_CERT": "x"}))
    with pytest.raises(InvalidArgument, match="needs TLS: give tls_certificate"):
        BrokerConfig(**needed, metrics_client_certificates="required")  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["file", "variable", "option"])
@pytest.mark.parametrize(
    ("kind", "section", "setting", "ways"),
    [
        (BrokerConfig, "broker", "tls", "VQ_TLS_CERTIFICATE, --tls-certificate"),
        (BrokerConfig, "broker", "zookeeper_tls", "VQ_ZOOKEEPER_TLS_CERTIFICATE, or vq.Tls"),
        (
            GatewayConfig,
            "gateway",
            "https",
            "VQ_GATEWAY_HTTPS_CERTIFICATE, --https-certificate",
        ),
        (
            ConsoleConfig,
            "console",
            "https",
            "VQ_CONSOLE_HTTPS_CERTIFICATE, --https-certificate",
        ),
    ],
)
def test_a_key_alone_is_refused_with_each_way_to_give_its_certificate(
    kind: type, section: str, setting: str, ways: str, place: str
) -> None:
    """Named as they are in that place: of TLS to ZooKeeper there are no options."""
    needed: dict[str, Any] = {"group": "b1", "node": "n1", "data": Path("d")}
    needed = {BrokerConfig: needed, ConsoleConfig: {"clusters": {}}}.get(kind, {})
    key = f"{setting}_key"
    variable = ways.partition("_CERTIFICATE")[0] + "_KEY"
    sources = {
        "file": Sources(file={section: {key: "a.key"}}),
        "variable": Sources(environ={variable: "a.key"}),
        "option": Sources().with_flags(**{key: Path("a.key")}),
    }[place]
    with pytest.raises(InvalidArgument) as refused:
        build(kind, section, sources.with_flags(**needed))
    text = str(refused.value)
    assert f"{key} = 'a.key' is given, and no certificate" in text
    assert f"give {setting}_certificate in the file that --config or VQ_CONFIG names" in text
    assert ways in text


def test_a_program_is_told_the_variables_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for prefix in ("VQ_TLS", "VQ_ZOOKEEPER_TLS"):
        monkeypatch.setenv(f"{prefix}_KEY", "a.key")
        with pytest.raises(InvalidArgument, match=f"{prefix}_CERTIFICATE"):
            MessageFactoryConfig()
        monkeypatch.delenv(f"{prefix}_KEY")


def test_an_application_takes_tls_from_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MessageFactoryConfig().tls is None
    monkeypatch.setenv("VQ_TLS_CA", "ca.pem")
    assert MessageFactoryConfig().tls == Tls(ca="ca.pem")
    assert MessageFactoryConfig(tls=None).tls is None
    with pytest.raises(InvalidArgument, match=r"is not a vq\.Tls"):
        MessageFactoryConfig(tls="ca.pem")  # type: ignore[arg-type]


def test_an_empty_variable_names_no_file_of_tls() -> None:
    """As for programs; and it is not the working directory."""
    sources = Sources(environ={"VQ_TLS_CA": "", "VQ_TLS_KEY": ""})
    assert build(MessageFactoryConfig, "client", sources).tls is None


def test_only_shared_names_are_taken_from_the_top_of_the_file() -> None:
    assert made(Sources(file={"port": 1})).port == 8123


def test_text_of_variables_becomes_the_type_of_the_field() -> None:
    names = {
        "VQ_BROKER_SHARE": "0.25",
        "VQ_BROKER_VERIFY": "yes",
        "VQ_BROKER_DATA": "/srv/vq",
        "VQ_BROKER_ADVERTISED": "host:1",
        "VQ_BROKER_POOL": "fast",
        "VQ_BROKER_FLUSH": "async",
        "VQ_BROKER_LABELS": "rack=r1,zone=z",
        "VQ_BROKER_INNER_DEPTH": "7",
    }
    settings = made(Sources(environ=names))
    assert settings == Settings(
        name="n",
        share=0.25,
        verify=True,
        data=Path("/srv/vq"),
        advertised=Address("host", 1),
        pool="fast",
        flush=FlushMode.ASYNC,
        labels={"rack": "r1", "zone": "z"},
        inner=Inner(depth=7),
    )


def test_toml_values_become_the_type_of_the_field() -> None:
    table = {
        "share": 1,
        "data": "/srv/vq",
        "advertised": "host:1",
        "flush": "async",
        "labels": {"rack": "r1"},
        "inner": {"depth": 7},
    }
    settings = made(Sources(file={"broker": table}))
    assert settings.share == 1.0
    assert settings.data == Path("/srv/vq")
    assert settings.advertised == Address("host", 1)
    assert settings.flush is FlushMode.ASYNC
    assert settings.labels == {"rack": "r1"}
    assert settings.inner.depth == 7


@pytest.mark.parametrize(
    ("environ", "table", "said"),
    [
        ({"VQ_BROKER_PORT": "many"}, {}, "VQ_BROKER_PORT = 'many' is not a whole number"),
        ({"VQ_BROKER_VERIFY": "maybe"}, {}, "is not true or false"),
        ({"VQ_BROKER_FLUSH": "never"}, {}, "is not one of sync, async"),
        ({"VQ_BROKER_LABELS": "r1"}, {}, "is not a table of texts (key=value,...)"),
        ({"VQ_BROKER_LABELS": "rack=r1,=z"}, {}, "VQ_BROKER_LABELS = 'rack=r1,=z'"),
        ({}, {"port": "8123"}, "port in [broker] of the configuration file = '8123'"),
        ({}, {"port": True}, "is not a whole number"),
        ({}, {"verify": 1}, "is not true or false"),
        ({}, {"prot": 1}, "did you mean 'port'?"),
        ({}, {"inner": {"dept": 1}}, "did you mean 'depth'?"),
        ({}, {"inner": 1}, "= 1 is a value, not a table: write [broker.inner]"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_place(
    environ: dict[str, str], table: dict[str, object], said: str
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        made(Sources(environ=environ, file={"broker": table}))
    assert said in str(raised.value)


def test_an_object_cannot_be_set_as_text() -> None:
    for name in ("serializer", "interceptors"):
        for value in ("json", ["json"]):
            sources = Sources(file={"producer": {name: value}})
            with pytest.raises(
                InvalidArgument, match=rf"{name} in \[producer\] .* set it in Python"
            ):
                build(ProducerConfig, "producer", sources)
        variable = f"VQ_PRODUCER_{name.upper()}"
        with pytest.raises(
            InvalidArgument, match=rf"{variable} = 'x': .*objects; set it in Python"
        ):
            build(ProducerConfig, "producer", Sources(environ={variable: "x"}))


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        (
            "VQ_BROKER_PROT",
            r"VQ_BROKER_PROT is not a setting of \[broker\]: did you mean VQ_BROKER_PORT",
        ),
        ("VQ_BROKER_INNER_DEPT", "did you mean VQ_BROKER_INNER_DEPTH"),
        ("VQ_BROKER_INNER", "is not a setting of"),
        ("VQ_BROKER_", "is not a setting of"),
        ("VQ_BROKER_QQQQQQQQQQQQQQQQQQQQQQQQ", "known are VQ_BROKER_NAME, VQ_BROKER_ZOOKEEPER"),
    ],
)
def test_a_variable_that_is_no_setting_is_refused(variable: str, said: str) -> None:
    """As an unknown key of the file is: otherwise the default counts, and nobody sees it."""
    with pytest.raises(InvalidArgument, match=said):
        made(Sources(environ={variable: "1"}))


def test_variables_of_other_sections_are_left_to_them() -> None:
    environ = {"VQ_PRODUCER_WINDW": "1", "VQ_BROKERS": "2", "PATH": "x"}
    assert made(Sources(environ=environ)).port == 8123


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("VQ_ZOOKEPER", "VQ_ZOOKEEPER"),
        ("VQ_CLUSTR", "VQ_CLUSTER"),
        ("VQ_CONFG", "VQ_CONFIG"),
        ("VQ_PRODCER_WINDOW", "VQ_PRODUCER_WINDOW"),
        ("VQ_CONSUMERS_GROUP", "VQ_CONSUMER_GROUP"),
    ],
)
def test_a_misspelled_variable_is_refused_with_the_one_that_was_meant(
    variable: str, meant: str
) -> None:
    with pytest.raises(
        InvalidArgument, match=f"{variable} is not a setting: did you mean {meant}?"
    ):
        read_sources(None, {variable: "1"})


def test_variables_of_other_tools_are_left_alone() -> None:
    """Of the tests, of development, and of whoever else likes this prefix."""
    names = ("VQ_ZOOKEEPER_JARS", "VQ_TEST_ZOOKEEPER", "VQ_SEED", "VQ_LONG", "VQ_FUZZ_SEED", "VQX")
    read_sources(None, dict.fromkeys(names, "1"))


def test_a_missing_required_setting_names_all_places_that_could_give_it() -> None:
    with pytest.raises(InvalidArgument) as raised:
        build(Settings, "broker", Sources())
    assert "--name" in str(raised.value)
    assert "VQ_BROKER_NAME" in str(raised.value)
    assert "[broker]" in str(raised.value)


def test_the_file_is_named_by_flag_or_variable(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text('cluster = "a"\n')
    second.write_text('cluster = "b"\n')
    assert read_sources(None, {}).file == {}
    assert read_sources(None, {"VQ_CONFIG": str(second)}).file == {"cluster": "b"}
    assert read_sources(str(first), {"VQ_CONFIG": str(second)}).file == {"cluster": "a"}


@pytest.mark.parametrize(
    ("text", "said"),
    [("cluster = ", "is not TOML"), ('clutser = "a"', "did you mean 'cluster'?")],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "vq.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as raised:
        read_sources(str(path), {})
    assert said in str(raised.value)
    assert "vq.toml" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ('user = "a"\npassword = "hidden"\n', "password"),
        ('zookeeper_auth = "a:hidden"\n', "zookeeper_auth"),
        ('[broker]\nzookeeper_auth = "a:hidden"\n', "broker.zookeeper_auth"),
        ('[console.oidc]\nclient_secret = "hidden"\n', "console.oidc.client_secret"),
        ('[console]\ndatabase = "postgresql://a:hidden@db/x"\n', "console.database"),
    ],
)
def test_a_file_with_a_secret_is_for_its_owner_alone(
    tmp_path: Path, text: str, secret: str
) -> None:
    """By the one rule for files with secrets; without a secret the mode does not matter."""
    path = tmp_path / "vq.toml"
    path.write_text(text)
    path.chmod(0o644)
    with pytest.raises(InvalidArgument) as raised:
        read_sources(str(path), {})
    assert f"has a secret, {secret}: it has mode 0644" in str(raised.value)
    assert f"chmod 600 {path}" in str(raised.value)
    assert "hidden" not in str(raised.value)
    path.chmod(0o600)
    assert read_sources(None, {"VQ_CONFIG": str(path)}).file
    path.write_text('cluster = "a"\npassword = ""\n[console]\ndatabase = "sqlite:////x"\n')
    path.chmod(0o644)
    assert read_sources(str(path), {}).file


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"nowhere\.toml"):
        read_sources(str(tmp_path / "nowhere.toml"), {})


# One or several ----------------------------------------------------------------------------------
def data_of(**sources: object) -> tuple[Path, ...]:
    names = {"group": "b1", "node": "n1"}
    given = Sources(**{"flags": names, **sources})  # type: ignore[arg-type]
    return build(BrokerConfig, "broker", given.with_flags(**names)).directories


def test_a_broker_has_one_data_directory_or_several() -> None:
    """A text in a file is one path, whatever is in it; in a variable, a colon stands between."""
    one, two = Path("/d1"), Path("/d2")
    assert data_of(flags={"data": (one, two)}) == (one, two)
    assert data_of(flags={"data": one}) == (one,)
    assert data_of(environ={"VQ_BROKER_DATA": "/d1"}) == (one,)
    assert data_of(environ={"VQ_BROKER_DATA": "/d1:/d2"}) == (one, two)
    assert data_of(file={"broker": {"data": "/d1"}}) == (one,)
    assert data_of(file={"broker": {"data": "/d1:x"}}) == (Path("/d1:x"),)
    assert data_of(file={"broker": {"data": ["/d1", "/d2"]}}) == (one, two)


@pytest.mark.parametrize("data", [["/d1", "/d1"], []])
def test_data_directories_are_different_ones(data: list[str]) -> None:
    with pytest.raises(InvalidArgument, match="give one directory, or several different ones"):
        data_of(file={"broker": {"data": data}})


def test_a_data_directory_is_a_path() -> None:
    with pytest.raises(InvalidArgument, match="data"):
        data_of(file={"broker": {"data": ["/d1", 5]}})


def test_lost_directories_are_named_with_commas() -> None:
    names = {"group": "b1", "node": "n1", "data": Path("/d1")}
    sources = Sources(flags=names, environ={"VQ_BROKER_WITHOUT_DATA": "8f0c,31d9"})
    assert build(BrokerConfig, "broker", sources).without_data == ("8f0c", "31d9")


def test_processes_of_a_command_take_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the command says that there is no TLS although its environment does."""
    for name in ("VQ_TLS_CA", "VQ_TLS_CERTIFICATE", "VQ_TLS_KEY", "VQ_ZOOKEEPER_TLS_CA"):
        monkeypatch.setenv(name, "before.pem")
    for tls, zookeeper_tls in (
        (Tls(ca="ca.pem", certificate="c.pem", key="c.key"), Tls(ca="zk.pem")),
        (Tls(ca="system"), None),
        (None, None),
    ):
        export_tls(tls, zookeeper_tls)
        made = MessageFactoryConfig()
        assert (made.tls, made.zookeeper_tls) == (tls, zookeeper_tls)
