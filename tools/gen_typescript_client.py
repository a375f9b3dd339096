"""Generate clients/typescript/src/schema.ts from the OpenAPI document of a real service: `make client`.

`--check` writes nothing, and fails if the file is not what it would be. Needs Node.js and npm; what it needs from there
is installed by name into .cache/typescript.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "clients" / "typescript"
CACHE = ROOT / ".cache" / "typescript"
PACKAGES: dict[str, str] = json.loads((CLIENT / "package.json").read_text())["devDependencies"]
METHODS = ("get", "put", "post", "delete")


def main(argv: list[str]) -> int:
    program = installed_generator()
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "openapi.json"), Path(folder, "schema.ts")
        source.write_text(json.dumps(trimmed(document(Path(folder)))))
        subprocess.run(
            [program, source, "-o", made, "--alphabetize", "--default-non-nullable", "false"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        text = made.read_text()
    target = CLIENT / "src" / "schema.ts"
    if argv == ["--check"]:
        if target.read_text() != text:
            print(
                f"{target.relative_to(ROOT)} does not match the OpenAPI document: type `make client`", file=sys.stderr
            )
            return 1
        return 0
    target.write_text(text)
    print(f"wrote {target.relative_to(ROOT)}")
    return 0


def installed_generator() -> Path:
    """openapi-typescript, of the version that package.json names."""
    if shutil.which("npm") is None:
        raise SystemExit("npm is not installed, and the generator comes by it")
    names = [f"{name}@{PACKAGES[name]}" for name in ("openapi-typescript", "typescript")]
    stamp, program = CACHE / ".installed", CACHE / "node_modules" / ".bin" / "openapi-typescript"
    if not (stamp.exists() and stamp.read_text() == " ".join(names) and program.exists()):
        CACHE.mkdir(parents=True, exist_ok=True)
        options = ["--no-audit", "--no-fund", "--no-save", "--no-package-lock", "--silent"]
        subprocess.run(["npm", "install", "--prefix", str(CACHE), *options, *names], check=True)
        stamp.write_text(" ".join(names))
    return program


def document(folder: Path) -> dict[str, Any]:
    """What a service of its own answers at /openapi.json."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("FLEETGATE_")}
    env |= {"HOME": str(folder), "FLEETGATE_HOME": str(folder / "s"), "XDG_CONFIG_HOME": str(folder / "c")}
    serve = subprocess.Popen(
        [sys.executable, "-m", "fleetgate", "serve", "--port", "0"],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address, until = folder / "s" / "serve.json", time.monotonic() + 60
        while not address.exists():
            if serve.poll() is not None or time.monotonic() > until:
                raise SystemExit("the service did not start")
            time.sleep(0.05)
        url = f"http://127.0.0.1:{json.loads(address.read_text())['port']}/openapi.json"
        with urllib.request.urlopen(url, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    finally:
        serve.terminate()
        serve.wait()


def trimmed(found: dict[str, Any]) -> dict[str, Any]:
    """The routes under /v1, with all errors as one, in an order that does not depend on the service."""
    paths = {path: methods for path, methods in sorted(found["paths"].items()) if path.startswith("/v1/")}
    for methods in paths.values():
        for method in METHODS:
            responses = methods.get(method, {}).get("responses", {})
            for status in [status for status in responses if status >= "400"]:
                responses["default"] = {**responses.pop(status), "description": "An error; `reason` is for programs"}
    return {**found, "info": {**found["info"], "version": ""}, "paths": paths}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
