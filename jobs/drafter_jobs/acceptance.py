"""Acceptance of draft tokens, from the server's counters and from each request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Counters:
    """The server's running totals since its start."""

    generated_tokens: int
    verify_calls: int

    def since(self, earlier: Counters) -> Counters:
        """Difference to an earlier reading."""
        return Counters(
            self.generated_tokens - earlier.generated_tokens,
            self.verify_calls - earlier.verify_calls,
        )


@dataclass(frozen=True)
class RequestAcceptance:
    """What one finished request reports.

    Attributes
    ----------
    tokens
        Output tokens.
    verify_calls
        Forward passes of the target that checked drafts.
    correct_drafts, proposed_drafts
        Draft tokens accepted and proposed, without the bonus token.
    """

    tokens: int
    verify_calls: int
    correct_drafts: int
    proposed_drafts: int


@dataclass(frozen=True)
class Acceptance:
    """Acceptance of a group of requests.

    Attributes
    ----------
    length
        Output tokens for each verify call, the token that each call yields anyway included.
    rate
        Share of proposed draft tokens that were accepted.
    counters_agree
        Whether the server's totals rose by what the requests report.
    """

    length: float
    rate: float
    counters_agree: bool


def measure_acceptance(
    counted: Counters, requests: Iterable[RequestAcceptance]
) -> Acceptance | None:
    """Measure acceptance over a group of requests.

    Parameters
    ----------
    counted
        What the server's totals rose by.
    requests
        The requests that ran in between.

    Returns
    -------
    Acceptance or None
        From the totals if they agree with the requests, else from the requests: then something
        else used the server as well. ``None`` if there was no verify call: no speculation.
    """
    listed = list(requests)
    tokens = sum(request.tokens for request in listed)
    calls = sum(request.verify_calls for request in listed)
    proposed = sum(request.proposed_drafts for request in listed)
    correct = sum(request.correct_drafts for request in listed)
    if calls == 0:
        return None
    return Acceptance(
        length=tokens / calls,
        rate=correct / proposed if proposed else 0.0,
        counters_agree=counted == Counters(tokens, calls),
    )
