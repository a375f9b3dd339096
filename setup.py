"""Finds the version, adapts the README to PyPI, and compiles a part of the package to C. Everything else about the
package is in pyproject.toml.

The version is that of the last tag, `v0.1.0`; after it, the next one with `.dev` and the number of commits since. There
is nothing to edit for a release. An archive has what git wrote into .git_archival.txt, and an sdist its PKG-INFO.
FLEETGATE_VERSION overrides all of them.

The modules that every decision goes through, and the simulator, are compiled by mypyc when a wheel is built, as
`pip install` does (docs/decisions/0018): the same code in half the time. Without a C compiler, or if it fails, the
wheel has only Python in it, and everything still works. An editable installation is never compiled: it runs the
sources.

FLEETGATE_COMPILE=0 skips this; FLEETGATE_COMPILE=1 fails if it cannot be done.

The files of the dashboard are compressed in a wheel, as the service sends them.
"""

import gzip
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

# Modules that most decisions go through. mypyc cannot compile a module that defines a msgspec.Struct.
COMPILED = (
    "core/accounts/choice.py",
    "core/accounts/homes.py",
    "core/accounts/member.py",
    "core/accounts/ramp.py",
    "core/budgets/budget.py",
    "core/deadlines.py",
    "core/engine.py",
    "core/handlers/acquire.py",
    "core/handlers/leases.py",
    "core/handlers/rate_limits.py",
    "core/handlers/request_validation.py",
    "core/limits/adaptive.py",
    "core/limits/adaptive_levels.py",
    "core/limits/adaptive_state.py",
    "core/limits/adaptive_tuning.py",
    "core/limits/adaptive_verdicts.py",
    "core/plans/window.py",
    "core/pools/cooldown.py",
    "core/pools/fair_share.py",
    "core/pools/hold_times.py",
    "core/pools/limiter.py",
    "core/pools/parking.py",
    "core/pools/pool.py",
    "core/pools/resource.py",
    "core/pools/usage_gate.py",
    "core/queue/admission.py",
    "core/queue/candidates.py",
    "core/queue/grants.py",
    "core/queue/obstacles.py",
    "core/queue/order.py",
    "core/queue/queue.py",
    "core/queue/ticket_index.py",
    "core/recorder.py",
    "core/state/lease_events.py",
    "core/state/limit_events.py",
    "core/state/reservation_events.py",
    "core/state/state.py",
    "front/connection.py",
    "gate/serving/reported_rates.py",
    "proxy/calls/call.py",
    "proxy/calls/response_reader.py",
    "proxy/calls/response_relay.py",
    "proxy/calls/slots.py",
    "proxy/calls/upstream_request.py",
    "proxy/headers.py",
    "proxy/http_client/connection.py",
    "proxy/request_body.py",
    "simulate/agenda.py",
    "simulate/world.py",
)

# Before each C file: what another file of ours defines is not looked up through a table, and an object is released by a
# call instead of code in each of 16,000 places.
SMALLER = """
#include <Python.h>
#include <structmember.h>
#include <frameobject.h>
static __attribute__((noinline, unused)) void fleetgate_decref(PyObject *object) { Py_DECREF(object); }
static __attribute__((noinline, unused)) void fleetgate_xdecref(PyObject *object) { Py_XDECREF(object); }
#undef Py_DECREF
#undef Py_XDECREF
#define Py_DECREF(object) fleetgate_decref((PyObject *)(object))
#define Py_XDECREF(object) fleetgate_xdecref((PyObject *)(object))
#pragma GCC visibility push(hidden)
"""

# For each C file of a module: its own name and its globals are not passed at each of 8,300 places that add a line to a
# traceback. gcc makes constants of them in these functions, as each file has one name. Tracebacks stay the same.
TRACEBACKS = """
#ifndef FLEETGATE_TRACEBACKS
#define FLEETGATE_TRACEBACKS
static __attribute__((noinline, unused)) void fleetgate_traceback(
    const char *file, const char *function, int line, PyObject **globals) {
    CPy_AddTraceback(file, function, line, *globals);
}
static __attribute__((noinline, unused)) void fleetgate_type_error(
    const char *file, const char *function, int line, PyObject **globals, const char *expected, PyObject *value) {
    CPy_TypeErrorTraceback(file, function, line, *globals, expected, value);
}
#define CPy_AddTraceback(file, function, line, globals) fleetgate_traceback(file, function, line, &(globals))
#define CPy_TypeErrorTraceback(file, function, line, globals, expected, value) \\
    fleetgate_type_error(file, function, line, &(globals), expected, value)
#endif
"""

# `make check` checks types everywhere; here only the types of the core are needed, in a sixth of the time.
MYPY = """
[mypy]
follow_imports = silent
ignore_missing_imports = True
"""

wish = os.environ.get("FLEETGATE_COMPILE", "")

HERE = Path(__file__).parent
BEFORE_THE_FIRST = "0.1.0.dev0"  # without any tag
REPOSITORY = "https://github.com/fleetgate/fleetgate"
DESCRIBE = ("git", "describe", "--tags", "--long", "--dirty", "--match", "v[0-9]*")


def version():
    """The version of these sources."""
    if given := os.environ.get("FLEETGATE_VERSION"):
        return given
    if found := re.search(r"^Version: (\S+)$", text_of("PKG-INFO"), re.MULTILINE):
        return found[1]
    return from_description(described())


def described():
    """What git says of the last tag; "" where there is no git, or no tag."""
    if not (HERE / ".git").exists():
        found = re.search(r"^describe-name: (v[0-9]\S*)$", text_of(".git_archival.txt"), re.MULTILINE)
        return found[1] if found else ""
    try:
        done = subprocess.run(DESCRIBE, cwd=HERE, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def from_description(text):
    """`v1.2.3` or `v1.2.3-0-gabc` is 1.2.3, `v1.2.3-4-gabc` is 1.2.4.dev4+gabc, and with changes that are not committed
    `.dirty` is added. `v1.2.0rc1-4-gabc` is 1.2.0rc2.dev4+gabc."""
    found = re.fullmatch(r"v([0-9.]*?(?:[0-9]+(?:a|b|rc))?)([0-9]+)(?:-([0-9]+)-g([0-9a-f]+))?(-dirty)?", text)
    if found is None:
        return BEFORE_THE_FIRST
    head, last, since, commit, dirty = found.groups()
    if since in (None, "0") and not dirty:
        return f"{head}{last}"
    return f"{head}{int(last) + 1}.dev{since or 0}+g{commit or 'unknown'}{'.dirty' if dirty else ''}"


def readme():
    """The README for PyPI, where a link to a file of the repository needs its whole address."""

    def whole(link):
        kind = "raw" if link[1].startswith("!") else "blob"
        return f"{link[1]}({REPOSITORY}/{kind}/main/{link[2]})"

    return re.sub(r"(!?\[[^\]]*\])\((?!https?:|#)([^)]+)\)", whole, text_of("README.md"))


def text_of(name):
    path = HERE / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def modules():
    """The modules to compile; none if that is impossible or no wheel is built."""
    if wish == "0" or "bdist_wheel" not in sys.argv:
        return []
    try:
        from mypyc.build import mypycify

        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "mypy.ini"
            config.write_text(MYPY)
            paths = [f"src/fleetgate/{path}" for path in COMPILED]
            # `-O3` takes twice as long and gains nothing.
            arguments = [f"--config-file={config}", *paths]
            found = mypycify(arguments, opt_level="1", debug_level="0", group_name="fleetgate", multi_file=True)
            return [smaller(each) for each in found]
    except (Exception, SystemExit) as error:
        go_on_without(error)
        return []


def smaller(extension):
    """The same code in half the space: without symbols, tables for unwinding, padding and long relocations, and with
    little more inlined than what is smaller that way. A decision takes 4 % longer."""
    if sys.platform == "linux":
        extension.extra_compile_args += ["-ffunction-sections", "-fdata-sections", "-fvisibility=hidden"]
        extension.extra_compile_args += ["-fno-asynchronous-unwind-tables", "-fno-ident"]
        extension.extra_compile_args += ["-Os", "--param=max-inline-insns-size=10"]
        extension.extra_link_args += ["-Wl,-s", "-Wl,--gc-sections", "-Wl,-z,noseparate-code", "-Wl,--build-id=none"]
        if packs_relocations():
            extension.extra_link_args.append("-Wl,-z,pack-relative-relocs")
        if "__mypyc" in extension.name:
            header = Path("build") / "smaller.h"  # next to what mypyc writes
            header.write_text(SMALLER)
            internal = Path("build") / "__native_internal_fleetgate.h"  # the files of modules include it, no other does
            internal.write_text(internal.read_text() + TRACEBACKS)
            extension.extra_compile_args += ["-include", str(header)]
        else:
            # For each module there is a file that only leads to the common one.
            extension.extra_link_args += ["-nostartfiles", "-Wl,-z,norelro", "-Wl,--hash-style=gnu"]
    return extension


def packs_relocations():
    """Whether this system loads libraries with packed relocations. A linker that cannot make them ignores the wish."""
    library, found = platform.libc_ver()
    return library == "glibc" and tuple(map(int, found.split(".")[:2])) >= (2, 36)


def go_on_without(error):
    if wish == "1":
        raise error
    sys.stderr.write(f"fleetgate: the core is not compiled, and is slower: {error}\n")


class Compile(build_ext):
    """Compile all modules or none: a compiled module needs the others. The source of a compiled module is left out:
    nothing would read it, and pip would make bytecode of it."""

    def run(self):
        try:
            super().run()
        except (Exception, SystemExit) as error:
            go_on_without(error)
            for module in self.extensions:
                Path(self.get_ext_fullpath(module.name)).unlink(missing_ok=True)
            self.extensions = []
        if self.extensions:
            for path in COMPILED:
                (Path(self.build_lib) / "fleetgate" / path).unlink()


class CompressDashboard(build_py):
    """Only the build is changed: an editable installation serves the sources."""

    def run(self):
        super().run()
        if not self.editable_mode:
            compress(Path(self.build_lib) / "fleetgate" / "dashboard")


def compress(folder):
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".gz":
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
            path.unlink()


if __name__ == "__main__":
    setup(
        version=version(),
        long_description=readme(),
        long_description_content_type="text/markdown",
        ext_modules=modules(),
        cmdclass={"build_ext": Compile, "build_py": CompressDashboard},
    )
