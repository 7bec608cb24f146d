"""Searches against a plain look at every message: nothing is missed, whatever the index says."""

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import batch
from support.store import DIRECTORY, flush, memory_disk, open_log

from vq.message_filter import Filter
from vq.model import Key
from vq.store.care import key_index, walk
from vq.store.care.key_index import KeyIndex, KeyIndexBuilder, Probe
from vq.store.care.key_index_build import KeyIndexBuild, write_key_index
from vq.store.care.search import Search
from vq.store.care.wanted import Wanted, matches
from vq.store.log.piece import Piece
from vq.store.records.batches import verified
from vq.store.records.format import keys_name
from vq.store.records.record import Properties, encode_properties, encode_record

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
keys = st.one_of(
    st.none(),
    st.sampled_from(["a", "b", b"a", b"", 0, 1, "k" * 200, b"\xff" * 200]),
    texts,
    st.binary(max_size=8),
    st.integers(-(2**63), 2**63 - 1),
)
tags = st.one_of(st.none(), st.sampled_from([b"x", b"y"]), texts.map(str.encode))
headers = st.dictionaries(texts, texts, max_size=2)
messages = st.tuples(st.integers(1, 2**63 - 1), keys, tags, headers, st.binary(max_size=60))
batches_of = st.lists(st.lists(messages, min_size=1, max_size=5), min_size=1, max_size=8)


def record_of(message: tuple[int, Key | None, bytes | None, dict[str, str], bytes]) -> bytes:
    number, key, tag, more, payload = message
    return encode_record(number, payload, tag, encode_properties(Properties(key=key, headers=more)))


def wishes(drawn: list[list[tuple]]) -> list[Wanted]:
    """What each of some messages has, alone and together."""
    found = []
    for message in [each for some in drawn for each in some][:6]:
        number, key, tag = message[:3]
        key = None if key == "" else key
        only = () if tag is None else (tag.decode(),)
        found += [
            Wanted(id=number),
            Wanted(key=key),
            Wanted(filter=Filter(only)),
            Wanted(number, key, Filter(only)),
            Wanted(filter=Filter((*only, "x", "none"))),
        ]
    return found


@given(batches_of, st.integers(1, 600))
@settings(deadline=None)
def test_an_index_never_rules_out_what_is_there(drawn: list, part_bytes: int) -> None:
    """Every part with a message that is wanted may have it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "PART_BYTES", part_bytes)
        data = b""
        for some in drawn:
            data += batch([record_of(each) for each in some], len(data))
        found = list(verified(data, 0))
        assert len(found) == len(drawn)
        builder = KeyIndexBuilder(0)
        builder.add(data, found, 0)
        index = KeyIndex(builder.to_bytes())
        for wanted in wishes(drawn):
            probe = Probe(wanted)
            for each in found:
                if any(matches(data, 0, each, wanted)):
                    assert index.may_have(index.part_at(each.start_offset), probe)


@given(batches_of, st.data())
@settings(deadline=None, max_examples=60)
def test_a_search_finds_what_a_plain_look_finds(drawn: list, data: st.DataObject) -> None:
    """With and without indexes, in one go and in pieces, from any place to any other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "PART_BYTES", 200)
        patch.setattr(walk, "STEP_BYTES_MIN", 100)
        patch.setattr(walk, "STEP_BYTES_MAX", 400)
        disk = memory_disk()
        log = open_log(disk)
        stored = []
        for some in drawn:
            offset = log.end_offset + 88
            records = [record_of(each) for each in some]
            for each, record in zip(some, records, strict=True):
                stored.append((offset, each))
                offset += len(record)
            body = b"".join(records)
            crc = google_crc32c.value(body)
            log.append(body, record_count=len(records), records_crc=crc, epoch=1)
            if data.draw(st.booleans()):
                log.roll()
        flush(log)
        end = log.end_offset
        for block in log.closed_blocks:
            if data.draw(st.booleans()):
                start = block.start_offset
                build = KeyIndexBuild(disk, Piece(block.path, start, start, block.end_offset))
                while not build.done:
                    build.step()
                assert build.index is not None
                write_key_index(disk, DIRECTORY / keys_name(start), build.index)
        places = [0, end, *(offset for offset, _ in stored)]
        begin, stop = sorted([data.draw(st.sampled_from(places)) for _ in range(2)])
        wanted = data.draw(st.sampled_from(wishes(drawn)))
        got, position = [], begin
        while position < stop:
            found = Search(
                disk,
                DIRECTORY,
                log.reader.pieces(position, end),
                wanted,
                begin=position,
                end=stop,
                messages_max=data.draw(st.integers(1, 4)),
                bytes_max=data.draw(st.integers(1, 400)),
            )
            while not found.done:
                found.step()
            found.close()
            assert not found.damage
            got += [each.offset for each in found.found]
            assert found.position > position
            position = found.position
        assert got == [
            offset
            for offset, (number, key, tag, _, _) in stored
            if begin <= offset < stop
            and wanted.id in (None, number)
            and (wanted.key is None or (type(key) is type(wanted.key) and key == wanted.key))
            and (not wanted.filter or tag in wanted.filter.encoded)
        ]
