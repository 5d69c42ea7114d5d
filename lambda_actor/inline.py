"""Messages without a cache. The event contains weights and an open episode, the response contains the trajectory.

Both are JSON with base64. AWS Lambda's limit for requests and responses is 6 MB:
https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from lambda_actor.errors import CorruptedMessageError, OversizedMessageError

ACCEPTED = "accepted"
LATE = "late"
"""What became of a trajectory: an answer's ``status``."""
PAYLOAD_BYTES_MAX = 6 * 2**20
"""Lambda's limit for the request and the response of a synchronous invocation."""
FRAME_BYTES_MAX = 4096
"""Maximum bytes of an event or a response without its messages."""


def to_text(message: bytes) -> str:
    """Returns the message as text for JSON."""
    return base64.b64encode(message).decode()


def from_text(text: str) -> bytes:
    """Returns the message from `to_text`.

    Raises:
        CorruptedMessageError: The text is not a message.
    """
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise CorruptedMessageError(f"is not base64: {error}") from None


def text_bytes(message_bytes: int) -> int:
    """Returns the length of `to_text` for a message of this many bytes."""
    return 4 * ((message_bytes + 2) // 3)


class InlineMessages:
    """Replaces `lambda_actor.cache.TrajectoryCache` in an actor by its event and response.

    Attributes:
        trajectory: The submitted trajectory, as text for the response.
    """

    def __init__(self, event: Mapping[str, Any]) -> None:
        """Takes an event with ``weights`` and ``episode``, which may be empty."""
        self._event = event
        self.trajectory = ""

    def fetch_weights(self, policy_version: int) -> bytes:
        """Returns the WEIGHTS message of the event's policy version.

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
        """Keeps the trajectory for the response. The learner decides whether it is too late.

        Raises:
            OversizedMessageError: It does not fit into a response.
        """
        if text_bytes(len(trajectory)) > PAYLOAD_BYTES_MAX - FRAME_BYTES_MAX:
            raise OversizedMessageError(
                f"a trajectory of {len(trajectory)} bytes does not fit into a response of {PAYLOAD_BYTES_MAX}, which "
                "cache.kind = none needs"
            )
        self.trajectory = to_text(trajectory)
        return ACCEPTED

    def is_wanted(self, invocation_id: str) -> bool:
        """Returns True, because there is no cache to ask."""
        return True
