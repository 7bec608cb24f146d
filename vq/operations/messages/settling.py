"""What became of dead letters: notes beside them in the same log, and what these mean together.

A note is a message of a topic of dead letters with the header ``_vq.settled`` and JSON as content:

    begun     some letters are to be sent as one batch with this stamp to this partition
    sent      the batch of a note ``begun`` is stored
    gone      the topic of a note ``begun`` is gone, and whatever was sent to it
    deleted   somebody gave up some letters, and with them what was begun of their batch

A partition is one sequence, so everybody who reads it comes to the same result: the first note that
names a letter has it, and what later notes say of the letter does not count. A note ``begun`` is
stored before its batch is sent. Whoever finds one without an end sends the very same batch again,
with the same stamp: the broker stores it once, also if two do so at the same time.

Example: letters at 88 and 250. Note 400 has begun both, note 600 has begun 250 and 500. Then 600
has only 500. Pure.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from vq.errors import CorruptData
from vq.model import Message, ProducerStamp, TopicPartition
from vq.reserved import SETTLED

_VERSION: Final = 1


class NoteKind(StrEnum):
    """What a note says; the value of its header."""

    BEGUN = "begun"
    SENT = "sent"
    GONE = "gone"
    DELETED = "deleted"


class LetterState(StrEnum):
    """What became of a dead letter."""

    OPEN = "open"  # nothing: it can be sent again
    RESENDING = "resending"  # it is being sent, or was being sent when that was interrupted
    RESENT = "resent"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a note says.

    Attributes:
        kind: Which of the fields below it has.
        by: The user and machine that wrote it.
        time_ms: When, by the clock of that machine, in milliseconds since 1970.
        letters: Offsets of letters, in rising order; of ``begun`` and ``deleted``.
        target, topic_id, stamp: Where to, and how the batch is stamped; of ``begun``.
        begun: The offset of the note ``begun`` that it ends; of ``sent`` and ``gone``.
    """

    kind: NoteKind
    by: str
    time_ms: int
    letters: tuple[int, ...] = ()
    target: TopicPartition | None = None
    topic_id: str = ""
    stamp: ProducerStamp | None = None
    begun: int = -1

    def message(self, topic: str) -> Message:
        """Return the note as a message without an id."""
        values: dict[str, Any] = {"v": _VERSION, "by": self.by, "time_ms": self.time_ms}
        if self.letters:
            values["letters"] = list(self.letters)
        if self.target is not None and self.stamp is not None:
            values |= {"to": list(self.target), "topic_id": self.topic_id}
            values["stamp"] = list(self.stamp)
        if self.begun >= 0:
            values["begun"] = self.begun
        content = json.dumps(values, sort_keys=True).encode()
        return Message(topic, content, headers={SETTLED: str(self.kind)})

    @classmethod
    def of(cls, message: Message) -> Self | None:
        """Return the note that a message is; None: it is a dead letter.

        Raises:
            CorruptData: It is a note that cannot be read: a later vq wrote it, or another hand.
        """
        kind = (message.headers or {}).get(SETTLED)
        if kind is None:
            return None
        try:
            values: Mapping[str, Any] = json.loads(message.content)
            if values["v"] != _VERSION:
                raise ValueError(f"version {values['v']}")
            to, stamp = values.get("to"), values.get("stamp")
            return cls(
                kind=NoteKind(kind),
                by=str(values["by"]),
                time_ms=int(values["time_ms"]),
                letters=tuple(int(each) for each in values.get("letters", ())),
                target=None if to is None else TopicPartition(str(to[0]), int(to[1])),
                topic_id=str(values.get("topic_id", "")),
                stamp=None if stamp is None else ProducerStamp(*(int(each) for each in stamp)),
                begun=int(values.get("begun", -1)),
            )
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise CorruptData(
                f"the message at {message.topic}-{message.partition}@{message.offset} tells what "
                f"became of dead letters, and cannot be read: {error}; a later vq wrote it, or it "
                "was sent by hand"
            ) from error


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of one letter, who did it, and when."""

    state: LetterState
    by: str
    time_ms: int


class Ledger:
    """What the notes of one partition say together. Memory: some 100 bytes a letter they name.

    Attributes:
        unfinished: By offset the notes ``begun`` without an end, in rising order.
    """

    def __init__(self) -> None:
        self.unfinished: dict[int, Note] = {}
        self._settled: dict[int, Settled] = {}
        self._has: dict[int, tuple[int, ...]] = {}  # by note, the letters that are its own
        self._batch: dict[int, int] = {}  # by letter that is being sent, the note that has it

    def add(self, offset: int, note: Note) -> None:
        """Take the next note of the log."""
        if note.kind is NoteKind.BEGUN:
            self._begin(offset, note)
        elif note.kind is NoteKind.DELETED:
            for letter in note.letters:
                self._delete(letter, note)
        else:
            self._end(note)

    def _end(self, note: Note) -> None:
        """End a batch; of one that was given up in part, the rest may have been on its way."""
        self.unfinished.pop(note.begun, None)
        for letter in self._has.get(note.begun, ()):
            if self._batch.get(letter) != note.begun:
                continue
            del self._batch[letter]
            if note.kind is NoteKind.SENT:
                self._settled[letter] = Settled(LetterState.RESENT, note.by, note.time_ms)
            else:
                del self._settled[letter]

    def _delete(self, letter: int, note: Note) -> None:
        """Give up a letter; nobody sends the rest of a batch that it was in."""
        if self.of(letter) not in {LetterState.OPEN, LetterState.RESENDING}:
            return
        begun = self._batch.pop(letter, None)
        if begun is not None:
            self.unfinished.pop(begun, None)
        self._settled[letter] = Settled(LetterState.DELETED, note.by, note.time_ms)

    def _begin(self, offset: int, note: Note) -> None:
        own = tuple(each for each in note.letters if self.of(each) is LetterState.OPEN)
        self._has[offset] = own
        if own:
            self.unfinished[offset] = note
        for letter in own:
            self._settled[letter] = Settled(LetterState.RESENDING, note.by, note.time_ms)
            self._batch[letter] = offset

    def of(self, letter: int) -> LetterState:
        """Return what became of the letter at an offset."""
        found = self._settled.get(letter)
        return LetterState.OPEN if found is None else found.state

    def settled(self, letter: int) -> Settled | None:
        """Return who did something about a letter, and when; None: nobody."""
        return self._settled.get(letter)

    def letters_of(self, begun: int) -> Sequence[int]:
        """Return the letters of the batch of a note ``begun``, in rising order: those it has."""
        return self._has.get(begun, ())
