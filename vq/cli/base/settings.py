"""Where settings come from: flags, then ``VQ_*`` variables, then a TOML file, then defaults.

In here: reading the file, looking a field up in the four places, turning text into its type, and
building the frozen dataclasses that the rest of vq takes. Nothing deeper reads the environment or a
file. Not in here: what a setting means or which values are allowed; the dataclass says both.

    # vq.toml                        variable                      flag
    zookeeper = "zk1:2181,zk2:2181"  VQ_ZOOKEEPER                  --zookeeper
    cluster = "orders"               VQ_CLUSTER                    --cluster
    zookeeper_auth = "name:password" VQ_ZOOKEEPER_AUTH             (never on a command line)
    user = "anna"                    VQ_USER                       --user
    password = "..."                 VQ_PASSWORD                   (a file, or asked for)
    [broker]
    data = "/var/lib/vq"             VQ_BROKER_DATA                --data
    data = ["/mnt/1/vq", "/mnt/2/vq"]  VQ_BROKER_DATA=/mnt/1/vq:…  --data … --data …
    port = 8123                      VQ_BROKER_PORT                --port
    [broker.connections]
    connections_max = 2000           VQ_BROKER_CONNECTIONS_CONNECTIONS_MAX
    [broker.labels]
    rack = "r1"                      VQ_BROKER_LABELS=rack=r1,...
    log_level = "info"               VQ_LOG_LEVEL                  --log-level
    log_format = "json"              VQ_LOG_FORMAT                 --log-format
    tls_ca = "/etc/vq/ca.pem"        VQ_TLS_CA                     --tls-ca
    [client] [producer] [consumer]   VQ_CLIENT_..., VQ_PRODUCER_..., VQ_CONSUMER_...
    [gateway]                        VQ_GATEWAY_...
    [console]                        VQ_CONSOLE_...
    [console.oidc]                   VQ_CONSOLE_OIDC_..., a table that may be left out
"""

import dataclasses
import difflib
import enum
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from vq.errors import InvalidArgument
from vq.model import Address
from vq.security.secret_files import check_private, read_with_stat
from vq.security.tls import Tls, TlsNames, named_tls
from vq.shown import shown

#: Said once for the whole file: every section that has such a field takes it from the top.
SHARED = (
    "zookeeper",
    "cluster",
    "user",
    "password",
    "zookeeper_auth",
    "plaintext",
    "tls_ca",
    "tls_certificate",
    "tls_key",
    "zookeeper_tls_ca",
    "zookeeper_tls_certificate",
    "zookeeper_tls_key",
)
#: At the top of the file, too; how a command logs.
LOGGING = ("log_level", "log_format")
SECTIONS = ("client", "producer", "consumer", "broker", "gateway", "console", "worker")
#: Variables of vq that are no settings of a command.
_OTHERS = frozenset(
    {"VQ_ZOOKEEPER_JARS", "VQ_PURE", "VQ_OFFSETS_DIR", "VQ_FAILED_DIR", "VQ_NEW_PASSWORD"}
)
#: Settings whose values no text shows.
_SECRETS = frozenset({"password", "zookeeper_auth", "client_secret", "database"})
#: A database has one if its URL has a password.
_PASSWORD_OF_URL = re.compile(r"://[^/@]*:.*@|password", re.IGNORECASE)
#: How alike two words are of which one is a slip of the other.
_NEAR = 0.8
#: Between paths in a variable, as in ``PATH``.
_PATHS_APART = ":"
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sources:
    """The three places above the defaults. A flag that was not given is None or absent."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    file: Mapping[str, Any] = field(default_factory=dict)
    file_name: str = "the configuration file"

    def with_flags(self, **flags: Any) -> "Sources":
        """Return the same sources with more flags; None ones do not hide earlier ones."""
        given = {name: value for name, value in flags.items() if value is not None}
        return dataclasses.replace(self, flags={**self.flags, **given})


def read_sources(path: str | None, environ: Mapping[str, str], **flags: Any) -> Sources:
    """Return the sources of one command; the file is ``path``, else ``VQ_CONFIG``, else none.

    Raises:
        InvalidArgument: The file cannot be read, is no TOML, or has a key nobody knows; it has a
            secret and others may use it; or the name of a variable is nearly that of a setting.
    """
    _refuse_misspelled(environ)
    name = path or environ.get("VQ_CONFIG")
    if not name:
        return Sources(environ=environ).with_flags(**flags)
    try:
        data, found = read_with_stat(Path(name))
        table = tomllib.loads(data.decode())
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgument(f"cannot read the configuration file {name!r}: {why}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArgument(f"{name!r} is not TOML: {error}") from error
    if secret := _secret_in(table):
        try:
            check_private(Path(name), found)
        except InvalidArgument as error:
            raise InvalidArgument(
                f"the configuration file {name!r} has a secret, {secret}: {error.message}"
            ) from error
    _refuse_unknown(table, (*SHARED, *LOGGING, *SECTIONS), name)
    return Sources(environ=environ, file=table, file_name=name).with_flags(**flags)


def _secret_in(table: Mapping[str, Any]) -> str:
    """Return the name of a setting that is a secret; "": there is none."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            if inner := _secret_in(value):
                return f"{name}.{inner}"
        elif name == "database":
            if _PASSWORD_OF_URL.search(str(value)):
                return name
        elif name in _SECRETS and value:
            return name
    return ""


def _refuse_misspelled(environ: Mapping[str, str]) -> None:
    """Refuse variables whose first word is nearly one of ours, such as ``VQ_PRODCER_WINDOW``.

    Others that begin with ``VQ_`` may belong to somebody else. ``build`` looks at the rest of
    those that have the name of a section.
    """
    words = [word.upper() for word in ("config", *SHARED, *SECTIONS)]
    for variable in environ:
        prefix, _, rest = variable.partition("_")
        first = rest.partition("_")[0]
        if prefix != "VQ" or first in words:
            continue
        near = difflib.get_close_matches(first, words, n=1, cutoff=_NEAR)
        if near:
            meant = variable.replace(first, near[0], 1)
            raise InvalidArgument(
                f"the variable {variable} is not a setting: did you mean {meant}? "
                "Otherwise unset it"
            )


def strangers(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that begin with ``VQ_`` and are no setting, sorted.

    Those with the name of a section are not among them: a command that reads it refuses them.
    """
    single = {f"VQ_{name.upper()}" for name in ("config", *SHARED, *LOGGING)}
    sections = tuple(f"VQ_{name.upper()}_" for name in SECTIONS)
    return sorted(
        variable
        for variable in environ
        if variable.startswith("VQ_")
        and variable not in single | _OTHERS
        and not variable.startswith(sections)
    )


def choice(name: str, allowed: Sequence[str], sources: Sources) -> str | None:
    """Return a setting that is one of some words, from a flag, a variable or the file's top.

    Raises:
        InvalidArgument: It is another word.
    """
    variable = f"VQ_{name.upper()}"
    places = (
        (f"--{name.replace('_', '-')}", sources.flags.get(name)),
        (variable, sources.environ.get(variable)),
        (f"{name} at the top of {sources.file_name}", sources.file.get(name)),
    )
    for place, value in places:
        if value is None:
            continue
        if value not in allowed:
            raise InvalidArgument(f"{place} = {shown(value)} is not one of {', '.join(allowed)}")
        return str(value)
    return None


def build(cls: type[T], section: str, sources: Sources) -> T:
    """Return a ``cls`` (a dataclass) whose fields come from the first place that has them.

    Raises:
        InvalidArgument: A value does not fit its field, a required one is missing, or the file's
            section, or the environment under its name, has a setting that ``cls`` does not have.
    """
    _refuse_unknown_variables(cls, section, sources.environ)
    table = sources.file.get(section, {})
    if not isinstance(table, Mapping):
        raise InvalidArgument(f"{section} in {sources.file_name} is a value, not a table")
    return _build(cls, section, table, sources)


def is_given(section: str, name: str, sources: Sources) -> bool:
    """Whether any of the places above the defaults has a setting."""
    table = sources.file.get(section, {})
    return (
        sources.flags.get(name) is not None
        or any(variable in sources.environ for variable in _variables(section, name))
        or (isinstance(table, Mapping) and name in table)
        or (name in SHARED and name in sources.file)
    )


def _refuse_unknown_variables(cls: Any, section: str, environ: Mapping[str, str]) -> None:
    prefix = _variable(section, "")
    known = _names_of(cls, section)
    for variable in environ:
        if variable.startswith(prefix) and variable not in known:
            near = difflib.get_close_matches(variable, known, n=1)
            meant = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}."
            raise InvalidArgument(
                f"the variable {variable} is not a setting of [{section}]: {meant} "
                "Otherwise unset it"
            )


def _names_of(cls: Any, section: str) -> list[str]:
    """Return the variables of the fields of a dataclass, and of the dataclasses in it."""
    hints = typing.get_type_hints(cls)
    names: list[str] = []
    for item in dataclasses.fields(cls):
        kind = _plain(hints[item.name])
        if kind is Tls:
            names += [_variable(section, name) for name in _files_of(item.name)]
        elif dataclasses.is_dataclass(kind):
            names += _names_of(kind, f"{section}.{item.name}")
        else:
            names.append(_variable(section, item.name))
    return names


def _build(cls: type[T], section: str, table: Mapping[str, Any], sources: Sources) -> T:
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    known: list[str] = []
    for item in fields:
        known += _files_of(item.name) if _plain(hints[item.name]) is Tls else [item.name]
    _refuse_unknown(table, known, f"{sources.file_name} [{section}]")
    values = {}
    for item in fields:
        found = _look_up(item.name, hints[item.name], section, table, sources)
        if found is not None:
            values[item.name] = found
        elif _is_required(item):
            raise InvalidArgument(
                f"{item.name} is not set: give --{item.name.replace('_', '-')}, "
                f"{_variable(section, item.name)} or {item.name} in [{section}] of a file "
                "named by --config"
            )
    return cls(**values)


def _look_up(
    name: str, kind: Any, section: str, table: Mapping[str, Any], sources: Sources
) -> Any | None:
    if sources.flags.get(name) is not None:
        return sources.flags[name]
    group = _plain(kind)
    if group is Tls:
        return _tls(name, section, table, sources)
    if dataclasses.is_dataclass(group) and isinstance(group, type):
        inner = table.get(name, {})
        if not isinstance(inner, Mapping):
            raise InvalidArgument(
                f"{name} in [{section}] of {sources.file_name} = {shown(inner)} is a value, not a "
                f"table: write [{section}.{name}]"
            )
        own = f"{section}.{name}"
        if group is not kind and not inner:  # it may be left out
            known = _names_of(group, own)
            if not any(variable in known for variable in sources.environ):
                return None
        return _build(group, own, inner, sources)
    for variable in _variables(section, name):
        if variable in sources.environ:
            return _from_text(sources.environ[variable], kind, variable)
    for place, source in ((table, f"[{section}]"), (sources.file, "the top")):
        if name in place and (place is table or name in SHARED):
            if name in _SECRETS and not isinstance(place[name], str):
                raise InvalidArgument(
                    f"{name} in {source} of {sources.file_name} is not a text: put it in quotes"
                )
            return _from_toml(place[name], kind, f"{name} in {source} of {sources.file_name}")
    return None


def _files_of(name: str) -> list[str]:
    """Return the settings that a field for TLS has; they stand beside the others."""
    return [f"{name}_{item}" for item in ("ca", "certificate", "key")]


def _tls(name: str, section: str, table: Mapping[str, Any], sources: Sources) -> Tls | None:
    """Return the files of TLS as settings name them; None: none does.

    A variable that is empty names none, as for programs (``vq.client.environment``).
    """
    variables = {each for file in _files_of(name) for each in _variables(section, file)}
    sources = dataclasses.replace(
        sources,
        environ={
            variable: text
            for variable, text in sources.environ.items()
            if text or variable not in variables
        },
    )
    found = [_look_up(each, Path, section, table, sources) for each in _files_of(name)]
    if not any(found):
        return None
    ca, certificate, key = found
    variable = _variables(section, f"{name}_ca")[-1].removesuffix("_CA")
    names = TlsNames(name, variable, has_options=name != "zookeeper_tls")
    return named_tls(names, ca=ca, certificate=certificate, key=key)


def _variable(section: str, name: str) -> str:
    return f"VQ_{section.replace('.', '_')}_{name}".upper()


def _variables(section: str, name: str) -> list[str]:
    own = _variable(section, name)
    return [own, f"VQ_{name.upper()}"] if name in SHARED else [own]


def _is_required(item: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return item.default is missing and item.default_factory is missing


def _refuse_unknown(table: Mapping[str, Any], known: Iterable[str], source: str) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
            raise InvalidArgument(f"{source} has the unknown key {key!r}: {meant}")


# From text and TOML to the type of a field ----------------------------------------------------
def _plain(kind: Any) -> Any:
    """Return the type inside ``X | None``, and ``kind`` itself otherwise."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return next(part for part in typing.get_args(kind) if part is not types.NoneType)
    return kind


def _check_no_object(value: object, plain: Any, source: str) -> None:
    """Refuse a setting that holds objects: a serializer, a sequence of interceptors."""
    if getattr(plain, "_is_protocol", False) or typing.get_origin(plain) is Sequence:
        raise InvalidArgument(
            f"{source} = {shown(value)}: this setting holds objects; set it in Python, and leave "
            "it out here"
        )


def _item_kind(kind: Any) -> Any | None:
    """Return ``X`` if several are allowed, as in ``tuple[X, ...]`` and ``X | tuple[X, ...]``."""
    for part in (kind, *typing.get_args(kind)):
        if typing.get_origin(part) is tuple:
            return typing.get_args(part)[0]
    return None


def _several(text: str, item: Any, source: str) -> tuple[Any, ...]:
    """Return what stands in a text: paths as in ``PATH``, others with commas."""
    parts = text.split(_PATHS_APART if item is Path else ",")
    return tuple(_from_text(part.strip(), item, source) for part in parts if part.strip())


def _from_text(text: str, kind: Any, source: str) -> Any:
    item = _item_kind(kind)
    if item is not None:
        return _several(text, item, source)
    plain = _plain(kind)
    _check_no_object(text, plain, source)
    try:
        if typing.get_origin(plain) in {Mapping, dict}:
            return _pairs(text)
        if plain is bool:
            return _bool(text)
        if plain is Address:
            return Address.parse(text)
        return plain(text)
    except ValueError as error:
        raise InvalidArgument(f"{source} = {shown(text)} is not {_expected(plain)}") from error


def _pairs(text: str) -> dict[str, str]:
    """Return ``key=value,...`` as a mapping; raises ValueError for anything else."""
    values = {}
    for part in filter(None, text.split(",")):
        key, found, value = part.partition("=")
        if not found or not key.strip():
            raise ValueError(part)
        values[key.strip()] = value.strip()
    return values


def _from_toml(value: Any, kind: Any, source: str) -> Any:
    item = _item_kind(kind)
    if item is not None:  # a text alone is one of them, whatever is in it
        values = value if isinstance(value, list) else [value]
        return tuple(_from_toml(each, item, source) for each in values)
    plain = _plain(kind)
    _check_no_object(value, plain, source)
    if plain is float and type(value) is int:
        return float(value)
    if isinstance(value, str) and plain is not bool and not _is_number(plain):
        return _from_text(value, kind, source)
    accepted = dict if typing.get_origin(plain) in {Mapping, dict} else plain
    if type(value) is not accepted:
        raise InvalidArgument(f"{source} = {shown(value)} is not {_expected(plain)}")
    return value


def _is_number(kind: Any) -> bool:
    return kind in {int, float}


def _bool(text: str) -> bool:
    lowered = text.lower()
    if lowered not in _TRUE | _FALSE:
        raise ValueError(text)
    return lowered in _TRUE


def _expected(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    words = {int: "a whole number", float: "a number", bool: "true or false", Address: "host:port"}
    return words.get(
        kind, "a table of texts (key=value,...)" if typing.get_origin(kind) else "a text"
    )
