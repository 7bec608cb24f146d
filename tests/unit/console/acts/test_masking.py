"""Results without the contents of masked topics."""

from vq.console.acts.masking import masked
from vq.console.acts.messages import BrowsedMessages
from vq.model import Message


def test_contents_are_taken_out_wherever_they_lie() -> None:
    secret, open_one = Message("s", b"secret", key="k"), Message("o", b"open")
    found = masked(BrowsedMessages([secret, open_one], {0: 1}, {}), {"s"})
    assert [each.content for each in found.messages] == [b"", b"open"]
    assert found.messages[0].key == "k"
    assert masked((secret,), {"o"}) == (secret,)
    assert masked([[secret]], {"s"})[0][0].content == b""
