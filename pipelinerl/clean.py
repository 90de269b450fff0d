"""Remove what killed runs left in shared memory: `python -m pipelinerl.clean [--dry-run]`.

When launcher and guards were killed together, the weights of a run stay in /dev/shm. A folder whose owner
lives is locked and left alone. Every launcher does the same before it starts.
"""

from collections.abc import Sequence

from pipelinerl.base.errors import CommandParser, leave, printable
from pipelinerl.engines.wire import SHARED_MEMORY, remove_abandoned


def main(argv: Sequence[str] | None = None) -> int:
    """Prints one line for each folder."""
    parser = CommandParser(prog="pipelinerl.clean", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    dry_run = parser.parse_args(argv).dry_run
    found = remove_abandoned(dry_run)
    for folder, size in found.items():
        print(printable(f"{'would remove' if dry_run else 'removed'} {folder} ({size / 1e6:.1f} MB)"))
    if not found:
        print(f"{SHARED_MEMORY} holds nothing of a run that is gone")
    return 0


if __name__ == "__main__":
    leave("clean", main)
