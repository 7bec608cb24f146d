"""The document of definitions: what it says comes back, and what it must not say is named."""

import json
from typing import Any

import pytest

from vq.coordination.tree.values.cluster import ClusterSettings
from vq.coordination.tree.values.group_terms import FailurePolicy
from vq.errors import InvalidArgument
from vq.model import RetentionPolicy, TopicSettings
from vq.operations.cluster.definition_file import (
    DefinedBrokers,
    DefinedTopic,
    Definitions,
    definitions_from,
    definitions_json,
)
from vq.operations.groups.making import ExportedOffset, GroupExport
from vq.operations.groups.terms import GroupTerms

FULL = Definitions(
    cluster="c",
    time_ms=5_000,
    settings=ClusterSettings(may_create=True, delete_grace_hours=3),
    broker_groups=(DefinedBrokers("b1", "big", {"rack": "r1"}), DefinedBrokers("b2")),
    topics=(
        DefinedTopic("t", TopicSettings(partitions=7, flush="async", compression="lz4")),
        DefinedTopic("u", TopicSettings(retention_policy=RetentionPolicy.KEEP)),
    ),
    groups=(
        GroupExport(
            group="g",
            time_ms=5_000,
            start="latest",
            topics={"t": "a || b", "orders.*": ""},
            offsets=(ExportedOffset(topic="t", partition=3, offset=9, topic_id="x"),),
            terms=GroupTerms(
                model="clustering",
                mode="keyed",
                order="relaxed",
                strategy="circle",
                failure=FailurePolicy(on_failure="skip", max_attempts=9),
                offset_store="any",
            ),
        ),
    ),
)


def written(found: Definitions = FULL) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(definitions_json(found)))
    return document


def test_definitions_come_back_from_their_document() -> None:
    assert definitions_from(written()) == FULL


def test_a_section_that_is_left_out_says_nothing() -> None:
    found = definitions_from({"format": "vq definitions", "v": 1})
    assert found == Definitions()
    assert set(written(found)) == {"format", "v", "cluster", "time_s"}


def test_what_people_leave_out_has_its_default() -> None:
    head = {"format": "vq definitions", "v": 1}
    found = definitions_from({**head, "topics": [{"topic": "t"}], "groups": [{"group": "g"}]})
    assert found.topics == (DefinedTopic("t", TopicSettings()),)
    (group,) = found.groups or ()
    assert (group.start, group.topics, group.terms.mode) == ("earliest", {}, "orderly")


def put(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Set a value in a document, by its path."""
    *above, last = path.split(".")
    at: Any = document
    for each in above:
        at = at[int(each)] if each.isdecimal() else at[each]
    at[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("format", "other", "is not 'vq definitions'"),
        ("v", 2, "reads v1; upgrade vq here"),
        ("mine", 1, "the document has 'mine', which this vq does not know"),
        ("time_s", "x", "no number of seconds"),
        ("topics", {}, "topics = {} is no list"),
        ("topics.0.settings.retention", 1, r"topics\[0\].settings has 'retention'"),
        ("topics.0.settings.partitions", 0, r"topics\[0\].settings: partitions = 0"),
        ("topics.0.settings.flush", "never", r"topics\[0\].settings: "),
        ("topics.0.topic", "a b", r"topics\[0\]: "),
        ("topics.1.topic", "t", "topics has 't' twice"),
        ("broker_groups.0.labels.rack", 5, r"broker_groups\[0\].labels.rack = 5 is no text"),
        ("broker_groups.0.pool", "", "pool = '' is not the name of a pool"),
        ("settings.auto_create.enabled", 1, "is not true or false"),
        ("settings.delete_grace_hours", -1, "settings: delete_grace_hours = -1"),
        ("groups.0.topics.t", 5, r"groups\[0\].topics.t = 5 is no filter"),
        ("groups.0.terms.failure.max_attempts", 0, r"terms.failure: max_attempts = 0"),
        ("groups.0.offsets.0.next", 1, r"offsets\[0\] has 'next'"),
        ("groups.0.terms", [], r"groups\[0\].terms = \[\] is no object"),
    ],
)
def test_what_means_nothing_is_refused_with_its_place(path: str, value: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        definitions_from(put(written(), path, value))


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"the document = \[\] is no object"):
        definitions_from([])
