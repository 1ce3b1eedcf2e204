"""Commands of programs in other languages: a gRPC service in front of a node's engines, described in `engines.proto`.

Promises: a status other than OK means that nothing was done; what may have been done is a reply that says so. What a
caller may not see is in no answer. What is too large, too much or not understood is refused, and harms no other call.
Does not promise: an answer before the call's deadline.
Needs the extra `grpc`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.rpc.server import RunningGrpc as RunningGrpc
    from headrace.rpc.server import check_grpc_protected as check_grpc_protected
    from headrace.rpc.server import serving_commands as serving_commands

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {"headrace.rpc.server": "RunningGrpc check_grpc_protected serving_commands"},
    extras=dict.fromkeys(("google", "grpc", "jwt"), "grpc"),
)
