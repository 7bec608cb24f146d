"""Descriptor sets of protobuf, and of which type the messages of topics are."""

import asyncio
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from vq.console.acts.descriptors import (
    KeptDescriptors,
    TopicType,
    check_topic_type,
    forget_topic_type,
    keep_descriptors,
    list_descriptors,
    list_topic_types,
    read_descriptors,
    remove_descriptors,
    set_topic_type,
)
from vq.console.acts.door import ACTING
from vq.console.pages.page import page, post
from vq.console.web.context import PageContext
from vq.console.web.forms import Field, confirm, text_of
from vq.console.web.languages import N_
from vq.console.web.tables import Asked, Column, Kind, table
from vq.decoding.descriptors import DescriptorSet
from vq.errors import InvalidArgument
from vq.shown import shown

_NAME_CHARS_MAX: Final = 2_000


@page("/c/{cluster}/descriptors")
async def DESCRIPTORS(context: PageContext) -> Response:
    """List sets, and topics with a type."""
    return await _listed(context)


async def _listed(context: PageContext, problem: str = "") -> Response:
    cluster, sent = context.site.name, context.form
    sets = await context.console.database.run(lambda each: list_descriptors(each, cluster))
    typed = await context.console.database.run(lambda each: list_topic_types(each, cluster))
    topic = sent.get("topic") or context.query.get("topic", "")
    present = next((each for each in typed if each.topic == topic), None)
    columns: list[Column[KeptDescriptors]] = [
        Column(
            "name",
            N_("Name"),
            lambda each: each.name,
            link=lambda each: context.path("descriptors", each.name),
        ),
        Column("types", N_("Types"), lambda each: each.types, Kind.COUNT),
        Column("size", N_("Size"), lambda each: each.size_bytes, Kind.BYTES),
        Column("uploaded", N_("Uploaded"), lambda each: each.time_ms, Kind.MOMENT),
        Column("person", N_("Person"), lambda each: each.person),
    ]
    topics: list[Column[TopicType]] = [
        Column(
            "topic",
            N_("Topic"),
            lambda each: each.topic,
            link=lambda each: context.path("topics", each.topic, "messages"),
        ),
        Column("type", N_("Type"), lambda each: each.type, Kind.CODE),
        Column(
            "descriptors",
            N_("Descriptor set"),
            lambda each: each.descriptors,
            link=lambda each: context.path("descriptors", each.descriptors),
        ),
    ]
    return context.page(
        "descriptors.html",
        400 if problem else 200,
        problem=problem,
        acts=context.visitor.person.role in ACTING,
        sets=table(
            columns,
            sets,
            Asked.of(context.query, "s."),
            empty=N_("There is no descriptor set yet. Write one with protoc, and upload it."),
            searched=lambda each: each.name,
        ),
        typed=table(
            topics,
            typed,
            Asked.of(context.query, "t."),
            empty=N_("No topic has a type: contents are read as JSON, text, Hessian or hex."),
            searched=lambda each: f"{each.topic} {each.type}",
        ),
        upload=[
            Field("name", N_("Name"), value=sent.get("name", ""), required=True),
            Field(
                "file",
                N_("File"),
                "file",
                help=N_("As protoc writes it; 1 MiB at most. It takes the place of one so named."),
                required=True,
            ),
        ],
        choose=_choose_fields(
            topic,
            sent.get("type") or (present.type if present else ""),
            [each.name for each in sets],
            sent.get("descriptors") or (present.descriptors if present else ""),
        ),
        forgets=present,
    )


def _choose_fields(topic: str, wanted: str, sets: list[str], chosen: str) -> list[Field]:
    return [
        Field("topic", N_("Topic"), value=topic, required=True),
        Field(
            "descriptors", N_("Descriptor set"), "select", chosen, [(each, each) for each in sets]
        ),
        Field(
            "type",
            N_("Type"),
            value=wanted,
            help=N_("The full name, such as shop.Order; the page of a set lists them."),
            required=True,
        ),
    ]


@page("/c/{cluster}/descriptors/{name}")
async def DESCRIPTOR_SET(context: PageContext) -> Response:
    """List the types of a set."""
    name, cluster = context.param("name"), context.site.name
    found = await context.console.database.run(lambda each: read_descriptors(each, cluster, name))
    columns: list[Column[str]] = [
        Column(
            "type",
            N_("Type"),
            lambda each: each,
            Kind.CODE,
            link=lambda each: f"?type={quote(each, safe='')}#f-type",
        )
    ]
    types = table(
        columns,
        found.types,
        Asked.of(context.query),
        empty=N_("It has no type of messages."),
        searched=lambda each: each,
    )
    return context.exported(types, f"{name}-types") or context.page(
        "descriptor_set.html",
        name=name,
        acts=context.visitor.person.role in ACTING,
        types=types,
        choose=_choose_fields(
            context.query.get("topic", ""), context.query.get("type", ""), [name], name
        ),
    )


@post("/c/{cluster}/descriptors/act")
async def ACT(context: PageContext) -> Response:
    """Upload or delete a set; choose or forget the type of a topic."""
    act = context.form.get("act", "")
    if act not in _ACTS:
        raise InvalidArgument(f"{shown(act)} is no act on descriptor sets")
    try:
        return await _ACTS[act](context)
    except InvalidArgument as error:
        return await _listed(context, str(error))


async def _upload(context: PageContext) -> Response:
    cluster, name = context.site.name, context.form.get("name", "").strip()
    data, person = context.files.get("file", b""), context.visitor.person
    await asyncio.to_thread(DescriptorSet.parse, data)  # before it is written down as done
    await context.console.door.note(person, "keep_descriptors", name, {"bytes": len(data)})
    types = await context.console.database.run(
        lambda each: keep_descriptors(each, cluster, name, data, person.name)
    )
    context.say(N_("Kept: %(what)s, with %(count)s types"), what=name, count=types)
    return context.go("descriptors", name)


async def _delete(context: PageContext) -> Response:
    cluster, name = context.site.name, context.form.get("name", "")
    confirm(context.form, name)
    await context.console.database.run(lambda each: read_descriptors(each, cluster, name))
    await context.console.door.note(context.visitor.person, "delete_descriptors", name, {})
    await context.console.database.run(lambda each: remove_descriptors(each, cluster, name))
    context.say(N_("Deleted: %(what)s"), what=name)
    return context.go("descriptors")


async def _choose(context: PageContext) -> Response:
    cluster, sent = context.site.name, context.form
    wanted = TopicType(
        sent.get("topic", "").strip(),
        sent.get("descriptors", ""),
        text_of(sent, "type", most=_NAME_CHARS_MAX).strip(),
    )
    told = {"descriptors": wanted.descriptors, "type": wanted.type}
    await context.console.database.run(lambda each: check_topic_type(each, cluster, wanted))
    await context.console.door.note(context.visitor.person, "set_topic_type", wanted.topic, told)
    await context.console.database.run(lambda each: set_topic_type(each, cluster, wanted))
    context.say(N_("%(topic)s has messages of type %(type)s"), topic=wanted.topic, type=wanted.type)
    return context.go("topics", wanted.topic, "messages")


async def _forget(context: PageContext) -> Response:
    cluster, topic = context.site.name, context.form.get("topic", "")
    await context.console.door.note(context.visitor.person, "forget_topic_type", topic, {})
    await context.console.database.run(lambda each: forget_topic_type(each, cluster, topic))
    context.say(N_("Forgotten: the type of %(topic)s"), topic=topic)
    return context.go("descriptors")


_ACTS: Final = {"upload": _upload, "delete": _delete, "choose": _choose, "forget": _forget}
