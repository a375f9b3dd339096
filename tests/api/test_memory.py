"""What a service has in memory: large packages that it rarely or never needs are not loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.api.served import Served
from tests.api.test_metrics import read

# Each takes half a megabyte or more.
NOT_LOADED = {
    "difflib",
    "email.message",
    "fleetgate.log.postgres.log",
    "fleetgate.simulate",
    "genai_prices",
    "http.client",
    "importlib.metadata",
    "prometheus_client",
    "pydantic",
    "urllib.request",
    "zoneinfo",
}
MOST_BYTES = 60_000_000  # 41 MB with Python 3.11; other versions take more

LISTED = """
import json, os, sys
end = os._exit  # as the command line ends
os._exit = lambda code: (print("modules:" + json.dumps(sorted(sys.modules)), file=sys.stderr, flush=True), end(code))
from fleetgate.cli.main import main
main()
"""


class Listed(Served):
    """A service that says at its end what it has loaded."""

    def spawn(self, *argv: str) -> subprocess.Popen[str]:
        command, pipe = [sys.executable, "-c", LISTED, *argv], subprocess.PIPE
        return subprocess.Popen(command, env=self.environ, text=True, stdout=pipe, stderr=pipe)


def test_a_service_that_has_nothing_to_do_is_small(tmp_path: Path) -> None:
    listed = Listed(tmp_path, "[requests]\numans = 4\n")
    for name in [name for name in listed.environ if name.lower().endswith("_proxy")]:
        del listed.environ[name]
    with listed as served:
        assert served.lease().status == 201
        assert read(served)["process_resident_memory_bytes"] < MOST_BYTES
        process = served.process
        assert process is not None
        process.terminate()
        said = process.communicate(timeout=60)[1]
    loaded = json.loads(said.rpartition("modules:")[2])
    assert "fleetgate.proxy.app" in loaded
    assert NOT_LOADED.isdisjoint(loaded)
