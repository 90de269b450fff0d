"""Run a whole pipeline on this machine: `python -m pipelinerl.launch +domain=privacy_hopqa key=value`.

Composes and validates the configuration, places the roles, starts and watches their processes, and stops
everything in order. Exit status 0 means a completed run; otherwise one line names the process and the cause.
"""

import errno
import logging
import os
import sys
from collections.abc import Sequence

from omegaconf import OmegaConf

from pipelinerl.base import faults
from pipelinerl.base.errors import ConfigError
from pipelinerl.base.line_file import DamagedLine
from pipelinerl.base.logs import setup_logging
from pipelinerl.base.ports import ReservedPorts
from pipelinerl.base.waits import WaitExpired
from pipelinerl.config.compose import Composition, compose
from pipelinerl.config.tree import Config
from pipelinerl.domain import Domain, load_domain
from pipelinerl.launcher.arguments import USAGE, parse
from pipelinerl.launcher.checks import imports
from pipelinerl.launcher.choices import keep_choices, print_choices
from pipelinerl.launcher.folder import RunFolder, check_writable
from pipelinerl.launcher.in_flight import choose_in_flight
from pipelinerl.launcher.plan import asked_services, fix_output_dir, make_plan, usable_devices
from pipelinerl.launcher.run import Interrupted, failure_line, supervise
from pipelinerl.launcher.sharing import share_one_device
from pipelinerl.launcher.supervision import ChildFailed
from pipelinerl.launcher.validate import checked
from pipelinerl.observe.balance import BalanceWatch
from pipelinerl.observe.progress import ProgressDisplay
from pipelinerl.report import report_run
from pipelinerl.run_state.accounting import reconcile
from pipelinerl.run_state.announcements import forget_announcements
from pipelinerl.streams import StreamError

COMPLETED, FAILED, REFUSED = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status; problems are printed as one line each on stderr."""
    try:
        return launch(sys.argv[1:] if argv is None else argv)
    except ConfigError as error:
        for problem in error.problems:
            print(f"launcher: {problem}", file=sys.stderr)
        return REFUSED
    except (ChildFailed, WaitExpired) as error:
        print(failure_line(error), file=sys.stderr)
        return FAILED
    except (DamagedLine, StreamError) as error:
        print(f"launcher: {error}", file=sys.stderr)
        return FAILED
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"launcher: {error}; free some space, then the same command resumes", file=sys.stderr)
        return FAILED
    except Interrupted as error:
        print(f"launcher: {error}; the same command resumes", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        print("launcher: stopped by SIGINT before anything was started", file=sys.stderr)
        return 130


def launch(argv: Sequence[str]) -> int:
    """Do what the arguments ask for. Raises what `main` turns into one line."""
    arguments = parse(argv)
    if arguments.help:
        print(USAGE)
        return COMPLETED
    if (fault := faults.problem()) is not None:
        raise ConfigError(fault)
    composition = compose(arguments.overrides, arguments.config_name, arguments.config_dir)
    if arguments.show:
        print(OmegaConf.to_yaml(composition.tree), end="")
        return COMPLETED
    for notice in composition.notices:
        print(f"launcher: {notice}", flush=True)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("WORLD_SIZE: several nodes need streams that cross machines; run on one node")
    dry_run = os.environ.get("DRY_RUN", "").lower() not in ("", "0", "false")
    output_dir = fix_output_dir(composition.tree)
    devices = usable_devices(composition, dry_run)
    share_one_device(composition, devices, dry_run)
    choose_in_flight(composition, devices, dry_run)
    domain = load_domain(composition.tree.domain_hooks)
    cfg = checked(composition.tree, domain, len(devices), dry_run, composition.user_keys)
    check_writable(output_dir)
    if cfg.validate_:
        if unusable := imports.check(cfg):
            raise ConfigError(unusable)
        print(f"the configuration is valid; output_dir={output_dir}")
        return COMPLETED
    with RunFolder(output_dir) as folder, ReservedPorts() as ports:
        return _run(composition, domain, cfg, folder, devices, ports, dry_run, arguments.plain)


def _run(
    composition: Composition,
    domain: Domain,
    cfg: Config,
    folder: RunFolder,
    devices: Sequence[str],
    ports: ReservedPorts,
    dry_run: bool,
    plain: bool,
) -> int:
    print(f"output_dir={folder.path}", flush=True)
    limits = cfg.finetune.last_step, cfg.finetune.max_epochs
    completed = None if cfg.force_restart else folder.completed(*limits)
    if completed is not None and not dry_run:
        print(f"this run completed its {completed}; force_restart=true starts over", flush=True)
        report_run(folder.path, domain)
        return COMPLETED
    named = asked_services(composition.tree, domain, dry_run)  # before anything of an earlier run is removed
    if cfg.force_restart and not dry_run:
        folder.start_over(domain.folders)
    setup_logging(folder.path, "launcher", "launcher_0")
    plan = make_plan(composition, domain, folder, devices, ports.take, dry_run, named)
    print_choices(plan.rows)
    if dry_run:
        print(
            f"DRY_RUN: wrote {len(plan.children)} start.sh below {folder.path}; started nothing", flush=True
        )
        return COMPLETED
    keep_choices(folder.path, plan.rows)
    if plan.cfg.streams.backend == "files":
        forget_announcements(folder.path)
    log = logging.getLogger("pipelinerl.launch")
    balance = BalanceWatch(plan.cfg)
    with ProgressDisplay(folder.path, plan.cfg.total_texts, plain=plain) as display:

        def say(line: str) -> None:
            log.info(line)
            display.say(line)

        def tick() -> None:
            display.tick()
            if (line := balance.line()) is not None:
                say(line)

        try:
            supervise(plan, say, tick)
        except (ChildFailed, WaitExpired, Interrupted):
            for line in reconcile(folder.path).lines():  # where every rollout went, although it ends early
                print(line, flush=True)
            raise
    if cfg.debug.mode == "":
        folder.mark_completed(*limits)
    report_run(folder.path, domain)
    return COMPLETED


if __name__ == "__main__":
    sys.exit(main())
