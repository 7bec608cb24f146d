"""What only a cluster has is refused by its name: a setting that is ignored is found too late."""

from collections.abc import Iterable
from dataclasses import fields
from typing import NoReturn

from vq.client.config import ConsumerConfig, ProducerConfig
from vq.errors import InvalidArgument, InvalidState
from vq.shown import shown


def refuse_settings(config: ProducerConfig | ConsumerConfig, names: Iterable[str]) -> None:
    """Refuse settings of these names that were given.

    Raises:
        InvalidArgument: One was.
    """
    defaults = {each.name: each.default for each in fields(config)}
    for name in names:
        value = getattr(config, name)
        if value != defaults[name]:
            raise InvalidArgument(f"{name} = {shown(value)} needs a cluster; leave it out")


def refuse_name(what: str, name: str) -> NoReturn:
    """Refuse a method that needs a cluster; for vq only.

    Raises:
        InvalidState: Always, but for names that begin with an underscore.
    """
    if name.startswith("_"):
        raise AttributeError(name)
    raise InvalidState(
        f"a {what} of a local factory has no {name}: that needs a cluster",
        hint="give MessageFactoryConfig a cluster instead of local",
    )
