"""Run a whole pipeline on this machine: `python -m pipelinerl.launch +domain=privacy_hopqa key=value`.

Composes and validates the configuration, places the roles, starts and watches their processes, and stops
everything in order. Exit status 0 means a completed run; otherwise one line names the process and the cause.
"""

from pipelinerl.launcher import early

# isort: split
import errno
import logging
import os
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NoReturn

from omegaconf import OmegaConf

from pipelinerl.base import faults
from pipelinerl.base.digests import model_digest
from pipelinerl.base.errors import ConfigError, drop_output, printable, show_what_it_can
from pipelinerl.base.line_file import DamagedLine
from pipelinerl.base.logs import setup_logging
from pipelinerl.base.waits import WaitExpired
from pipelinerl.config.compose import Composition, compose
from pipelinerl.config.files import is_readable
from pipelinerl.config.reference import explained
from pipelinerl.config.secrets import mask_in_texts, secrets_of, shown_tree
from pipelinerl.config.tree import Config
from pipelinerl.config.variants import HOST_BACKENDS
from pipelinerl.domain import Domain, load_domain
from pipelinerl.launcher import resumed
from pipelinerl.launcher.arguments import USAGE, launched_on_each_host, parse
from pipelinerl.launcher.backend import Backend
from pipelinerl.launcher.checks import imports, partial, training
from pipelinerl.launcher.choices import keep_choices, print_choices, table
from pipelinerl.launcher.folder import FolderChanged, RunFolder, check_name, check_writable
from pipelinerl.launcher.made_again import made_again, resumes
from pipelinerl.launcher.memory_choice import Chosen
from pipelinerl.launcher.open_backend import open_backend
from pipelinerl.launcher.plan import RunPlan, choose, run_folder
from pipelinerl.launcher.run import NOTHING_STARTED, Interrupted, failure_line, interruptible, supervise
from pipelinerl.launcher.start import asked_services, prepare, start_domain_over, validated
from pipelinerl.launcher.supervision import ChildFailed
from pipelinerl.launcher.validate import checked
from pipelinerl.observe.balance import BalanceWatch
from pipelinerl.observe.blocked import BlockWatch
from pipelinerl.observe.progress import ProgressDisplay
from pipelinerl.observe.remarks import RemarkWatch
from pipelinerl.report import report_run
from pipelinerl.run_state.accounting import reconcile
from pipelinerl.run_state.announcements import forget_announcements
from pipelinerl.run_state.saved_steps import half_checkpoint, trained_before
from pipelinerl.run_state.start_times import launched_line
from pipelinerl.streams import StreamError
from pipelinerl.streams.kind import streams_kind

COMPLETED, FAILED, REFUSED = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status; problems are printed as one line each on stderr."""
    show_what_it_can()
    try:
        with interruptible(NOTHING_STARTED):
            status = launch(sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()
            return status
    except BrokenPipeError:
        return _without_stdout()
    except ConfigError as error:
        for problem in error.problems:
            print(f"launcher: {problem}", file=sys.stderr)
        return REFUSED
    except (ChildFailed, WaitExpired) as error:
        print(failure_line(error), file=sys.stderr)
        return FAILED
    except (DamagedLine, StreamError, FolderChanged) as error:
        print(printable(f"launcher: {error}"), file=sys.stderr)
        return FAILED
    except (OSError, MemoryError) as error:
        logging.getLogger("pipelinerl.launch").debug("the launcher ends", exc_info=True)
        print(printable(f"launcher: {_of_the_machine(error)}"), file=sys.stderr)
        return FAILED
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        print(f"launcher: {_of_the_machine(OSError(errno.EAGAIN, str(error)))}", file=sys.stderr)
        return FAILED
    except Interrupted as error:
        said = (
            early.line(error.name)
            if error.resumes == NOTHING_STARTED
            else f"launcher: {error}; {error.resumes}\n"
        )
        print(said, end="", file=sys.stderr)
        return error.status


def _without_stdout() -> int:
    """Whoever read the output has gone (`| head`): what was running has been stopped; say so."""
    drop_output()
    print(
        "launcher: nobody reads the output any more (a closed pipe), so it ends here; give the same "
        "command with its output in a file, which resumes a run that was going on",
        file=sys.stderr,
    )
    return FAILED


_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EFBIG: "allow larger files (ulimit -f)",
    errno.EDQUOT: "free some space",
    errno.ENOMEM: "give it more memory (ulimit -v, or the container's limit)",
    errno.EAGAIN: "allow more processes and threads (ulimit -u, or the container's limit)",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "close files that other programs hold open",
}


def _of_the_machine(error: OSError | MemoryError) -> str:
    """What the machine refused, with what to do; a file is named by the error itself."""
    number = errno.ENOMEM if isinstance(error, MemoryError) else error.errno
    said = " ".join(str(error).split()) or "out of memory"
    remedy = _REMEDIES.get(number or 0, "put it right")
    return f"{said}; {remedy}, then the same command resumes"


def launch(argv: Sequence[str]) -> int:
    """Do what the arguments ask for. Raises what `main` turns into one line."""
    arguments = parse(argv)
    if arguments.help:
        asked = [word.partition("=")[0].lstrip("+~") for word in arguments.overrides]
        print("\n".join(chain.from_iterable(map(explained, asked))) if asked else USAGE)
        return COMPLETED
    if (fault := faults.problem()) is not None:
        raise ConfigError(fault)
    mask_in_texts({})  # variables of the environment, which an error of composing can quote
    composition = compose(arguments.overrides, arguments.config_name, arguments.config_dir)
    mask_in_texts(secrets_of(composition.tree))
    if arguments.show:
        print(OmegaConf.to_yaml(shown_tree(composition.tree)), end="")
        return COMPLETED
    for notice in composition.notices:
        print(printable(f"launcher: {notice}"), flush=True)
    hosts = HOST_BACKENDS.find(composition.tree.world.backend)
    if not hosts.several and (remedy := launched_on_each_host(os.environ)) is not None:
        raise ConfigError(remedy)
    dry_run = os.environ.get("DRY_RUN", "").lower() not in ("", "0", "false")
    with open_backend(composition, dry_run) as backend:
        return _checked_run(composition, backend, dry_run, arguments.plain)


def _checked_run(composition: Composition, backend: Backend, dry_run: bool, plain: bool) -> int:
    output_dir, hosts = run_folder(composition.tree), backend.hosts
    check_name(output_dir)
    chosen = choose(composition, hosts, output_dir, dry_run)
    domain = load_domain(chosen.tree.domain_hooks)
    cfg = checked(chosen.tree, domain, hosts, dry_run, composition.user_keys)
    check_writable(output_dir, cfg.force_restart)
    recorded = () if dry_run else partial.remarks(cfg)
    changed, said = resumed.compared(chosen.tree)
    for remark in chain(training.remarks(cfg), recorded, said):
        print(printable(f"launcher: {remark}"), flush=True)
    if cfg.validate_:
        _refuse_lost_training(cfg, RunFolder(output_dir))
        if unusable := imports.check(cfg):
            raise ConfigError(unusable)
        print_choices(validated(chosen, domain, RunFolder(output_dir), backend, dry_run, changed))
        print(printable(f"the configuration is valid; output_dir={output_dir}"))
        return COMPLETED
    with RunFolder(output_dir) as folder:
        return _run(chosen, domain, cfg, folder, backend, dry_run, plain, changed)


def _run(
    chosen: Chosen,
    domain: Domain,
    cfg: Config,
    folder: RunFolder,
    backend: Backend,
    dry_run: bool,
    plain: bool,
    changed: tuple[str, ...],
) -> int:
    print(printable(f"output_dir={folder.path}"), flush=True)
    limits = cfg.finetune.last_step, cfg.finetune.max_epochs
    completed = None if cfg.force_restart else folder.completed(*limits)
    # Without a tree that can be read, a start writes it anew.
    if completed is not None and not dry_run and is_readable(folder.path):
        further = "a larger finetune.max_train_steps (or max_epochs) trains it further"
        print(f"this run completed its {completed}; {further}, force_restart=true starts over", flush=True)
        _report(folder.path, domain)
        return COMPLETED
    _refuse_lost_training(cfg, folder)
    named = asked_services(chosen.tree, domain, dry_run)  # before anything of an earlier run is removed
    if cfg.force_restart and not dry_run:
        folder.start_over(domain.folders)
        start_domain_over(chosen.tree, domain, folder.path)
    setup_logging(folder.path, "launcher", "launcher_0")
    log = logging.getLogger("pipelinerl.launch")
    log.info(launched_line())
    backend.check_paths(folder.path, [cfg.model_path] if Path(cfg.model_path).is_dir() else [])
    plan = prepare(chosen, domain, folder, backend, dry_run, named, changed)
    print_choices(plan)
    if dry_run:
        wrote = f"DRY_RUN: wrote {len(plan.children)} start.sh below {folder.path}; started nothing"
        print(printable(wrote), flush=True)
        return COMPLETED
    _supervised(plan, folder, backend, plain, log)
    if cfg.debug.mode == "":
        folder.mark_completed(*limits)
    _report(folder.path, domain)
    return COMPLETED


def _refuse_lost_training(cfg: Config, folder: RunFolder) -> None:
    """Raises ConfigError for a folder whose training cannot go on and would begin anew over what is there."""
    if "finetune" not in cfg.debug.roles or cfg.force_restart:
        return
    if (lost := half_checkpoint(folder.path / "finetune") or folder.lost_training()) is not None:
        raise ConfigError(lost)


def _supervised(plan: RunPlan, folder: RunFolder, backend: Backend, plain: bool, log: logging.Logger) -> None:
    """Run the plan to its end, with the progress line and what is said of it. Raises as `supervise`."""
    output_dir = folder.path
    keep_choices(output_dir, table(plan))
    if streams_kind(plan.cfg.streams).on_disk:
        forget_announcements(output_dir)
    balance, blocked, remarks = BalanceWatch(plan.cfg), BlockWatch(output_dir), RemarkWatch(output_dir)
    before = trained_before(output_dir)
    texts = plan.cfg.total_texts(*before)
    model = plan.cfg.model_path
    # An engine that gets no weights goes by these files, also when it is started again.
    loaded = "" if plan.cfg.updates_engines else model_digest(model)
    with ProgressDisplay(output_dir, texts, plain=plain, trained=before[1]) as display:

        def say(line: str) -> None:
            log.info(line)
            display.say(line)

        def tick() -> None:
            backend.check()
            folder.check_unchanged()
            display.tick()
            for line in chain(blocked.lines(), remarks.lines()):
                say(line)
            if (limits := balance.line()) is not None:
                say(limits)

        if (again := made_again(output_dir, plan.cfg.finetune.last_step)) is not None:
            say(again)
        try:
            supervise(plan, say, tick, backend.others)
        except (ChildFailed, WaitExpired, Interrupted) as error:
            log.info("%s", error)
            folder.check_unchanged()  # whoever lost its folder failed of that
            if isinstance(error, Interrupted):
                error.resumes = resumes(output_dir, plan.cfg.finetune.save_checkpoint_steps)
            for line in reconcile(output_dir).lines():  # where every rollout went, although it ends early
                print(printable(line), flush=True)
            raise
        finally:
            for line in remarks.lines():  # of the last seconds
                say(line)
            if loaded and _is_another(model, loaded):
                say(_OVERWRITTEN.format(model))
        folder.check_unchanged()


_OVERWRITTEN = (
    "model_path={}: was overwritten or removed during the run, so that its engines may have sampled with "
    "other weights than those at its start; run it again with a copy that nobody writes to"
)


def _is_another(model: str, digest: str) -> bool:
    try:
        return model_digest(model) != digest
    except OSError:  # somebody is writing there now
        return True


def _report(output_dir: Path, domain: Domain) -> None:
    """Write the report of a run that is complete."""
    try:
        report_run(output_dir, domain)
    except Interrupted as error:
        error.resumes = f"the run is complete; python -m pipelinerl.report {output_dir} writes its report"
        raise


def end(status: int) -> NoReturn:
    """Leave with `status`; at once where a cluster was left behind, whose threads wait for its head."""
    if Backend.abandoned:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    end(main())
