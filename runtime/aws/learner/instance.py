"""What a learner reads from its instance's metadata, and EC2's notice that it takes a spot instance back."""

from __future__ import annotations

import os
import signal
import threading
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from runtime.aws.learner.log import LOG

ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
"""Names the metadata service's address, for boto3 as well."""
_ENDPOINT = "http://169.254.169.254"
_IDENTITY = {"instance_id": "instance-id", "instance_type": "instance-type", "image_id": "ami-id"}
_NOTICE = "spot/instance-action"
_ANSWER_S, _PAUSE_S = 5.0, 5.0


def read_metadata(name: str) -> str:
    """Returns a value of the instance's metadata; empty if there is none of that name.

    Raises:
        OSError: The metadata service does not answer.
    """
    root = os.environ.get(ENDPOINT_VARIABLE, _ENDPOINT).rstrip("/") + "/latest"
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    asked = Request(f"{root}/api/token", method="PUT", headers=headers)
    with urlopen(asked, timeout=_ANSWER_S) as answer:
        token = answer.read().decode()
    asked = Request(f"{root}/meta-data/{name}", headers={"X-aws-ec2-metadata-token": token})
    try:
        with urlopen(asked, timeout=_ANSWER_S) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        if error.code == 404:
            return ""
        raise


def read_identity() -> dict[str, str]:
    """Returns ``instance_id``, ``instance_type`` and ``image_id``; raises like `read_metadata`."""
    return {name: read_metadata(path) for name, path in _IDENTITY.items()}


class InterruptionWatch:
    """Interrupts this process, which then keeps everything, when EC2 takes the instance back in two minutes.

    Attributes:
        notice: EC2's notice; empty until there is one.
    """

    def __init__(self, pause_s: float = _PAUSE_S) -> None:
        """Starts to watch, until the process ends.

        Args:
            pause_s: Between two looks; AWS recommends five seconds.
        """
        self.notice = ""
        self._pause_s, self._pausing = pause_s, threading.Event()
        threading.Thread(target=self._watch, name="interruption", daemon=True).start()

    def _watch(self) -> None:
        while not self.notice:
            self._pausing.wait(self._pause_s)
            try:
                self.notice = read_metadata(_NOTICE)
            except OSError as error:
                LOG.warning("the instance's metadata: %s", error)
        LOG.warning("EC2 takes this instance back: %s", self.notice)
        os.kill(os.getpid(), signal.SIGTERM)
