"""The plan of `fleetgate init`: the steps for what was chosen, and notes about what is left alone."""

from __future__ import annotations

import os

from msgspec import Struct

from fleetgate.cli.commands.completion import completion_script
from fleetgate.cli.init import service
from fleetgate.cli.init.config_text import config_text, missing_sections
from fleetgate.cli.init.status_line import status_line_step
from fleetgate.cli.init.steps import AddedBlock, AnyStep, NewFile, NewShim
from fleetgate.cli.shims.shim_folder import ShimFolder
from fleetgate.cli.shims.startup_files import SHELLS, Block, path_block, quoted, startup_files
from fleetgate.config.errors import ConfigError
from fleetgate.config.file import load
from fleetgate.config.paths import config_path, data_folder, store_url
from fleetgate.core.errors import BadRequest
from fleetgate.log.store_url import POSTGRES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fleetgate.cli.init.survey import Survey


class Choice(Struct):
    """What the user wants. `host` is a number or `auto`; `extras` are of EXTRAS."""

    host: str
    shims: bool
    extras: tuple[str, ...]


class SetupPlan(Struct):
    """Steps in order, notes for the user, and lines that an existing config file could have."""

    steps: list[AnyStep]
    notes: list[str]
    suggestions: str = ""


def planned(found: Survey, choice: Choice, environ: Mapping[str, str]) -> SetupPlan:
    """The steps for a choice; nothing is changed."""
    plan = SetupPlan([], [])
    _plan_config(plan, found, choice)
    if choice.shims and found.agents:
        plan.steps += _shim_steps(plan.notes, found, environ)
    if "completion" in choice.extras:
        plan.steps += _completion_steps(plan.notes, found.shell, environ)
    if "service" in choice.extras:
        why = service.hindrance(environ)
        plan.steps += [] if why else service.service_steps(environ)
        plan.notes += [f"no service: {why}"] if why else []
    if "statusline" in choice.extras:
        step = status_line_step(environ)
        if isinstance(step, str):
            plan.notes += [step] if step else []
        else:
            plan.steps.append(step)
    return plan


def _plan_config(plan: SetupPlan, found: Survey, choice: Choice) -> None:
    path = config_path()
    if not os.path.lexists(path):
        plan.steps.append(NewFile(path=path, text=config_text(found, choice.host)))
        if store_url().startswith(POSTGRES):
            plan.notes.append("many machines share this store: `fleetgate config apply` applies the caps of your file")
        return
    try:
        loaded = load(path)
    except ConfigError as error:
        plan.notes.append(f"your config file has an error, and is not changed: {error}")
        return
    missing = missing_sections(found, choice.host, loaded.settings) if loaded is not None else []
    plan.suggestions = "\n".join(section.text for section in missing)


def _shim_steps(notes: list[str], found: Survey, environ: Mapping[str, str]) -> Iterator[AnyStep]:
    folder = ShimFolder(environ)
    shims = []
    for agent in found.agents:
        try:
            folder.text_of(agent.name)
            shims.append(NewShim(name=agent.name, path=f"{folder.path}/{agent.name}"))
        except BadRequest as error:
            notes.append(f"no shim: {error}")
    if shims and found.shell:
        for path in startup_files(found.shell, environ):
            yield AddedBlock(path=path, block=path_block(found.shell, folder.path))
    elif shims:
        notes.append(f"your shell is none of {', '.join(SHELLS)}: put {folder.path} first on PATH yourself")
    yield from shims


def _completion_steps(notes: list[str], shell: str, environ: Mapping[str, str]) -> Iterator[AnyStep]:
    if not shell:
        notes.append(f"no completion: your shell is none of {', '.join(SHELLS)}")
        return
    text = completion_script(shell)
    if shell == "fish":  # it reads this folder itself
        folder = os.path.dirname(startup_files(shell, environ)[0])
        yield NewFile(path=f"{folder}/completions/fleetgate.fish", text=text, mode=0o644)
        return
    path = f"{data_folder(environ)}/completion.{shell}"
    yield NewFile(path=path, text=text, mode=0o644)
    name = quoted(shell, path)
    ready = "whence compdef >/dev/null && " if shell == "zsh" else ""
    about = "# Tab completes the commands of Fleetgate."
    block = Block("completion", (about, f"{ready}[ -r {name} ] && . {name}"))
    yield AddedBlock(path=startup_files(shell, environ)[0], block=block)


def left(steps: Sequence[AnyStep]) -> list[AnyStep]:
    """The steps that are not done yet."""
    return [step for step in steps if not step.is_done()]
