"""The checks of `fleetgate doctor` on providers: whether credentials exist (never shown), and backoffs."""

from __future__ import annotations

import os
import sys
from shlex import quote

from fleetgate.cli.commands.backoff import ends_text
from fleetgate.cli.doctor.finding import Finding, Findings
from fleetgate.gate.providers.account_login import login_variables
from fleetgate.gate.providers.login_files import login_files
from fleetgate.gate.slots.direct_gate import DirectGate
from fleetgate.present.json.state import watches_credential
from fleetgate.present.log_time import LogTimes

# What a person can do, by the cause.
_ADVICE = {"auth": "Log in again, then:", "quota": "Pay the bill or raise the quota, then:"}
_ACCOUNT = "{account}"  # in a value for all accounts
_LOGINS = {"CLAUDE_CONFIG_DIR": "claude /login", "CODEX_HOME": "codex login", "GEMINI_CLI_HOME": "gemini"}


def providers(gate: DirectGate) -> Findings:
    """Each provider of the config, and whether its credential is where the config says."""
    named = sorted(gate.settings.providers)
    for name in named:
        yield from _login_folders(gate, name)
        place = gate.credentials.place(name)
        if place.state == "found":
            yield Finding("ok", f"{name} has a credential: {place.where}")
        elif place.state == "unknown":
            text = f"{name}: the location of its credential is not configured, so Fleetgate cannot notice a new one"
            yield Finding("ok", f"{text} (key_env, credential_file or env of [providers.{name}])")
        elif place.state == "missing":
            text = f"{name} has no credential: {gate.credentials.missing(f'{name}/any')}; it is skipped when "
            yield Finding("warn", f"{text}there is another candidate")
        else:
            yield Finding("warn", f"{name}: {place.where}, so Fleetgate cannot notice a new credential")
    if not named:
        yield Finding("ok", "none configured; well-known ones are detected by their usual variables and login files")


def _login_folders(gate: DirectGate, name: str) -> Findings:
    """The folders that `env` of a provider names, and whether each has a login. Other variables are not looked at."""
    account = name.partition("@")[0]
    for variable, value in login_variables(name, gate.settings.providers).items():
        if not os.path.isabs(value) or _ACCOUNT in gate.settings.providers[name].env.get(variable, ""):
            continue
        files = [file.path for file in login_files(account, {variable: value})]
        hidden = variable == "CLAUDE_CONFIG_DIR" and sys.platform == "darwin"  # the login is in the keychain
        said = f"{name}: {variable} of its `env` is {value}"
        if not os.path.isdir(value):
            text = f"{said}, which is not a folder: agents of this account have no login. Make it, and log in:"
            yield Finding("warn", text, f"mkdir -p {quote(value)}")
        elif files and not hidden and not any(os.path.isfile(file) for file in files):
            start = f"{variable}={quote(value)} {_LOGINS.get(variable, 'AGENT')}"
            yield Finding("warn", f"{said}, and there is no login in it. Log in:", start)


def backoffs(gate: DirectGate) -> Findings:
    """Each backoff: why, on what evidence, until when, and the command that clears it."""
    moments = LogTimes(gate)
    found = [backoff for _, backoff in sorted(gate.state.backoffs.items())]
    for backoff in found:
        seen = f" ({backoff.evidence})" if backoff.evidence else ""
        text = f"{backoff.key} is not used: {backoff.reason}{seen}; ends {ends_text(backoff, moments)}. "
        advice = _ADVICE.get(backoff.reason, "To use it sooner:")
        text += "Log in again, which ends it, or:" if watches_credential(backoff) else advice
        yield Finding("warn", text, f"fleetgate backoff clear {quote(backoff.key)}")
    if not found:
        yield Finding("ok", "nothing is backed off")
