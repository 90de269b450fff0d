"""The host of a usual run, for what is told of hosts."""

from pipelinerl.config.hosts import Host, this_host


def one_host(gpus: int = 0) -> list[Host]:
    """This host with so many GPUs."""
    return [this_host([str(index) for index in range(gpus)])]
