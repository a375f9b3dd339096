"""The handler of all requests: it passes each one to the proxy, to the lease routes, or to the other routes.

- A request to a provider goes to the proxy. The guard checks its Host and Origin only (rule H5): whether its key is
  good, the provider decides.
- The guard admits any other request, or refuses it. Then the lease routes are answered directly, and everything else
  by the ASGI application.
- A request with an access key that is not known here waits for one look at the log, and is handled again.
"""

from __future__ import annotations

from typing import Protocol

from fleetgate.api.errors import RequestRefused, complain
from fleetgate.api.leases.direct import DirectLeases
from fleetgate.api.security.request_guard import Guard, refuse, text_path
from fleetgate.front.asgi import AsgiHandler
from fleetgate.front.request import ClientRequest
from fleetgate.gate.serving.access_keys import KeyNotKnownYet

_LEASES = b"/v1/leases"  # which is no path of a provider: there is nothing to look up


class ProxyHandler(Protocol):
    """The proxy, which belongs to another layer."""

    def wants(self, request: ClientRequest) -> bool: ...
    def __call__(self, request: ClientRequest) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class Dispatch:
    """Made once for a service."""

    def __init__(self, guard: Guard, proxy: ProxyHandler, leases: DirectLeases, routes: AsgiHandler) -> None:
        self._guard = guard
        self._proxy = proxy
        self._leases = leases
        self._routes = routes

    def __call__(self, request: ClientRequest) -> None:
        try:
            self._pass_on(request)
        except RequestRefused as refused:
            refuse(request, refused)
        except KeyNotKnownYet as later:
            later.looked.add_done_callback(lambda _: None if request.gone else self(request))
        except Exception as error:
            complain(f"{request.method} {request.path.decode('latin-1')}", error)
            if request.response_begun:
                request.abort()
            else:
                refuse(request, error)

    def _pass_on(self, request: ClientRequest) -> None:
        if not request.path.startswith(_LEASES) and self._proxy.wants(request):
            self._guard.check_proxied(request)
            self._proxy(request)
            return
        path = text_path(request)
        caller = self._guard.admit(request, path)
        if not self._leases.take(request, path, caller):
            self._routes(request, {"caller": caller})
