"""The proxies that benchmarks/proxy.py compares: Fleetgate's, its previous version, nginx and LiteLLM.

Each is one process on its own core, in front of the same provider. A sentence names what is not installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from time import monotonic, sleep
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

PREVIOUS = "582e683"  # on uvicorn
START_S = 60.0  # LiteLLM needs ten

# Limits that are not learned: a new pool whose limit is lets its first calls in one by one, which is not what is
# measured here.
_CONFIG = """
[requests]
bench = {{ cap = 100000, on_429 = "step" }}
"bench/m*" = {{ cap = 100000, on_429 = "step" }}
project = 100000
[providers.bench]
base_url = "http://127.0.0.1:{port}/v1"
[serve]
access_log = true
"""

_NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream provider {{ server 127.0.0.1:{port}; keepalive 512; }}
  server {{
    listen 127.0.0.1:{own};
    keepalive_requests 1000000;
    location / {{
      proxy_pass http://provider; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off;
    }}
  }}
}}
"""

_LITELLM = """
model_list:
  - model_name: m1
    litellm_params: {{ model: openai/m1, api_base: "http://127.0.0.1:{port}/v1", api_key: some-key }}
  - model_name: claude-m1
    litellm_params: {{ model: anthropic/claude-m1, api_base: "http://127.0.0.1:{port}", api_key: some-key }}
"""


class Target(NamedTuple):
    """Where to ask: a port, what goes before the path, and the process that is measured."""

    port: int
    base: str
    pid: int
    streams: bool = True  # its streams can be asked for by a path
    token: str = ""  # of the service, where it is Fleetgate


class NotHere(Exception):
    """Why something is not measured."""


def pin(core: int | None) -> None:
    """Keep this process on one core, where there are several; None: on no particular one."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, range(os.cpu_count() or 1) if core is None else {core})


@contextlib.contextmanager
def _process(
    command: list[str], environ: dict[str, str] | None = None, *, read: bool = True, core: int | None = 1
) -> Iterator[subprocess.Popen[bytes]]:
    """Without `read`, its output goes to no pipe: a full pipe that no process reads would stop it."""
    out = subprocess.PIPE if read else subprocess.DEVNULL
    process = subprocess.Popen(
        command, env=environ, stdout=out, stderr=subprocess.DEVNULL, preexec_fn=lambda: pin(core)
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until(true: Callable[[], bool], what: str) -> None:
    deadline = monotonic() + START_S
    while not true():
        if monotonic() > deadline:
            raise NotHere(f"{what} did not start within {START_S:.0f} s")
        sleep(0.02)


def _answers(port: int, path: str) -> bool:
    try:
        urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).read()
    except HTTPError:
        return True
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def ours(upstream: int) -> Iterator[Target]:
    with fleetgate(upstream) as target:
        yield target


@contextlib.contextmanager
def previous(upstream: int) -> Iterator[Target]:
    """The last version that ran on uvicorn, from the history of this repository."""
    with fleetgate(upstream, {"PYTHONPATH": _install_previous()}) as target:
        yield target


@contextlib.contextmanager
def fleetgate(
    upstream: int, more: dict[str, str] | None = None, options: tuple[str, ...] = (), core: int | None = 1
) -> Iterator[Target]:
    """The service in front of a provider. `more`: for its environment; `core`: where it runs, None for all cores."""
    with tempfile.TemporaryDirectory() as home:
        with open(f"{home}/config.toml", "w", encoding="utf-8") as file:
            file.write(_CONFIG.format(port=upstream))
        dropped = ("FLEETGATE_STORE", "FLEETGATE_TOKEN", "PYTHONDONTWRITEBYTECODE")
        environ = {name: value for name, value in os.environ.items() if name not in dropped}
        environ |= {"FLEETGATE_HOME": f"{home}/state", "FLEETGATE_CONFIG": f"{home}/config.toml", **(more or {})}
        command = [sys.executable, "-m", "fleetgate", "serve", "--port", "0", *options]
        with _process(command, environ, core=core) as process:
            _until(lambda: os.path.exists(f"{home}/state/serve.json"), "fleetgate serve")
            with open(f"{home}/state/serve.json", encoding="utf-8") as file:
                port = json.load(file)["port"]
            _until(lambda: _answers(port, "/readyz"), "fleetgate serve")
            with open(f"{home}/state/token", encoding="utf-8") as file:
                token = file.read().strip()
            yield Target(port, "/bench/v1", process.pid, token=token)


def _install_previous() -> str:
    """Install it with all that it needs, its core compiled; the folder. Done once."""
    folder = os.path.abspath(f".cache/previous-{PREVIOUS}")
    done = f"{folder}/.done"
    if os.path.exists(done):
        return folder
    print(f"installing the previous version ({PREVIOUS}) into {folder}", file=sys.stderr)
    names = ["src/fleetgate", "setup.py", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"]
    archive = subprocess.run(["git", "archive", PREVIOUS, *names], capture_output=True, check=False)
    if archive.returncode:
        raise NotHere(f"the previous version: its commit {PREVIOUS} is not in this repository's history")
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as sources:
        subprocess.run(["tar", "-x", "-C", sources], input=archive.stdout, check=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--target", folder]
        command = [*pip, "--constraint", f"{sources}/constraints.txt", f"{sources}[serve]"]
        if subprocess.run(command, check=False).returncode:
            raise NotHere("the previous version cannot be installed")
    with open(done, "w", encoding="utf-8"):
        return folder


@contextlib.contextmanager
def nginx(upstream: int) -> Iterator[Target]:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise NotHere("nginx is not installed")
    with tempfile.TemporaryDirectory() as folder:
        own = _free_port()
        with open(f"{folder}/nginx.conf", "w", encoding="utf-8") as file:
            file.write(_NGINX.format(folder=folder, port=upstream, own=own))
        with _process([program, "-p", folder, "-c", f"{folder}/nginx.conf"]) as process:
            _until(lambda: _answers(own, "/v1/models"), "nginx")
            yield Target(own, "/v1", process.pid)


@contextlib.contextmanager
def litellm(upstream: int, *, rust: bool = False) -> Iterator[Target]:
    """`rust`: with its Rust core, for the routes that it serves."""
    python = os.environ.get("FLEETGATE_BENCH_LITELLM", "")
    if not python and (find_spec("litellm") is None or find_spec("fastapi") is None):
        raise NotHere("LiteLLM is not installed (FLEETGATE_BENCH_LITELLM names a Python that has litellm[proxy])")
    with tempfile.TemporaryDirectory() as folder:
        own = _free_port()
        with open(f"{folder}/config.yaml", "w", encoding="utf-8") as file:
            file.write(_LITELLM.format(port=upstream))
        start = "import sys; from litellm import run_server; sys.exit(run_server())"
        command = [python or sys.executable, "-c", start, "--config", f"{folder}/config.yaml", "--port", str(own)]
        # Nothing is asked of the network, and no key: it listens to this machine alone.
        environ = {
            **os.environ,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_TELEMETRY": "False",
            "LITELLM_RUST": str(rust),
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        }
        with _process([*command, "--host", "127.0.0.1"], environ, read=False) as process:
            _until(lambda: _answers(own, "/health/liveliness"), "LiteLLM")
            yield Target(own, "/v1", process.pid, streams=False)
