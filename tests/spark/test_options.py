"""Options are checked before anything is asked; an error says the value, the bound, what to do."""

import pickle
from pathlib import Path

import pytest

from pyspark_vq.options import EARLIEST, LATEST, Given, Place, ReadOptions
from vq import MessageFactoryConfig, Tls
from vq.errors import InvalidArgument


def parsed(stream: bool = False, **options: str) -> ReadOptions:
    return ReadOptions.parsed({"topics": "orders", **options}, stream=stream)


def test_a_query_reads_all_there_is_and_a_stream_what_comes() -> None:
    batch, stream = parsed(), parsed(stream=True)
    assert (batch.starting.default, batch.ending.default) == (EARLIEST, LATEST)
    assert stream.starting.default == LATEST
    assert batch.fail_on_data_loss
    assert batch.include_archive
    assert (batch.archives, parsed(archives="direct").archives) == ("broker", "direct")
    assert batch.connect.config.archive_places == MessageFactoryConfig().archive_places
    places = parsed(archivePlaces="s3://bucket/vq, file:///mnt").connect.config.archive_places
    assert places == ("s3://bucket/vq", "file:///mnt")
    assert batch.min_partitions is batch.bytes_per_trigger is batch.group is None


def test_the_cluster_is_that_of_the_client_unless_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VQ_ZOOKEEPER", "zoo:1")
    monkeypatch.setenv("VQ_CLUSTER", "c")
    own = parsed().connect.config
    assert (own.zookeeper, own.cluster) == ("zoo:1", "c")
    assert parsed(zookeeper="a:2,b:3", cluster="d").connect.config.zookeeper == "a:2,b:3"


def test_who_asks_and_tls_are_those_of_the_client_unless_they_are_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the driver knows goes to the executors, and no text of it shows a secret."""
    for name, value in {"USER": "env", "PASSWORD": "env-pw", "TLS_CA": "env.pem"}.items():
        monkeypatch.setenv(f"VQ_{name}", value)
    monkeypatch.setenv("VQ_ZOOKEEPER_AUTH", "env:0123456789abcdef")
    sent = pickle.dumps(parsed().connect)
    for name in ("USER", "PASSWORD", "TLS_CA", "ZOOKEEPER_AUTH"):
        monkeypatch.delenv(f"VQ_{name}")
    own = pickle.loads(sent).config
    assert (own.user, own.password, own.tls) == ("env", "env-pw", Tls(ca="env.pem"))
    assert own.zookeeper_auth == "env:0123456789abcdef"

    password, auth = tmp_path / "password", tmp_path / "auth"
    password.write_text("file-pw\n")
    password.chmod(0o600)
    auth.write_text("file:0123456789abcdef\n")
    auth.chmod(0o600)
    found = parsed(
        user="anna",
        passwordFile=str(password),
        zookeeperAuthFile=str(auth),
        tlsCa="ca.pem",
        tlsCertificate="a.pem",
        tlsKey="a.key",
        zookeeperTlsCa="system",
    )
    config = found.connect.config
    assert (config.user, config.password) == ("anna", "file-pw")
    assert config.zookeeper_auth == "file:0123456789abcdef"
    assert config.tls == Tls(ca="ca.pem", certificate="a.pem", key="a.key")
    assert config.zookeeper_tls == Tls(ca="system")
    assert parsed(user="anna", password="given").connect.config.password == "given"
    for text in (repr(found), str(found.connect)):
        assert "file-pw" not in text
        assert "0123456789abcdef" not in text


def test_names_of_options_have_no_case() -> None:
    assert parsed(STARTINGOFFSETS="latest").starting.default == LATEST


def test_places_are_ends_times_and_offsets_by_partition() -> None:
    text = '{"orders": {"0": 12, "1": "latest", "2": "2026-11-22T10:30:00+01:00"}, "b": "earliest"}'
    places = parsed(startingOffsets=text).starting
    assert places.of("orders", 0) == Place(offset=12)
    assert places.of("orders", 1) == LATEST
    assert places.of("orders", 2) == Place(time_ms=1_795_339_800_000)
    assert places.of("orders", 3) == EARLIEST
    assert places.of("b", 7) == EARLIEST
    assert parsed(endingOffsets="2026-11-22").ending.of("x", 0) == Place(time_ms=1_795_305_600_000)


def test_lists_sizes_and_tags_are_read() -> None:
    options = parsed(stream=True, maxBytesPerTrigger="64m", tag="a || b", group="g", timeout="2.5")
    assert options.bytes_per_trigger == 64 << 20
    assert options.wanted.tags == ("a", "b")
    assert options.timeout_s == 2.5
    by_headers = parsed(where="price  >  10 AND region IN ('hz', 'sh')").wanted
    assert by_headers.where == "price > 10 AND region IN ('hz', 'sh')"
    assert pickle.loads(pickle.dumps(by_headers)) == by_headers, "it goes to the executors"
    assert parsed(topics="a, b").topics == ("a", "b")
    assert parsed(topics='["a","b","a"]').topics == ("a", "b")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": "latest"}, "do you mean startingOffsets?"),
        ({"path": "x"}, "Known: zookeeper, cluster, user, "),
        ({"startingOffsets": "20000-01-01T00:00:00"}, "a time of 1970 to 9999 like"),
        ({"endingOffsets": '{"orders": {"0": "+20000-01-01"}}'}, "a time of 1970 to 9999 like"),
        ({"startingOffsets": "yesterday"}, "give earliest, latest, a time"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "outside [0, "),
        ({"startingOffsets": '{"orders": {"x": 1}}'}, "is not the number of a partition"),
        ({"startingOffsets": "{"}, "is not JSON"),
        ({"startingOffsets": '{"orders": {"0": true}}'}, "is not a place"),
        ({"minPartitions": "0"}, "[1, 100000]"),
        ({"minPartitions": "many"}, "is not a whole number"),
        ({"failOnDataLoss": "yes"}, "neither true nor false"),
        ({"timeout": "0"}, "(0, 3600]"),
        ({"password": "secret"}, "there is a password, and no user"),
        ({"user": "a", "password": "b", "passwordFile": "c"}, "exclude one another"),
        ({"user": "a", "passwordFile": "/no"}, "the password file '/no': it cannot be read"),
        ({"zookeeperAuthFile": "/no"}, "the zookeeperAuth file '/no': it cannot be read"),
        ({"tlsKey": "a.key"}, "no certificate that it belongs to"),
        ({"timeout": "nan"}, "(0, 3600]"),
        ({"tag": "a || "}, "is not a list of 1 to 64 tags"),
        ({"where": "price >"}, "price >"),
        ({"where": "price > 10", "tag": "a"}, "give one of them"),
        ({"readFrom": "nearest"}, "neither master nor any"),
        ({"archives": "auto"}, "neither broker nor direct"),
        ({"archivePlaces": "/mnt/archive"}, "is not a URL such as s3://bucket/vq"),
        ({"topics": "a,,b"}, "empty name"),
        ({"topics": "[1]"}, "is not a list like a,b"),
        ({"topics": " "}, "is empty"),
        ({"topicPattern": "x.*"}, "one of topics and topicPattern"),
        ({"zookeeper": "a/b"}, "a/b"),
        ({"group": "g"}, "group is for streams"),
        ({"maxBytesPerTrigger": "1g"}, "maxBytesPerTrigger is for streams"),
    ],
)
def test_unusable_options_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        parsed(**options)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"endingOffsets": "latest"}, "availableNow"),
        ({"maxBytesPerTrigger": "1k"}, "[65536, "),
        ({"maxBytesPerTrigger": "64x"}, "like 500000, 64m or 1g"),
    ],
)
def test_unusable_options_of_streams_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        parsed(stream=True, **options)
    assert said in str(error.value)


def test_a_pattern_must_be_one() -> None:
    with pytest.raises(InvalidArgument, match="is not a regular expression"):
        ReadOptions.parsed({"topicPattern": "("}, stream=False)


def test_nothing_is_read_without_a_topic() -> None:
    with pytest.raises(InvalidArgument, match="one of topics and topicPattern"):
        ReadOptions.parsed({}, stream=False)


def test_what_nobody_takes_is_refused() -> None:
    given = Given({"a": "1", "b": "2"}, ["a"])
    assert given.whole("A", 0, 9) == 1
    with pytest.raises(InvalidArgument, match="no option 'b'"):
        given.end()
