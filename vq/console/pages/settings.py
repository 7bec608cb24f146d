"""Settings of a cluster, and which topics this console masks."""

from sqlalchemy import Connection
from starlette.responses import Response

from vq.console.accounts.accounts import AccountRole
from vq.console.database.schema import masks
from vq.console.pages.page import page, post
from vq.console.pages.topics import settings_in_effect
from vq.console.web.context import PageContext
from vq.console.web.languages import N_
from vq.errors import InvalidArgument
from vq.limits import is_valid_name
from vq.shown import shown


@page("/c/{cluster}/settings")
async def SETTINGS(context: PageContext) -> Response:
    """Show them."""
    settings = await context.run("cluster_settings")
    masked = sorted(await context.console.door.masks(context.site.name))
    return context.page(
        "settings.html",
        settings=settings,
        new_topics=settings_in_effect(settings.new_topics),
        masked=masked,
        database=context.console.database.name,
        kept=context.console.meters[context.site.name].kept,
        left_out=context.console.left_out(context.site.name),
        is_admin=context.visitor.person.role is AccountRole.ADMIN,
        zookeeper=context.site.config.zookeeper,
        command="vq cluster settings",
    )


@post("/c/{cluster}/settings/mask", AccountRole.ADMIN)
async def MASK(context: PageContext) -> Response:
    """Mask a topic, or unmask it."""
    topic, act = context.form.get("topic", "").strip(), context.form.get("act", "")
    if not is_valid_name(topic):
        raise InvalidArgument(f"{shown(topic)} is no name of a topic")
    name = context.site.name
    of = (masks.c.cluster == name) & (masks.c.topic == topic)

    def change(connection: Connection) -> None:
        connection.execute(masks.delete().where(of))
        if act == "mask":
            connection.execute(masks.insert().values(cluster=name, topic=topic))

    await context.console.door.note(
        context.visitor.person, f"{act}_topic" if act == "mask" else "unmask_topic", topic, {}
    )
    await context.console.database.run(change)
    told = N_("Shown again: %(topic)s")
    if act == "mask":
        told = N_("Masked: %(topic)s")
        if all(each.topic != topic for each in context.site.facts.topics):
            told = N_("Masked: %(topic)s. The cluster has no topic of this name now.")
    context.say(told, topic=topic)
    return context.go("settings")
