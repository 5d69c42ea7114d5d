"""The actors of a stream: keeps them in flight and hands their results over."""

from __future__ import annotations

import math

from lambda_actor.errors import ActorError
from runtime.errors import RunError
from runtime.fleet.actors import ActorTally, OpenEpisodeRecord, Trajectory
from runtime.fleet.episodes import continued_episode
from runtime.fleet.flight import Group
from runtime.money.work import ACTOR, Work
from runtime.training.asynchronous.round import StreamedRound
from runtime.training.roles import Roles


class ActorStream:
    """Starts actors in free slots with the newest weights, and collects the ones that end.

    Attributes:
        group: Its actors. Its tally and prefix are the current round's, its trajectories those for the next update.
        is_exhausted: Whether the budget has held too few actors since the current attempt at the round began.
    """

    def __init__(self, roles: Roles) -> None:
        """Starts without actors."""
        self._roles, self._flight, self._money = roles, roles.rollouts.flight, roles.money
        self.group = Group("")
        self._weights = b""
        self._promised_usd = 0.0
        self.is_exhausted = False

    def begin_round(self, round_index: int) -> None:
        """Begins a round; actors in flight count in the round in which they end."""
        self.group.prefix, self.group.tally = f"r{round_index}a", ActorTally()
        self.group.longest_s = None

    @property
    def steps_arrived(self) -> int:
        """Environment steps for the next update."""
        return len(self.group.came) * self._roles.experiment.actor.fragment_steps

    def begin_attempt(self) -> None:
        """Begins another attempt at the round."""
        # Actors that ended have freed their reservations.
        self.is_exhausted = False
        # The ledger on disk does not include this round yet.
        self._promised_usd = 0.0

    def publish(self) -> None:
        """Gives the newest weights to the next actors."""
        updater = self._roles.updating.updater
        self._weights = updater.weights()
        self._flight.publish(updater.policy_version, self._weights)

    def fill(self, current: StreamedRound) -> None:
        """Starts actors in free slots, limited by demand and budget. The oldest open episodes come first."""
        works = self._reserved(current)
        self._promise(current)
        current.most_in_flight = max(
            current.most_in_flight, len(self._flight.in_flight) + len(works)
        )
        if not works:
            return
        for work in works:
            if work.attempt:
                self._money.events.append("actor_replaced", slot=work.slot, attempt=work.attempt)
        spec = self._roles.rollouts.spec(
            current.round_index,
            self._roles.updating.updater.policy_version,
            self._weights,
            timeout_s=self._money.by_the_clock(current.attempt.limits).actor_s,
        )
        self._flight.start(self.group, spec, works, current.numbers, self._waiting_episodes())

    def _reserved(self, current: StreamedRound) -> list[Work]:
        """Reserves the worst cases of actors in free slots; of none if too few would be in flight."""
        if self.is_exhausted or current.missing_steps <= 0:
            return []
        in_flight, wanted = len(self._flight.in_flight), self._in_flight_wanted(current)
        free, works = self._flight.free_slots(), list[Work]()
        while in_flight + len(works) < wanted:
            slot = next(free)
            work = Work(ACTOR, slot, self._flight.attempts[slot])
            if not self._money.meter.reserve([work]):
                self._shrunk(current, in_flight + len(works))
                if in_flight + len(works) < min(wanted, self._roles.scaling.scaler.actors_min):
                    self.is_exhausted = True
                    for reserved in works:
                        self._money.meter.cancel(reserved)
                    return []
                break
            works.append(work)
        return works

    def _in_flight_wanted(self, current: StreamedRound) -> int:
        """Returns how many actors to keep in flight: near a round's end, what it is missing and the next one's minimum.

        Otherwise a boosted round would leave samples in flight for many smaller rounds. No actor starts that
        ``stop.max_steps`` has no room for.
        """
        arrived = len(self.group.came)
        missing = (
            math.ceil(current.missing_steps / self._roles.experiment.actor.fragment_steps) - arrived
        )
        wanted = min(
            current.decision.actor_count,
            missing + self._roles.scaling.scaler.first_wave(current.round_index + 1),
        )
        coming = len(self._flight.awaited) + arrived
        room = self._roles.progress.room_for(coming + wanted) - coming
        return min(wanted, len(self._flight.in_flight) + room)

    def _waiting_episodes(self) -> list[OpenEpisodeRecord]:
        """Returns open episodes that no actor continues, the oldest first."""
        taken = {actor.episode_id for actor in self._flight.awaited}
        taken |= {continued_episode(trajectory) for trajectory in self.group.came}
        return self._roles.rollouts.episodes.not_in(taken)

    def _promise(self, current: StreamedRound) -> None:
        """Makes the ledger on disk cover all current reservations, and some future actors to save writes.

        A quarter of the round's actors is reserved ahead while the ledger is written. It is written again only if more
        is reserved than it promises. An actor cannot use up its worst case within the 10 s of a cold start, so the
        promise holds even if actors run without a break that lasts more than 2 s.
        """
        current.most_reserved_usd = max(current.most_reserved_usd, self._money.meter.reserved_usd)
        if self._money.promised_usd > self._promised_usd:
            with self._money.meter.ahead(math.ceil(current.decision.actor_count / 4)):
                self._money.save()
                self._promised_usd = self._money.promised_usd

    def _shrunk(self, current: StreamedRound, granted: int) -> None:
        if not current.is_shrunk:
            self._money.tell_shrunk(current.round_index, current.decision.actor_count, granted)
        current.is_shrunk = True

    def take_in(self, current: StreamedRound, timeout_s: float) -> None:
        """Collects ended actors until the round has enough; waits for the first one, at most ``timeout_s``.

        The next round collects the rest. A round with enough steps waits for actors in flight, and collects all.
        """
        while not (0 < current.missing_steps <= self.steps_arrived or current.awaits_decision):
            if not self._flight.next(timeout_s):
                break
            timeout_s = 0.0

    def hand_over(self) -> list[Trajectory]:
        """Hands arrived trajectories to the next update, and gives up actors that it would make too stale.

        An actor whose trajectory has already been accepted is not given up: its trajectory joins the update.
        """
        limit = self._roles.experiment.algorithm.staleness_max
        self._flight.give_up(
            [actor for actor in self._flight.awaited if self._is_stale(actor.policy_version)],
            f"an update would have left them more than algorithm.staleness_max = {limit} versions behind",
        )
        arrived, self.group.came = self.group.came, []
        return arrived

    def has_stale(self) -> bool:
        """Returns whether the next update would make an actor in flight, or an arrived trajectory, too stale."""
        versions = [
            *(actor.policy_version for actor in self._flight.awaited),
            *(int(trajectory["policy_version"]) for trajectory in self.group.came),
        ]
        return any(map(self._is_stale, versions))

    def _is_stale(self, policy_version: int) -> bool:
        """Returns whether the next update would make that version's samples too stale."""
        staleness = self._roles.updating.updater.policy_version + 1 - policy_version
        return staleness > self._roles.experiment.algorithm.staleness_max

    def close(self) -> None:
        """Gives up and settles all actors in flight."""
        try:
            self._flight.end("the run ends")
            self._flight.tidy()
        except (ActorError, RunError) as error:
            # Their reservations then count as spent.
            self._money.events.append(
                "actors_not_settled", error=f"{type(error).__name__}: {error}"
            )
