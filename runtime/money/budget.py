"""The budget: reserves before it spends, so that spent + reserved never exceeds it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from runtime.errors import BudgetError

UNITS_PER_USD = 2**36
"""Amounts are whole numbers of this fraction of a dollar."""


class Budget:
    """Dollars spent and reserved, counted in whole units of 2⁻³⁶ USD (1.5e-11 of a dollar).

    The limit is rounded down and every amount up. Sums are exact, also as floats up to 100,000 USD. Reservations have
    names, and settling always draws on one of them.
    """

    def __init__(self, usd: float) -> None:
        self._limit = math.floor(usd * UNITS_PER_USD)
        self._spent = 0
        self._reserved: dict[str, int] = {}

    @property
    def spent_usd(self) -> float:
        return self._spent / UNITS_PER_USD

    @property
    def reserved_usd(self) -> float:
        return sum(self._reserved.values()) / UNITS_PER_USD

    @property
    def free_usd(self) -> float:
        """Dollars neither spent nor reserved; negative only after an overrun was recorded."""
        return (self._limit - self._spent - sum(self._reserved.values())) / UNITS_PER_USD

    @property
    def reservations(self) -> Mapping[str, float]:
        """Dollars of each reservation, by its name."""
        return {name: amount / UNITS_PER_USD for name, amount in self._reserved.items()}

    def fits(self, amounts_usd: Iterable[float], *, instead_of: str = "") -> bool:
        """Returns whether all of these dollars could be reserved together.

        Args:
            instead_of: Name of a reservation that they would replace.
        """
        added = sum(map(_units, amounts_usd))
        others = sum(self._reserved.values()) - self._reserved.get(instead_of, 0)
        return not added or self._spent + others + added <= self._limit

    def reserve(self, amounts_usd: Mapping[str, float], *, instead_of: str = "") -> bool:
        """Reserves dollars by name; returns False and changes nothing if they do not fit together.

        Args:
            instead_of: Name of a reservation that they replace, if there is one.

        Raises:
            BudgetError: A name is already in use, or an amount is negative or infinite.
        """
        units = {name: _units(usd) for name, usd in amounts_usd.items()}
        if used := units.keys() & self._reserved.keys():
            raise BudgetError(f"{', '.join(sorted(used))}: reserved already")
        if not self.fits(amounts_usd.values(), instead_of=instead_of):
            return False
        self.release(instead_of)
        self._reserved |= units
        return True

    def settle(self, name: str, usd: float) -> bool:
        """Spends ``usd`` of the reservation and frees the rest of it.

        The actual amount is recorded even if it exceeds the reservation.

        Returns:
            False if it did: the caller's worst case was too low.

        Raises:
            BudgetError: No such reservation, or a negative or infinite amount.
        """
        if name not in self._reserved:
            raise BudgetError(f"cannot spend {usd} USD of {name!r}: never reserved")
        self.spend(usd)
        return _units(usd) <= self._reserved.pop(name)

    def spend(self, usd: float) -> None:
        """Records dollars that nothing was reserved for, even if they exceed the budget.

        Raises:
            BudgetError: The amount is negative or infinite.
        """
        self._spent += _units(usd)

    def release(self, name: str) -> None:
        """Frees a reservation without spending it; does nothing if there is none."""
        self._reserved.pop(name, None)

    def get_state(self) -> dict[str, Any]:
        return {
            "units_per_usd": UNITS_PER_USD,
            "spent": self._spent,
            "reserved": dict(self._reserved),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the state from `get_state`.

        Raises:
            ValueError: The state counts in other units, or an amount is negative.
        """
        spent = int(state["spent"])
        reserved = {name: int(amount) for name, amount in state["reserved"].items()}
        if state["units_per_usd"] != UNITS_PER_USD or min(spent, *reserved.values(), 0) < 0:
            raise ValueError(f"no amounts in 1/{UNITS_PER_USD} USD: {dict(state)}")
        self._spent = spent
        self._reserved = reserved


def _units(usd: float) -> int:
    if not 0.0 <= usd < math.inf:
        raise BudgetError(f"{usd} USD is no amount: negative or infinite")
    return math.ceil(usd * UNITS_PER_USD)
