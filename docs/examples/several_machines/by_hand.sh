#!/bin/bash
# A cluster by hand, without a scheduler: on the first host `by_hand.sh head 10.0.0.1 [key=value ...]`, which waits for
# the others and then runs; on each other host, at any time before, `by_hand.sh worker 10.0.0.1 10.0.0.2` (its own address).
# RAY_AUTH_TOKEN must be the same on all hosts: any 64 hexadecimal digits.
set -euo pipefail
role=$1 head=$2
shift 2
: "${RAY_AUTH_TOKEN:?set it to the same 64 hexadecimal digits on every host}"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_USAGE_STATS_ENABLED=0 RAY_memory_monitor_refresh_ms=0

case $role in
  head)
    trap 'ray stop' EXIT
    ray start --head --node-ip-address="$head" --port="${RAY_PORT:-6379}" --include-dashboard=false
    python -m pipelinerl.launch +domain=privacy_hopqa hardware=gpu world.backend=ray \
      "world.hosts=${HOSTS:-2}" "output_dir=${RUN:-/shared/run}" "model_path=${MODEL:-/shared/models/policy}" "$@"
    ;;
  worker)
    ray start --address="$head:${RAY_PORT:-6379}" --node-ip-address="$1" --block
    ;;
  *)
    echo "by_hand.sh: $role: give head or worker" >&2
    exit 2
    ;;
esac
