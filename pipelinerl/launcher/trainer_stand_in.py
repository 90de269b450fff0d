"""Takes the trainer's place in a partial run without one; the launcher starts it with OUTPUT_DIR.

Announces version 0, counts the samples that come out of the last stage as processed, and says that training
is done when a whole run's samples have come, or at once where there is only an evaluation. No torch here.
"""

import sys
from pathlib import Path

from pipelinerl.base.errors import CommandParser, printable
from pipelinerl.base.logs import setup_logging
from pipelinerl.config import Config, load
from pipelinerl.run_state.announcements import TrainerAnnouncements
from pipelinerl.run_state.resume_point import ResumePoint, stream_end
from pipelinerl.streams import SingleStreamSpec, read_stream, set_streams_backend
from pipelinerl.streams.kind import stream_settings

NAME = "trainer_stand_in"


def needed(cfg: Config) -> bool:
    """Whether actor or preprocess run without a trainer that they could follow."""
    kinds = {job.kind for job in cfg.jobs}
    return "finetune" not in kinds and bool(kinds & {"actor", "preprocessor"})


def stand_in(cfg: Config, output_dir: Path) -> int:
    """Follow the last stage until it has given the samples of a run; returns how many it gave.

    Raises WaitExpired after `watchdog.progress_deadline_s` without any.
    """
    kinds = {job.kind for job in cfg.jobs}
    preprocessed = "preprocessor" in kinds
    target = cfg.total_texts()
    actor = SingleStreamSpec(output_dir, cfg.preprocess.input)
    last = SingleStreamSpec(output_dir, cfg.preprocess.output) if preprocessed else actor
    first_group = stream_end(actor) if "actor" in kinds else 0
    ResumePoint(0, 0, actor_position=first_group, attempt=cfg.attempt).write(output_dir)
    texts = 0
    if cfg.debug.evaluates_only:
        with TrainerAnnouncements(output_dir) as announcements:
            announcements.samples_processed(0)
            announcements.training_done()  # before the version: nobody shall begin a training group
            announcements.weight_update_success(0)
        return texts
    with (
        TrainerAnnouncements(output_dir) as announcements,
        read_stream(last, stream_end(last), "finetune" if preprocessed else "preprocess") as reader,
    ):
        announcements.samples_processed(0)
        announcements.weight_update_success(0)
        for record in reader.read(cfg.watchdog.input_deadline_s, f"records of {last.topic}"):
            # A packed micro-batch of `training_data`, or a group of `actor`.
            texts += int(record["n_texts"]) if isinstance(record, dict) else len(record)
            announcements.samples_processed(texts)
            if texts >= target:
                break
        announcements.training_done()
    return texts


def main() -> int:
    parser = CommandParser(prog=f"python -m pipelinerl.{NAME}", description=__doc__)
    parser.add_argument("output_dir", type=Path, help="folder of the run")
    arguments = parser.parse_args()
    try:
        cfg = load(arguments.output_dir)
        setup_logging(arguments.output_dir, NAME)
        set_streams_backend(**stream_settings(cfg.streams))
        stand_in(cfg, arguments.output_dir)
    except Exception as error:
        said = " ".join(str(error).split())
        print(printable(f"{NAME}: {type(error).__name__}: {said}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
