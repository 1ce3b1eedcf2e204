"""Who calls, and what a caller may do: tokens, grants, rates. What all doors to other programs share.

Promises: a token that is accepted was signed by a known key, is in date, and is for this service; nobody has more than
the settings grant. Does not promise: that a connection is encrypted; each door says how it is.
Tokens need PyJWT, which the extras `gateway` and `grpc` bring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.access.permissions import ANONYMOUS as ANONYMOUS
    from headrace.access.permissions import EVERYTHING as EVERYTHING
    from headrace.access.permissions import Caller as Caller
    from headrace.access.permissions import CallerRates as CallerRates
    from headrace.access.permissions import Grant as Grant
    from headrace.access.permissions import GrantBook as GrantBook
    from headrace.access.permissions import ResourceKind as ResourceKind
    from headrace.access.permissions import host_and_port as host_and_port
    from headrace.access.permissions import is_loopback as is_loopback
    from headrace.access.permissions import parse_grant as parse_grant
    from headrace.access.tokens import JsonWebKeys as JsonWebKeys
    from headrace.access.tokens import TokenFacts as TokenFacts
    from headrace.access.tokens import Tokens as Tokens
    from headrace.access.tokens import bearer_token as bearer_token

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "headrace.access.permissions": (
            "ANONYMOUS EVERYTHING Caller CallerRates Grant GrantBook ResourceKind host_and_port is_loopback parse_grant"
        ),
        "headrace.access.tokens": "JsonWebKeys TokenFacts Tokens bearer_token",
    },
    extras={"jwt": "gateway"},
)
