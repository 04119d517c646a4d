"""Addresses of Pods, out of the loopback network."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable


class AddressesExhaustedError(Exception):
    """Every address of a network is in use."""


class AddressPool:
    """Hands out addresses of a network, the longest unused first.

    Parameters
    ----------
    network
        Where the addresses come from.
    used
        Addresses in use before a restart.
    """

    def __init__(self, network: ipaddress.IPv4Network, used: Iterable[str] = ()) -> None:
        self._network = network
        self._used = set(used)
        self._last = max(
            (int(ipaddress.ip_address(address)) for address in self._used),
            default=int(network.network_address),
        )

    def take(self) -> str:
        """Return an address nobody has.

        Raises
        ------
        AddressesExhaustedError
            There is none.
        """
        first = int(self._network.network_address)
        size = self._network.num_addresses
        for step in range(1, size):
            number = first + (self._last - first + step) % size
            address = str(ipaddress.ip_address(number))
            if address not in self._used and number != first:
                self._used.add(address)
                self._last = number
                return address
        raise AddressesExhaustedError(f"no address of {self._network} is free")

    def keep(self, address: str) -> None:
        """Count an address as in use."""
        self._used.add(address)

    def free(self, address: str) -> None:
        """Give an address back."""
        self._used.discard(address)
