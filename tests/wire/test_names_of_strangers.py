"""Names in messages are those that a configuration could have."""

import msgpack
import pytest

from dpwa.errors import ProtocolError
from dpwa.wire.messages import Goodbye, NewsMessage, decode, encode

REPORT = ["w2", "a", 0.5, 1, 1, 0.0]
BAD = {
    "wide": "\U0001f600" * 64,
    "two lines": "w\n2",
    "a line": "w2\n",
    "space": "w 2",
    "path": "../w2",
    "long": "w" * 65,
}


def changed(message, **fields):
    return [msgpack.packb({**msgpack.unpackb(encode(message)), **fields})]


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
@pytest.mark.parametrize("place", [0, 1])
def test_a_report_of_a_name_that_no_node_can_have_is_refused(name, place):
    report = [*REPORT[:place], name, *REPORT[place + 1 :]]
    news = NewsMessage(request=1, news=())
    assert decode(changed(news, news=[REPORT]))[0].news == (tuple(REPORT),)
    with pytest.raises(ProtocolError):
        decode(changed(news, news=[report]))


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
def test_nobody_else_says_goodbye(name):
    with pytest.raises(ProtocolError):
        decode(changed(Goodbye(request=0, name="w2"), name=name))
