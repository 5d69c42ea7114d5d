"""Messages without a cache: weights and an open episode come in the event, the trajectory goes in the response.

Both are JSON, in which bytes are base64. AWS Lambda takes requests and gives responses of 6 MB:
https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from lambda_actor.cache import ACCEPTED
from lambda_actor.errors import CorruptedMessageError, OversizedMessageError

PAYLOAD_BYTES_MAX = 6 * 2**20
"""What Lambda takes as the request of a synchronous invocation, and gives as its response."""
FRAME_BYTES_MAX = 4096
"""What an event or a response has besides messages, at most."""
INLINE_FIELDS: dict[str, type] = {"weights": str, "episode": str}
"""What an event must carry, besides its other fields, whose ``cache_url`` is empty; ``episode`` may be empty."""


def to_text(message: bytes) -> str:
    """The message as JSON can hold it."""
    return base64.b64encode(message).decode()


def from_text(text: str) -> bytes:
    """The message of `to_text`.

    Raises:
        CorruptedMessageError: It is none.
    """
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise CorruptedMessageError(f"is not base64: {error}") from None


def text_bytes(message_bytes: int) -> int:
    """How long `to_text` makes a message of so many bytes."""
    return 4 * ((message_bytes + 2) // 3)


class InlineMessages:
    """What an actor does with `lambda_actor.cache.TrajectoryCache`, done with its event and its response.

    Attributes:
        trajectory: What was submitted, as text for the response.
    """

    def __init__(self, event: Mapping[str, Any]) -> None:
        """Takes the messages of an event; see `INLINE_FIELDS`."""
        self._event = event
        self.trajectory = ""

    def fetch_weights(self, policy_version: int) -> bytes:
        """Returns the WEIGHTS message, which is that of the event's policy version.

        Raises:
            CorruptedMessageError: It is not base64.
        """
        return from_text(self._event["weights"])

    def fetch_episode(self, episode_id: str) -> bytes:
        """Returns the EPISODE message.

        Raises:
            CorruptedMessageError: It is not base64.
        """
        return from_text(self._event["episode"])

    def submit(self, invocation_id: str, trajectory: bytes) -> str:
        """Keeps the trajectory for the response; whether it comes too late, the learner decides.

        Raises:
            OversizedMessageError: No response can hold it.
        """
        if text_bytes(len(trajectory)) > PAYLOAD_BYTES_MAX - FRAME_BYTES_MAX:
            raise OversizedMessageError(
                f"a trajectory of {len(trajectory)} bytes does not fit into a response of {PAYLOAD_BYTES_MAX}, which "
                "cache.kind = none needs")
        self.trajectory = to_text(trajectory)
        return ACCEPTED

    def is_wanted(self, invocation_id: str) -> bool:
        """True: there is nobody to ask."""
        return True
