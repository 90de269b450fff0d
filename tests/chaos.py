"""Random faults in a row: `python -m tests.chaos [--faults 200] [--seed 0] [--minutes 120] [--only NAME]`.

Runs of the guessing game (with wandb offline; over redis; `plain`: neither) and of the privacy agent are
struck at random moments: any process of the run, launcher and guard included, is killed, stopped, or stopped
for 5 s; sometimes two at once. A run that ends by name is resumed, and the resumed one is struck too; after
`MOST_STRIKES` it has to reach its last step in peace. After each strike the run must end by name or make
progress within 30 s (60 s while it starts), nobody who waits may be blamed for the one who is silent, and at
the end rollouts must add up and nothing may be left. Processes are chosen by id among those of the run; every
server listens on loopback. One line of JSON a strike goes to `--out`; exit status 1 if one fell short.
"""

import argparse
import contextlib
import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from tests.pipeline.conftest import LauncherProcess
from tests.support.fault_cases import RUN, STEPS, completed_steps

PRIVACY = [
    "+domain=privacy_hopqa",
    "hardware=cpu",
    "privacy_hopqa.world={size:custom,companies:2,test_companies:1,private_docs:24,web_docs:200,train_chains:24,val_chains:8,test_chains:8}",
    "privacy_hopqa.max_examples=4",
    "privacy_hopqa.rollout_timeout_s=20",
    "actor.llm_max_rollouts=16",
    f"finetune.max_train_steps={STEPS}",
    "finetune.gradient_accumulation_passes=16",
    "finetune.attempts=4",
    "finetune.save_checkpoint_steps=1",
    "max_lag=64",
    "eval_every_n_versions=0",
    "eval_at_end=false",
    "wandb.use_wandb=false",
    *(word for word in RUN if word.startswith(("engine.", "watchdog.", "actor.rollout_deadline"))),
]
SCENARIOS = {
    "plain": RUN,
    "guessing": [*(word for word in RUN if not word.startswith("wandb.")), "wandb.use_wandb=true"],
    "redis": [*RUN, "streams.backend=redis"],
    "privacy_hopqa": PRIVACY,
}
KINDS = ("kill", "stop", "pause")
PAUSE_S = 5.0
LIMIT_S = 30.0
STARTING_S = 60.0
MOST_STRIKES = 4
PEACE_S = 240.0
"""For a run that is left alone to reach its last step."""


NAMES = {
    "engines.cpu": ("actor_vllm", "engine", "rollouts"),
    "actor": ("actor",),
    "actor.worker": ("worker", "actor"),
    "preprocess": ("preprocess",),
    "finetune": ("finetune", "trainer"),
    "launcher.environment_server": ("environment", "rollouts"),
    "retrieval_server": ("retrieval", "rollouts"),
    "redis-server": ("redis", "streams"),
    "domains.privacy_hopqa.scorer": ("scorer", "rollouts"),
}
"""Words by which the last line may name who was struck: its role, or what nobody could do without it."""
Seen = tuple[int, ...]


@dataclass
class Strike:
    """What was done to whom, and how it ended."""

    scenario: str
    run: int
    after_s: float
    victims: list[str]
    kinds: list[str]
    resumed: bool
    starting: bool
    outcome: str = ""
    seconds: float = 0.0
    line: str = ""
    short: list[str] = field(default_factory=list)
    """What fell short of the promises; empty if nothing did."""


def name_of(process: psutil.Process) -> str:
    """The module that a process runs, or its program."""
    try:
        words = process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return "gone"
    if "-m" in words:
        return words[words.index("-m") + 1].removeprefix("pipelinerl.")
    scripts = [Path(word).name for word in words if word.endswith(".py")]
    # redis shows its address behind its name, in one word.
    return scripts[0] if scripts else Path(words[0].split()[0]).name if words else "gone"


def family(launcher: LauncherProcess) -> list[psutil.Process]:
    """Everybody who works for the run, and the launcher."""
    everyone = launcher.children()
    with contextlib.suppress(psutil.NoSuchProcess):
        everyone.append(psutil.Process(launcher.pid))
    return everyone


def progress(output_dir: Path) -> Seen:
    """What grows while a run goes on: the launcher's log, the books of the actor, the trainer's metrics."""
    files = ("launcher/launcher_0.log", "accounting/actor.jsonl", "finetune/metrics.jsonl")
    paths = [output_dir / name for name in files]
    return tuple(path.stat().st_size if path.exists() else 0 for path in paths)


class Launched(LauncherProcess):
    """One start of a run, watched without stopping the test."""

    def kill(self) -> None:
        """And everybody who works for it."""
        for process in family(self):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def ended(self, within_s: float) -> int | None:
        """The exit status; None if it still runs then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
            return self.wait()
        return None


class Chaos:
    """Strikes one run after the other until there were enough."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._random = random.Random(options.seed)
        self._left, self._end = options.faults, time.monotonic() + 60 * options.minutes
        self._out: Path = options.out
        self._scenarios = options.only or ["guessing", "redis", "privacy_hopqa"]
        self.strikes: list[Strike] = []
        self._stopped: list[str] = []
        """Who was stopped since the last start."""

    def play(self) -> None:
        """Until `faults` were made, or the minutes are over. The folder of a run that fell short is kept."""
        self._out.parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count():
            if self._left <= 0 or time.monotonic() > self._end:
                return
            folder = Path(tempfile.mkdtemp(prefix="chaos-"))
            first = len(self.strikes)
            self._one_run(self._scenarios[number % len(self._scenarios)], number, folder / "run")
            if any(strike.short for strike in self.strikes[first:]):
                print(f"kept: {folder}", flush=True)
            else:
                shutil.rmtree(folder)

    def _one_run(self, name: str, number: int, output_dir: Path) -> None:
        """One folder from its first start to its last step."""
        struck, resumed = 0, False
        while True:
            run = Launched(output_dir, SCENARIOS[name])
            try:
                status, made = self._one_start(name, number, run, resumed, MOST_STRIKES - struck)
            finally:
                everyone = family(run)
                run.kill()
            in_peace = struck >= MOST_STRIKES
            struck, resumed = struck + made, True
            last = self.strikes[-1] if self.strikes else None
            if status is None:
                self._fell_short(last, f"not complete after {PEACE_S:g} s in peace")
                return
            try:
                if "guard.py" in self._stopped:
                    # With the launcher gone as well, nobody was left to clear up.
                    subprocess.run([sys.executable, "-m", "pipelinerl.clean"], check=True, timeout=PEACE_S)
                run.leaves_nothing(everyone)
                if (output_dir / "accounting" / "actor.jsonl").exists():
                    run.counts()
                if status == 0:
                    assert completed_steps(output_dir) == STEPS, completed_steps(output_dir)
                else:
                    assert status in (1, -signal.SIGKILL), f"exit status {status}"
                    assert "Traceback" not in run.err, run.err[-2000:]
                assert status == 0 or not in_peace, f"left in peace it ended: {run.err[-500:]}"
            except AssertionError as error:
                self._fell_short(last, str(error)[:2000])
            if status == 0 or (last is not None and last.short):
                return

    def _one_start(
        self, name: str, number: int, run: Launched, resumed: bool, most: int
    ) -> tuple[int | None, int]:
        """Exit status (None: it hangs) and how many were struck."""
        began, made = time.monotonic(), 0
        self._stopped.clear()
        while made < most and self._left > 0:
            if (status := run.ended(self._random.uniform(0.0, 20.0))) is not None:
                return status, made
            strike = self._strike(name, number, run, resumed, began)
            made += len(strike.kinds)
            if strike.short:
                return -signal.SIGKILL, made
        return run.ended(PEACE_S), made

    def _strike(self, name: str, number: int, run: Launched, resumed: bool, began: float) -> Strike:
        everyone = family(run)
        victims = self._random.sample(everyone, min(len(everyone), 2 if self._random.random() < 0.25 else 1))
        kinds = [self._random.choice(KINDS) for _ in victims]
        # Nobody watches the launcher: one that is stopped is continued, as by the terminal that stopped it.
        kinds = ["pause" if k == "stop" and v.pid == run.pid else k for k, v in zip(kinds, victims)]
        starting = not (run.output_dir / "finetune" / "metrics.jsonl").exists() or resumed
        strike = Strike(
            name,
            number,
            round(time.monotonic() - began, 1),
            [*map(name_of, victims)],
            kinds,
            resumed,
            starting,
        )
        self._left -= len(kinds)
        self.strikes.append(strike)
        before, struck = progress(run.output_dir), time.monotonic()
        for victim, kind in zip(victims, kinds):
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        self._follow(strike, run, [v for v, kind in zip(victims, kinds) if kind == "pause"], before)
        strike.seconds = round(time.monotonic() - struck, 1)
        # Who was stopped in an earlier strike may be named now: the others can go on for a while without it.
        self._stopped += [name for name, kind in zip(strike.victims, kinds) if kind == "stop"]
        if strike.outcome == "named" and run.pid not in [v.pid for v in victims]:
            self._check_words(strike, run, {*strike.victims, *self._stopped})
        with self._out.open("a", encoding="utf-8") as out:
            out.write(json.dumps(asdict(strike)) + "\n")
        print(f"{len(self.strikes):>3} {asdict(strike)}", flush=True)
        return strike

    def _follow(self, strike: Strike, run: Launched, paused: list[psutil.Process], before: Seen) -> None:
        """Until the run has ended or goes on; `paused` are continued after a while."""
        limit = (STARTING_S if strike.starting else LIMIT_S) + (PAUSE_S if paused else 0.0)
        began = time.monotonic()
        while (passed := time.monotonic() - began) < limit:
            if passed >= PAUSE_S:
                for process in paused:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.resume()
                paused = []
            if (status := run.ended(0.2)) is not None:
                strike.outcome = "complete" if status == 0 else "named"
                lines = run.err.strip().splitlines()
                strike.line = lines[-1] if lines else ""
                return
            if not paused and progress(run.output_dir) != before and passed > 1.0:
                strike.outcome = "went on"
                return
        strike.outcome = "hang"
        self._fell_short(strike, f"neither an end nor progress within {limit:g} s")

    @staticmethod
    def _check_words(strike: Strike, run: Launched, struck: set[str]) -> None:
        """The last line names one of those that were struck."""
        if "Traceback" in run.err:
            strike.short.append("a traceback on stderr")
        names = [word for victim in struck for word in NAMES.get(victim, ())]
        if not any(word in strike.line for word in names):
            strike.short.append(f"blamed somebody else: {strike.line}")

    @staticmethod
    def _fell_short(strike: Strike | None, why: str) -> None:
        print(f"FELL SHORT: {why}", flush=True)
        if strike is None:
            raise RuntimeError(why)
        strike.short.append(why)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS)
    parser.add_argument("--out", type=Path, default=Path("results/chaos.jsonl"))
    chaos = Chaos(parser.parse_args())
    chaos.play()
    short = [strike for strike in chaos.strikes if strike.short]
    outcomes = Counter(strike.outcome for strike in chaos.strikes)
    longest = max((strike.seconds for strike in chaos.strikes if not strike.starting), default=0.0)
    faults = sum(len(strike.kinds) for strike in chaos.strikes)
    print(f"{faults} faults: {dict(outcomes)}; the longest took {longest:.1f} s; {len(short)} fell short")
    for strike in short:
        print(f"  {strike.scenario}, run {strike.run}: {strike.kinds} {strike.victims}: {strike.short}")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
