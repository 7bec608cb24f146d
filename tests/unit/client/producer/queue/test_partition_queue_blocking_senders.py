"""A partition's queue: threads that send the messages they wait for."""

from support.partition_line import BACKOFF_S, Line, numbers, waited

from vq import errors


def test_a_thread_leads_only_where_nothing_else_comes_before_its_message() -> None:
    line = Line()
    line.submit(b"1")
    future = waited(line)
    assert line.queue.claim(future) is None, "a message that is not its thread's stands before it"
    (batch,) = line.send()
    later = waited(line)
    assert line.queue.claim(later) is None, "a batch is in flight"
    line.queue.on_stored(batch, 88)
    line.queue.owner = "sender"
    assert line.queue.claim(later) is None, "the sender is at it"
    line.queue.owner = None
    line.queue.closed = errors.UnknownTopic("deleted")
    assert line.queue.claim(later) is None, "nothing is sent any more"
    line.queue.closed = None
    assert line.queue.claim(later) == [later]
    assert line.queue.claim(later) == [], "again: it leads already"
    assert not line.queue.enter(), "the sender leaves it alone"
    assert line.queue.claim(waited(line)) is None, "one leads at a time"


def test_the_thread_that_leads_takes_what_blocking_senders_wait_for() -> None:
    """Messages with callbacks end the batch: their outcome is told on the loop."""
    line = Line()
    first, second = waited(line), waited(line)
    line.submit(b"not waited for")
    third = waited(line)
    assert line.queue.claim(second) == [first, second], "those before it are waited for, too"
    assert line.queue.shared
    assert line.queue.without_outcome() == [first, second, *line.queue.pending]
    assert line.queue.pending[-1] is third
    line.queue.on_stored(line.queue.batch_of([first, second], [1, 2]), 88)
    assert line.queue.leave(), "the sender has something to do"
    assert line.queue.owner is None


def test_the_lead_goes_on_to_the_thread_that_stands_first() -> None:
    line = Line()
    first = waited(line)
    assert line.queue.claim(first) == [first]
    assert not line.queue.shared
    second, third = waited(line), waited(line)
    line.queue.on_stored(line.queue.batch_of([first], [1]), 88)
    assert not line.queue.leave(), "the sender has nothing to do"
    assert line.queue.owner is second
    assert second.sleep(0), "it was roused"
    assert not third.sleep(0)
    assert line.queue.claim(second) == [second, third]


def test_the_sender_gives_the_lead_back_where_only_threads_wait() -> None:
    line = Line()
    (waits,) = [waited(line)]
    assert not line.queue.enter()
    assert line.queue.owner is waits
    line.queue.owner = None
    waits.leads = False  # its thread went away, or could not send it
    assert line.queue.enter()


def test_what_was_claimed_and_not_sent_stands_first_and_is_the_senders() -> None:
    line = Line()
    first = waited(line)
    assert line.queue.claim(first) == [first]
    later = line.submit(b"2", b"3")
    assert line.queue.without_outcome() == [first, *later]
    assert line.queue.leave()
    assert line.queue.pending == [first, *later]
    assert line.queue.claim(first) is None
    assert line.queue.enter()


def test_a_claimed_message_that_has_its_outcome_leaves_nothing() -> None:
    line = Line()
    first = waited(line)
    line.queue.on_stored(line.queue.batch_of(line.queue.claim(first) or [], [9]), 88)
    assert not line.queue.leave()
    assert line.queue.without_outcome() == []


def test_what_a_blocking_sender_could_not_settle_the_loop_sends_again() -> None:
    line = Line()
    batch = line.queue.batch_of(line.queue.claim(waited(line)) or [], [9])
    assert (batch.sent, batch.attempts, numbers([batch])) == (True, 1, [(0, 0)])
    line.cut(batch)
    assert line.queue.leave()
    line.now += BACKOFF_S
    assert line.send() == [batch]
    assert (batch.attempts, numbers([batch])) == (2, [(0, 0)])


def test_what_its_thread_left_without_an_answer_is_sent_again() -> None:
    """A signal handler raised before the answer was applied."""
    line = Line()
    batch = line.queue.batch_of(line.queue.claim(waited(line)) or [], [9])
    assert line.queue.leave()
    assert (batch.sent, batch.unknown) == (False, True)
    assert line.send() == [batch]


def test_the_sender_takes_the_queue_of_a_thread_that_has_gone() -> None:
    line = Line()
    first, second = waited(line), waited(line)
    assert line.queue.claim(first) == [first, second]
    assert not line.queue.enter()
    first.leads = False
    assert line.queue.enter()
    assert line.queue.pending == [first, second]
