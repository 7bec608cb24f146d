"""Passwords of commands: from a file, or from the person at the terminal; never from arguments.

Arguments of a process are seen by everybody on the machine, and stay in the shell's history.
"""

import sys

import click

from vq.cli.base.settings import Sources, is_given
from vq.security.secret_files import read_secret


def ask_password(sources: Sources) -> str:
    """Return the password of ``--user`` as a person types it; "" if nobody is asked.

    Nobody is where standard input is no terminal, or where a TLS certificate may name the user.
    """
    if is_given("client", "tls_certificate", sources) or not sys.stdin.isatty():
        return ""
    password: str = click.prompt(
        f"Password of {sources.flags['user']}", hide_input=True, err=True, default=""
    )
    return password


def new_password(name: str, path: str | None, variable: str) -> str:
    """Return the password that a user is to have: from a file, a variable, or asked for twice.

    Args:
        name: Of the user.
        path: Of the file; None: none was named.
        variable: What the environment has under ``VQ_NEW_PASSWORD``; "": nothing.

    Raises:
        click.UsageError: There is none of the three.
    """
    if path is not None:
        return read_secret(path)
    if variable:
        return variable
    if not sys.stdin.isatty():
        raise click.UsageError(
            "there is no password: give --new-password-file FILE, set VQ_NEW_PASSWORD, or run the "
            "command at a terminal"
        )
    password: str = click.prompt(
        f"New password of {name}", hide_input=True, confirmation_prompt=True, err=True
    )
    return password
