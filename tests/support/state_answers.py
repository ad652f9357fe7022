"""Donors without sockets: they answer a joiner at once."""

from dpwa.clock import SystemClock
from dpwa.data.checksum import checksum
from dpwa.data.layout import TensorSpec
from dpwa.state.joining import Inbox, Joiner
from dpwa.state.safetensors_image import ImageLayout
from dpwa.transport.link import LinkState
from dpwa.wire import limits
from dpwa.wire.state import AskPiece, AskState, StateDone, StateOffer, StatePiece, StateStanding

LAYOUT = ImageLayout.from_specs([TensorSpec("a", "uint8", (5_000_000,), 1)])
PIECES = -(-LAYOUT.nbytes // limits.CHUNK_BYTES)


def image_of(value):
    image = LAYOUT.empty()
    image[len(LAYOUT.header) :] = value
    return image


class Donor:
    """Answers as a donor does; `changes` may replace any answer by others."""

    def __init__(self, value, clock=50.0, changes=lambda answers: answers):
        self.image = image_of(value)
        self.layout, self.numbers = LAYOUT, b"numbers"
        self.token = b"12345678"
        self.clock = clock
        self.changes = changes
        self.done = 0

    def answers(self, message):
        request = message.request
        match message:
            case AskState(prepares=False):
                return [(StateStanding(**self.far(request)), b"")]
            case AskState():
                return [(StateOffer(**self.offer(request)), self.numbers)]
            case AskPiece():
                data = self.image[message.index * limits.CHUNK_BYTES :][: limits.CHUNK_BYTES]
                fields = {"request": request, "index": message.index, "checksum": checksum(data)}
                return [(StatePiece(**fields), data.tobytes())]
            case StateDone():
                self.done += 1
        return []

    def far(self, request):
        return {"request": request, "clock": self.clock, "is_trained": True, "is_sound": True}

    def offer(self, request):
        return {
            "request": request,
            "token": self.token,
            "nbytes": self.layout.nbytes,
            "fingerprint": self.layout.fingerprint,
            "clock": self.clock,
            "updates": 7,
        }


def joiner_of(donors, most_donors=2, links=None):
    """A joiner that asks these donors, by name."""
    inbox = Inbox()

    def tell(peer, message):
        donor = donors[peer]
        for answer, payload in donor.changes(donor.answers(message)):
            inbox.receive(peer, answer, payload)

    up = dict.fromkeys(donors, LinkState.UP) if links is None else links
    return Joiner(lambda: up, tell, lambda: None, inbox, SystemClock(), most_donors)
