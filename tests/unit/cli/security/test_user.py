"""``vq user``: users are added, listed, changed and removed, and no password shows anywhere."""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.cases import case
from support.commands import cells, refused, run_command
from support.coordination import client_of
from support.json_schema import schema_of, wrong

from vq.cli.base.options import Invocation
from vq.cli.security.user import user
from vq.client.cluster import ClusterClient
from vq.clock import SystemClock
from vq.coordination.security.users import add_user as store_user
from vq.coordination.security.users import read_user
from vq.coordination.tree.memory import MemoryEnsemble
from vq.coordination.tree.values.users import ROLES_MAX, StoredSecret, StoredUser
from vq.errors import InvalidArgument, InvalidState
from vq.operations.security.users import (
    add_user,
    change_user_roles,
    finish_rotation,
    list_users,
    rotate_user,
)
from vq.security.scram import ITERATIONS, ITERATIONS_MIN, derive

Vq = Callable[..., tuple[int, str, str]]
PASSWORD, NEXT = "hunter2-hunter2", "correct horse"


async def on(
    ensemble: MemoryEnsemble, operation: Callable[..., Any], *arguments: Any, **named: Any
) -> Any:
    async with client_of(ensemble) as coordinator:
        cluster = SimpleNamespace(coordinator=coordinator, clock=SystemClock())
        return await operation(cast("ClusterClient", cluster), *arguments, **named)


@pytest.fixture
def ensemble(monkeypatch: pytest.MonkeyPatch) -> MemoryEnsemble:
    """Commands run on this tree."""
    made = MemoryEnsemble()

    def call(_: object, operation: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return asyncio.run(on(made, operation, *arguments, **named))

    monkeypatch.setattr(Invocation, "call", call)
    return made


@pytest.fixture
def vq(ensemble: MemoryEnsemble, capsys: pytest.CaptureFixture[str]) -> Vq:
    """Run ``vq user``; return exit code, output and remarks."""
    return lambda *arguments: run_command(user, arguments, capsys)


def stored(ensemble: MemoryEnsemble, name: str) -> StoredUser:
    async def read(cluster: ClusterClient) -> StoredUser:
        return await read_user(cluster.coordinator, name)

    found = asyncio.run(on(ensemble, read))
    assert isinstance(found, StoredUser)
    return found


def file_of(tmp_path: Path, password: str) -> str:
    path = tmp_path / f"password-{len(password)}"
    path.touch(mode=0o600)
    path.write_text(f"{password}\nnot this line\n")
    return str(path)


def test_a_user_is_added_with_the_password_of_a_file(
    vq: Vq, ensemble: MemoryEnsemble, tmp_path: Path
) -> None:
    code, out, said = vq(
        "add", "anna", "--role", "shop", "--new-password-file", file_of(tmp_path, PASSWORD)
    )
    assert code == 0
    assert "user anna: added" in said
    (row,) = cells(out)
    assert (row["user"], row["roles"], row["password"]) == ("anna", "shop", "one")
    kept = stored(ensemble, "anna")
    assert kept.iterations == ITERATIONS
    assert kept.secrets[0].keys == derive(PASSWORD, kept.salt, ITERATIONS).secret
    assert refused(user, ["add", "anna", "--no-password"], code=1)["error"] == "UserExists"


def test_no_user_is_called_as_those_who_have_no_name(vq: Vq, ensemble: MemoryEnsemble) -> None:
    """Rules and quotas of ``anonymous`` speak of all who have proved no name."""
    code, _, said = vq("add", "anonymous", "--no-password")
    assert code == 2
    assert "choose another one" in said
    assert vq("list")[1].splitlines()[1:] == []


def test_a_new_password_has_twelve_characters_and_an_older_one_stays_valid(
    vq: Vq, ensemble: MemoryEnsemble, tmp_path: Path
) -> None:
    """An invisible character does not count: RFC 4013 takes it away."""
    for short in ("abc", "elevenchars", "elevenchars\u00ad"):
        code, _, said = vq("add", "anna", "--new-password-file", file_of(tmp_path, short))
        assert code == 2
        assert "at least 12 are needed" in said
        assert short not in said
    assert vq("list")[1].splitlines()[1:] == []

    async def add_early(cluster: ClusterClient) -> None:
        made = StoredUser(
            salt=b"0123456789abcdef",
            iterations=ITERATIONS_MIN,
            secrets=(StoredSecret(derive("abc", b"0123456789abcdef", ITERATIONS_MIN).secret, 1),),
        )
        await store_user(cluster.coordinator, "anna", made)

    asyncio.run(on(ensemble, add_early))
    assert cells(vq("show", "anna")[1])[0]["password"] == "one"
    assert vq("rotate", "anna", "--new-password-file", file_of(tmp_path, "elevenchars"))[0] == 2
    assert vq("rotate", "anna", "--new-password-file", file_of(tmp_path, "twelve chars"))[0] == 0
    assert len(stored(ensemble, "anna").secrets) == 2


def test_a_password_is_taken_from_the_environment(
    vq: Vq, ensemble: MemoryEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VQ_NEW_PASSWORD", PASSWORD)
    assert vq("add", "anna")[0] == 0
    kept = stored(ensemble, "anna")
    assert kept.secrets[0].keys == derive(PASSWORD, kept.salt, ITERATIONS).secret


def test_without_a_terminal_nobody_is_asked(vq: Vq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VQ_NEW_PASSWORD", raising=False)
    code, _, said = vq("add", "anna")
    assert code == 2
    assert "--new-password-file" in said


def test_a_rotation_has_two_valid_passwords_until_it_is_finished(
    vq: Vq, ensemble: MemoryEnsemble, tmp_path: Path
) -> None:
    vq("add", "anna", "--new-password-file", file_of(tmp_path, PASSWORD))
    before = stored(ensemble, "anna")
    assert "old password" not in vq("rotate", "anna", "--finish")[2]  # there is none to withdraw
    code, out, said = vq("rotate", "anna", "--new-password-file", file_of(tmp_path, NEXT))
    assert (code, cells(out)[0]["password"]) == (0, "two are valid")
    assert "both passwords are valid" in said
    both = stored(ensemble, "anna")
    new = derive(NEXT, before.salt, ITERATIONS).secret
    assert [each.keys for each in both.secrets] == [new, before.secrets[0].keys]
    assert (
        vq("rotate", "anna", "--new-password-file", file_of(tmp_path, "a third password"))[0] == 1
    )
    assert vq("rotate", "anna", "--finish")[0] == 0
    assert [each.keys for each in stored(ensemble, "anna").secrets] == [new]


def test_roles_are_given_and_taken(vq: Vq, ensemble: MemoryEnsemble) -> None:
    vq("add", "anna", "--no-password", "--role", "a", "--role", "b")
    assert vq("roles", "anna", "--add", "c", "--remove", "a")[0] == 0
    assert stored(ensemble, "anna").roles == ("b", "c")
    said = vq("roles", "anna", "--remove", "d")[2]
    assert "nothing was changed; it did not have d" in said
    assert vq("roles", "anna")[0] == 2
    assert vq("roles", "anna", "--add", "x", "--remove", "x")[0] == 2


def test_a_user_is_removed_with_yes_only(vq: Vq, ensemble: MemoryEnsemble) -> None:
    vq("add", "anna", "--no-password")
    assert "would be removed" in vq("remove", "anna")[1]
    assert vq("show", "anna")[0] == 0
    assert "removed" in vq("remove", "anna", "--yes")[1]
    assert refused(user, ["remove", "anna", "--yes"], code=1)["error"] == "UnknownUser"
    assert "there are no users" in vq("list")[2]


def test_a_value_that_cannot_be_read_is_listed_and_can_be_removed(
    vq: Vq, ensemble: MemoryEnsemble
) -> None:
    async def damage(cluster: ClusterClient) -> None:
        await cluster.coordinator.create(
            "security/users/anna", b'{"v": 1, "salt": "5a5a"}', parents=True
        )

    asyncio.run(on(ensemble, damage))
    code, out, _ = vq("list")
    assert code == 0
    assert "5a5a" not in out
    assert "not a user" in cells(out)[0]["problem"]
    assert vq("show", "anna")[0] != 0
    assert vq("remove", "anna", "--yes")[0] == 0


def test_no_output_log_or_error_has_a_password_or_a_key(
    vq: Vq, ensemble: MemoryEnsemble, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is done, in tables, JSON, errors and tracebacks."""
    caplog.set_level(logging.DEBUG)
    path = file_of(tmp_path, PASSWORD)
    commands = [
        ["add", "anna", "--new-password-file", path],
        ["add", "anna", "--new-password-file", path],
        ["rotate", "anna", "--new-password-file", path],
        ["rotate", "anna", "--new-password-file", file_of(tmp_path, NEXT)],
        ["rotate", "anna", "--finish"],
        ["list"],
        ["show", "anna"],
        ["roles", "anna", "--add", "shop"],
    ]
    said = ""
    for each in commands:
        for more in ([], ["--json"]):
            said += "".join(map(str, vq(*each, *more)))
    kept = stored(ensemble, "anna")
    said += caplog.text + repr(kept) + repr(asyncio.run(on(ensemble, list_users)))
    secrets = [PASSWORD, NEXT, kept.salt.hex(), *(k.hex() for k in kept.secrets[0].keys)]
    for secret in secrets:
        with case(secret):
            assert secret not in said


def test_json_is_as_its_schema_says(vq: Vq, ensemble: MemoryEnsemble, tmp_path: Path) -> None:
    shown = {
        "user add": ["add", "anna", "--new-password-file", file_of(tmp_path, PASSWORD)],
        "user list": ["list"],
        "user show": ["show", "anna"],
        "user rotate": ["rotate", "anna", "--new-password-file", file_of(tmp_path, NEXT)],
        "user roles": ["roles", "anna", "--add", "shop"],
        "user remove": ["remove", "anna", "--yes"],
    }
    for name, arguments in shown.items():
        with case(name):
            _, out, _ = vq(*arguments, "--json")
            assert not list(wrong(json.loads(out), schema_of(name.split())))


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "ä", "x" * 201])
async def test_a_name_is_as_all_names_are(name: str) -> None:
    with pytest.raises(InvalidArgument):
        await on(MemoryEnsemble(), add_user, name, None)


async def test_what_cannot_be_is_refused_before_anything_is_written() -> None:
    ensemble = MemoryEnsemble()
    roles = [f"r{n}" for n in range(ROLES_MAX + 1)]
    for arguments, named in (
        (("anna", "x" * 300), {}),
        (("anna", ""), {}),
        (("anna", None), {"roles": roles}),
        (("anna", None), {"roles": ["a", "a"]}),
        (("anna", None), {"roles": ["a b"]}),
    ):
        with case(named), pytest.raises(InvalidArgument):
            await on(ensemble, add_user, *arguments, **named)
    assert await on(ensemble, list_users) == []


async def test_a_user_of_a_certificate_may_get_a_password_later() -> None:
    ensemble = MemoryEnsemble()
    await on(ensemble, add_user, "anna", None)
    entry = await on(ensemble, rotate_user, "anna", PASSWORD)
    assert not entry.rotating
    with pytest.raises(InvalidState, match="none to withdraw"):
        await on(ensemble, finish_rotation, "anna")
    with pytest.raises(InvalidState, match="already"):
        await on(ensemble, rotate_user, "anna", PASSWORD)


async def test_roles_that_are_there_already_change_nothing() -> None:
    ensemble = MemoryEnsemble()
    before = await on(ensemble, add_user, "anna", None, roles=["a"])
    assert await on(ensemble, change_user_roles, "anna", add=["a"], remove=["b"]) == before
