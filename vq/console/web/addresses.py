"""Addresses that come from a request."""

from urllib.parse import urlsplit


def own_path(wanted: str) -> str:
    """Return a path of this console to go to; "/" if it leads elsewhere."""
    if not wanted.startswith("/") or wanted.startswith(("//", "/\\")):
        return "/"
    if any(ord(each) < 33 or each == "\\" for each in wanted):
        return "/"
    parts = urlsplit(wanted)
    return "/" if parts.scheme or parts.netloc else wanted


def path_of(address: str) -> str:
    """Return what stands behind the host of an address; "/" if that is no path of this console."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "/"
    return own_path(parts._replace(scheme="", netloc="", fragment="").geturl())
