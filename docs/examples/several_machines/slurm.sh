#!/bin/bash
# A run over several hosts under Slurm: sbatch slurm.sh [key=value ...]
# One task per host starts Ray there; the launcher runs on the first host and Ray ends with it everywhere.
#SBATCH --job-name=pipelinerl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --output=pipelinerl-%j.log
set -euo pipefail

run=${RUN:-/shared/run}                  # seen by every host under this path, as are the environment and the model
source "${VENV:-/shared/venv}/bin/activate"

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
# Whoever reaches Ray's port may run code. A token that every host has from the start.
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
export RAY_USAGE_STATS_ENABLED=0 RAY_memory_monitor_refresh_ms=0
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=600   # 30 s are short for a shared environment on a cold file system
unset WORLD_SIZE RANK MASTER_ADDR
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-}   # srun does not inherit --cpus-per-task since Slurm 22.05

# The status of srun is not always the run's: in a container without an init it was 1 after a run that succeeded.
status="$run.status-$SLURM_JOB_ID"
srun --kill-on-bad-exit=0 ray symmetric-run \
  --address "$head:${RAY_PORT:-6379}" --min-nodes "$SLURM_JOB_NUM_NODES" -- \
  bash -c '"$@"; code=$?; echo "$code" > "$0"; exit "$code"' "$status" \
  python -m pipelinerl.launch +domain=privacy_hopqa hardware=gpu world.backend=ray \
  "output_dir=$run" "model_path=${MODEL:-/shared/models/policy}" "$@" || true

test "$(cat "$status")" = 0
