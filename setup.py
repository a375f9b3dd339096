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
    "core/limits/adaptive_lag.py",
    "core/limits/adaptive_levels.py",
    "core/limits/adaptive_pace.py",
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

# Before each C file: what another file of ours defines is not looked up through a table, an object is released by a
# call instead of code in each of 16,000 places, and functions have no signature for `help()`.
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
#undef PyDoc_STR
#define PyDoc_STR(text) NULL
"""

# What a failure adds to a traceback: a file of mypyc's names itself, the function and its globals at each of 10,000
# places. Only the line is passed instead, and the function is found by the line. Tracebacks stay the same.
TRACEBACK = re.compile(
    r"\b(CPy_AddTraceback|CPy_TypeErrorTraceback|CPy_AttributeError)"
    r'\(("[^"]*"), "([^"]*)", ((?:"[^"]*", ){2})?(\d+), (CPyStatic_\w+)'
)
BY_LINE = """
static const struct { unsigned short line, name; } fleetgate_functions[] = { %(lines)s };
static const char fleetgate_names[] = "%(names)s";
static __attribute__((noinline, unused)) const char *fleetgate_function(int line) {
    int at = sizeof fleetgate_functions / sizeof *fleetgate_functions - 1;
    while (fleetgate_functions[at].line > line) at--;
    return fleetgate_names + fleetgate_functions[at].name;
}
static __attribute__((noinline, unused)) void fleetgate_CPy_AddTraceback(int line) {
    CPy_AddTraceback(%(file)s, fleetgate_function(line), line, %(globals)s);
}
static __attribute__((noinline, unused)) void fleetgate_CPy_TypeErrorTraceback(
    int line, const char *expected, PyObject *value) {
    CPy_TypeErrorTraceback(%(file)s, fleetgate_function(line), line, %(globals)s, expected, value);
}
static __attribute__((noinline, unused)) void fleetgate_CPy_AttributeError(
    const char *class, const char *attribute, int line) {
    CPy_AttributeError(%(file)s, fleetgate_function(line), class, attribute, line, %(globals)s);
}
"""

# How Python calls a private method or function of compiled code. Compiled code calls it directly.
PRIVATE = re.compile(
    r'\{"(_[a-z]\w*)",\s*\(PyCFunction\)CPyPy_\w+,\s*[A-Z_ |]+,\s*PyDoc_STR\("[^"]*"\)(?: /\* docstring \*/)?\},\n'
)

# What `del` says of each attribute. Nothing deletes one.
NOT_DELETED = re.compile(r"\"'\w+' object attribute '\w+' cannot be deleted\"")

# What Python loads for a module: it starts the module in the common library. mypyc's own is 1 kB larger.
SHIM = """#include <Python.h>
PyMODINIT_FUNC PyInit_%(last)s(void) {
    PyObject *(*start)(void) = PyCapsule_Import("fleetgate__mypyc.init_%(whole)s", 0);
    return start ? start() : NULL;
}
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
            extension.extra_compile_args += ["-include", str(header)]
            codes = {path: path.read_text() for path in map(Path, extension.sources)}
            used = used_by_name(codes.values())
            for path, code in codes.items():
                code = NOT_DELETED.sub('"attribute cannot be deleted"', code)
                public = PRIVATE.sub(lambda found: found[0] if found[1] in used else "", code)
                path.write_text(with_short_tracebacks(public))
        else:
            shim = Path(*extension.sources)
            shim.write_text(short_shim(extension.name, shim.read_text()))
            extension.extra_compile_args.append("-fno-plt")
            extension.extra_link_args += ["-nostartfiles", "-Wl,-z,norelro", "-Wl,--hash-style=gnu"]
    return extension


def short_shim(module, code):
    """SHIM for a module; mypyc's own where it starts modules in another way, as for a Python without a global lock."""
    whole = module.replace(".", "___")
    return SHIM % {"last": module.rpartition(".")[2], "whole": whole} if f'"init_{whole}"' in code else code


def used_by_name(codes):
    """Names of private methods and functions that compiled code looks up, as for a callback, or other code uses."""
    names = {name for code in codes for name in re.findall(r"/\* '(_[a-z]\w*)' \*/", code)}
    for path in (HERE / "src").rglob("*.py"):
        if str(path.relative_to(HERE / "src" / "fleetgate")) not in COMPILED:
            names.update(re.findall(r"(?:(?<!\bself)\.|\bimport .*)\b(_[a-z]\w*)", path.read_text()))
    return names


def with_short_tracebacks(code):
    """A C file of mypyc's, with TRACEBACK as in BY_LINE, but for a line that belongs to more than one function."""
    functions, belongs_to = {}, {}
    for _, file, function, _, line, namespace in TRACEBACK.findall(code):
        belongs_to.setdefault(file, namespace)
        functions.setdefault(int(line), set()).add(function)
    starts, names, last = [], [], None
    for line, (function, *others) in sorted(functions.items()):
        if not others and function != last:
            starts.append(f"{{{line}, {sum(len(name) + 1 for name in names)}}}")
            names.append(last := function)
    if len(belongs_to) != 1 or not names or max(functions) >= 1 << 16:
        return code

    def short(found):
        kind, _, _, attribute, line, _ = found.groups("")
        return f"fleetgate_{kind}({attribute}{line}" if len(functions[int(line)]) == 1 else found[0]

    ((file, namespace),) = belongs_to.items()
    texts = {"file": file, "globals": namespace, "lines": ", ".join(starts), "names": "\\0".join(names)}
    head, last_include, rest = TRACEBACK.sub(short, code).partition('#include "__native_internal_fleetgate.h"\n')
    return head + last_include + BY_LINE % texts + rest if rest else code


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
