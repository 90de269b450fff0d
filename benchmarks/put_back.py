"""Puts known defects back, one at a time, into a copy of the tree, and shows the test that fails.

`python -m benchmarks.put_back [NUMBER ...]`; the numbers are those of `docs/defects.md`. Every test must pass
in the untouched copy and fail with the defect; exit status 1 if one does not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._figures import RESULTS, ROOT

COPIED = ("pipelinerl", "domains", "retrieval_server", "conf", "tests", "benchmarks", "docs")
FILES = ("pyproject.toml", "setup.py", "README.md")
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Defect:
    """`number` is put back by `new` in place of `old` in `path`; `test` must then fail."""

    number: int
    what: str
    path: str
    old: str
    new: str
    test: str


DEFECTS = (
    Defect(
        2,
        "retries without end",
        "pipelinerl/actor/runner.py",
        "spent = 0 <= limits.max_rollout_retries <= attempt",
        "spent = False",
        "tests/unit/actor/test_actor_rollouts.py::test_retries_are_not_for_ever",
    ),
    Defect(
        3,
        "an odd answer is an error of the program",
        "pipelinerl/inference/client.py",
        "except InvalidAnswer as error:",
        "except ZeroDivisionError as error:",
        "tests/unit/actor/test_lying_servers.py::test_an_odd_answer_is_asked_for_again_and_never_becomes_data",
    ),
    Defect(
        4,
        "a message module imports torch",
        "pipelinerl/actor/messages.py",
        "import msgspec\n",
        "import msgspec\nimport torch\n",
        "tests/unit/launcher/test_imports.py::test_a_role_does_not_import_what_it_must_not",
    ),
    Defect(
        5,
        "the user's CUDA_VISIBLE_DEVICES is ignored",
        "pipelinerl/config/detect.py",
        'named = env.get("CUDA_VISIBLE_DEVICES")',
        "named = None",
        "tests/unit/config/test_detect.py::test_the_user_s_choice_is_kept",
    ),
    Defect(
        7,
        "eos in the prompt decides on overflow",
        "pipelinerl/finetune/rl/sample.py",
        "return not any(bool((self.labels == eos)",
        "return not any(bool((self.input_ids == eos)",
        "tests/unit/preprocess/test_steps.py::test_overflow_and_kept_order",
    ),
    Defect(
        8,
        "advantages import torch",
        "pipelinerl/finetune/rl/advantages/base.py",
        "import numpy as np\n",
        "import numpy as np\nimport torch\n",
        "tests/unit/finetune/rl/test_advantages.py::test_module_needs_neither_torch_nor_pandas",
    ),
    Defect(
        9,
        "a resume takes the base weights with the old optimizer state",
        "pipelinerl/finetune/loop.py",
        "self._source = Path(cfg.policy_path) if point is None else point.model",
        "self._source = Path(cfg.policy_path)",
        "tests/unit/finetune/test_loop.py::test_resume_equals_uninterrupted_bit_for_bit",
    ),
    Defect(
        14,
        "success is announced before the update",
        "pipelinerl/finetune/loop.py",
        "        version = self.counters.samples\n        self.learner.prepare_publishing",
        "        version = self.counters.samples\n"
        "        if self._announcements is not None:\n"
        "            self._announcements.weight_update_success(version)\n"
        "        self.learner.prepare_publishing",
        "tests/unit/defects/test_defects.py::"
        "test_a_failed_update_is_not_announced_and_ends_the_trainer_by_name",
    ),
    Defect(
        15,
        "nobody looks for signs of life",
        "pipelinerl/launcher/supervision/liveness.py",
        "if silent_s > (check.silent_deadline_s if beats.alive else check.start_deadline_s):",
        "if False:",
        "tests/unit/launcher/supervision/test_liveness.py::test_a_heartbeat_renews_its_file_until_it_is_stopped",
    ),
    Defect(
        16,
        "effective sample size of clamped ratios",
        "pipelinerl/finetune/metrics.py",
        "squares.sum(), ratio.sum(), ratio.square().sum(), n_tokens]",
        'squares.sum(), tokens["ratio_new_old"].sum(), tokens["ratio_new_old"].square().sum(), n_tokens]',
        "tests/unit/finetune/test_step.py::test_ess_uses_unclamped_ratios",
    ),
    Defect(
        17,
        "running rollouts count as one text each",
        "pipelinerl/actor/budget.py",
        "self.running_rollouts * (self.texts_per_rollout or 0.0)",
        "self.running_rollouts",
        "tests/unit/actor/test_actor_budget.py::"
        "test_several_texts_per_rollout_are_reserved_before_they_exist",
    ),
    Defect(
        18,
        "filtered texts are not refunded",
        "pipelinerl/actor/budget.py",
        "self.reserved - version - discarded < self.bound",
        "self.reserved - version < self.bound",
        "tests/unit/actor/test_actor_budget.py::test_filtered_texts_are_returned",
    ),
    Defect(
        20,
        "tokens beyond the lag bound keep their weight",
        "pipelinerl/finetune/rl/targets.py",
        "weight = ~stale / (",
        "weight = np.ones(len(at), bool) / (",
        "tests/unit/finetune/test_step.py::test_stale_tokens_have_no_gradient",
    ),
    Defect(
        21,
        "unknown keys are ignored",
        "pipelinerl/config/base.py",
        'extra="forbid"',
        'extra="ignore"',
        "tests/unit/config/test_refusals.py::test_a_bad_override_is_refused_with_its_remedy",
    ),
    Defect(
        22,
        "a default in YAML differs from the model's",
        "conf/base.yaml",
        "attempts: ${finetune.attempts}\n",
        "attempts: ${finetune.attempts}\nwatchdog: {silent_deadline_s: 60}\n",
        "tests/unit/config/test_compose.py::test_what_a_run_uses_equals_the_defaults_of_the_models",
    ),
    Defect(
        23,
        "a reader looks again and again instead of sleeping",
        "pipelinerl/streams/base.py",
        "wait_any([self], timeout_s)",
        "wait_any([self], 0.001)",
        "tests/unit/defects/test_defects.py::test_a_reader_without_news_sleeps_instead_of_looking",
    ),
    Defect(
        24,
        "every prompt stays in memory",
        "pipelinerl/inference/llm_engine.py",
        "        use.calls += 1\n",
        "        use.calls += 1\n"
        "        globals().setdefault('_KEPT', []).append(bytearray(prompt_tokens * 4))\n",
        "tests/unit/defects/test_defects.py::test_thousands_of_calls_leave_nothing_in_memory",
    ),
    Defect(
        25,
        "a buffer that is no multiple of a step passes",
        "pipelinerl/launcher/checks/training.py",
        "elif pre.dataset_buffer_size % texts:",
        "elif False:",
        "tests/unit/config/test_refusals.py::test_keys_that_contradict_each_other_are_refused",
    ),
    Defect(
        26,
        "a text longer than a row is passed on",
        "pipelinerl/preprocess/reading.py",
        '        return "oversize"\n',
        '        return ""\n',
        "tests/unit/preprocess/test_reading.py::test_ids_outside_the_vocabulary_and_long_texts",
    ),
    Defect(
        27,
        "preprocess waits for more than a step",
        "pipelinerl/preprocess/loop.py",
        "return len(self._buffer) >= max(self.cfg.derived.texts_per_step, first)",
        "return len(self._buffer) >= 2 * max(self.cfg.derived.texts_per_step, first)",
        "tests/unit/preprocess/test_steps.py::test_a_single_small_group_is_not_held_back",
    ),
    Defect(
        31,
        "the reference is scored at temperature 1",
        "pipelinerl/preprocess/reference.py",
        "self._tensor(labels[at]), self._temperature, bias)",
        "self._tensor(labels[at]), 1.0, bias)",
        "tests/unit/preprocess/test_steps.py::test_reference_scores_match_the_policy_at_its_temperature",
    ),
    Defect(
        34,
        "every step is logged",
        "pipelinerl/finetune/loop.py",
        "if self.ranks.is_main and counters.completed_steps % self.finetune.log_each_n_steps == 0:",
        "if self.ranks.is_main:",
        "tests/unit/defects/test_defects.py::"
        "test_logging_every_second_step_gives_every_second_record_and_a_full_summary",
    ),
    Defect(
        36,
        "a rank weighs its texts by their number on that rank",
        "pipelinerl/finetune/rl/batch.py",
        "batches = [encode([samples[i] for i in row], step, len(samples)) for row in rows]",
        "batches = [encode([samples[i] for i in row], step, sum(map(len, rows))) for row in rows]",
        "tests/unit/finetune/test_step.py::test_several_ranks_give_the_gradient_of_one",
    ),
    Defect(
        37,
        "a corrupt row looks like one that is not there yet",
        "pipelinerl/streams/files.py",
        "        except CorruptRecord as error:\n            raise CorruptRecord(\n",
        "        except CorruptRecord as error:\n            return None\n            raise CorruptRecord(\n",
        "tests/unit/streams/test_files.py::test_a_corrupt_record_raises_with_its_place",
    ),
    Defect(
        38,
        "certificates are not verified",
        "domains/privacy_hopqa/agent/transport.py",
        "headers=self._headers, allow_redirects=False",
        "headers=self._headers, allow_redirects=False, ssl=False",
        "tests/unit/defects/test_defects.py::test_a_server_with_a_self_signed_certificate_gets_no_token",
    ),
    Defect(
        39,
        "no prompt where nothing was predicted",
        "pipelinerl/rollouts.py",
        "return self.text[: len(self.text) - self.n_predicted]",
        "return self.text[: -self.n_predicted]",
        "tests/unit/rollouts/test_rollouts_contract.py::"
        "test_prompt_and_output_are_split_also_when_nothing_was_predicted",
    ),
)


def copy_tree(folder: Path) -> None:
    """The files that the tests need; the copy is imported because tests run inside it."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in FILES:
        shutil.copy2(ROOT / name, folder / name)


def put_back(folder: Path, defect: Defect) -> str:
    """Replace the line; returns the file as it was. Raises ValueError when the code has changed meanwhile."""
    path = folder / defect.path
    text = path.read_text()
    if text.count(defect.old) != 1:
        found = text.count(defect.old)
        raise ValueError(
            f"defect {defect.number}: {defect.path} holds {found} times {defect.old!r}, expected 1"
        )
    path.write_text(text.replace(defect.old, defect.new))
    return text


def failure(folder: Path, tests: Sequence[str]) -> str:
    """What pytest says of these tests in the copy, empty if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(tests)}: pytest ended with {done.returncode}: {done.stdout[-500:]}")
    return done.stdout[-2000:] if done.returncode else ""


def keep(row: dict[str, Any]) -> None:
    """Remember the latest verdict on a defect."""
    kept = RESULTS / "put_back.json"
    known = {one["number"]: one for one in (json.loads(kept.read_text()) if kept.exists() else [])}
    known[row["number"]] = row
    kept.write_text(json.dumps([known[number] for number in sorted(known)], indent=1) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.put_back", description=__doc__)
    parser.add_argument("number", nargs="*", type=int, help="of docs/defects.md; all that are cheap if none")
    wanted = set(parser.parse_args(argv).number)
    chosen = [defect for defect in DEFECTS if not wanted or defect.number in wanted]
    missed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        copy_tree(folder)
        if said := failure(folder, sorted({defect.test for defect in chosen})):
            print(f"{said}\na test fails already without any defect; mend it first")
            return 1
        for defect in chosen:
            before = put_back(folder, defect)
            caught = bool(failure(folder, [defect.test]))
            (folder / defect.path).write_text(before)
            missed += not caught
            name = defect.test.rpartition("::")[2]
            verdict = "caught" if caught else "MISSED"
            print(f"{defect.number:>3}  {verdict} {defect.what}: {name}", flush=True)
            keep({"number": defect.number, "defect": defect.what, "test": defect.test, "caught": caught})
    print(f"{len(chosen) - missed} of {len(chosen)} defects are caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
