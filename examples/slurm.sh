#!/bin/bash
# Eight nodes on two machines. Run: sbatch examples/slurm.sh train.py
#SBATCH --job-name=dpwa
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --time=01:00:00
#SBATCH --no-kill  # the job continues if a machine fails
set -eu
export OMP_NUM_THREADS="$SLURM_CPUS_PER_TASK"
# The other tasks continue if a task dies. Newer versions of srun do not inherit --cpus-per-task.
srun --no-kill --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_PER_TASK" python "$@"
