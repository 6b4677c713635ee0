#!/usr/bin/env bash
#SBATCH --job-name=rlhf
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@600
#SBATCH --output=%x-%j.log
#
# Starts a Ray cluster over the nodes of this job and trains on it. From the root of the repository:
#
#   sbatch examples/cluster/slurm.sh -c examples/cluster_72b/run.toml [more flags of rlhf train]
#
# Everything after the script's name goes to rlhf train. Ten minutes before the time is up the run is asked to finish its
# step and to save; submitting the same command again goes on from there.

set -euo pipefail

port=${RAY_PORT:-6379}
start_deadline_s=${RAY_START_DEADLINE_S:-300}
here=${SLURM_SUBMIT_DIR:?run this with sbatch}/examples/cluster
cd "$SLURM_SUBMIT_DIR"

mapfile -t hosts < <(scontrol show hostnames "${SLURM_JOB_NODELIST:?run this with sbatch}")
head=${hosts[0]}
gpus=${SLURM_GPUS_ON_NODE:-8}
cpus=${SLURM_CPUS_PER_TASK:-1}
export RAY_USAGE_STATS_ENABLED=0

# A mistake in the configuration is found before anything starts on the other nodes.
rlhf train --check --resume auto "$@" --runtime.ray.address auto

# Where a token exists, `ray start --head` asks for it, but other nodes send it only if told to.
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}
if [[ $RAY_AUTH_MODE == token ]]; then ray get-auth-token --generate >/dev/null; fi

started=()
trainer=
# shellcheck disable=SC2329  # called by the trap
stop() {
    trap - EXIT TERM INT
    if [[ -n $trainer ]]; then kill -TERM "$trainer" 2>/dev/null || true; fi
    for pid in "${started[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
    wait
}
trap stop EXIT

# What a machine's own name stands for is 127.0.1.1 on many; then its first address that is IPv4 and no loopback's.
ip=$(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" bash -c 'hostname --ip-address; hostname --all-ip-addresses' |
    tr ' ' '\n' | awk '/^[0-9]+\.[0-9.]+$/ && !/^127\./ && !found { found = $1 } END { print found }')
: "${ip:?$head has no IPv4 address}"
# Since Slurm 22.05 a step does not take the job's --cpus-per-task over.
step=(--overlap --nodes=1 --ntasks=1 --cpus-per-task="$cpus")
common=(--num-cpus="$cpus" --num-gpus="$gpus" --disable-usage-stats --block)

srun "${step[@]}" --nodelist="$head" \
    ray start --head --node-ip-address="$ip" --port="$port" --include-dashboard=false "${common[@]}" &
started+=($!)
python "$here/wait_for_nodes.py" --address "$ip:$port" --nodes 1 --deadline-s "$start_deadline_s"

for host in "${hosts[@]:1}"; do
    srun "${step[@]}" --nodelist="$host" \
        ray start --address="$ip:$port" "${common[@]}" &
    started+=($!)
done
python "$here/wait_for_nodes.py" --address "$ip:$port" --nodes "${#hosts[@]}" --deadline-s "$start_deadline_s"

# The script itself runs on the first node, so the cluster's head is here. The run is a child of this shell, which passes
# Slurm's warning on: the first TERM lets the step finish and saves.
warned=
trap 'warned=1; if [[ -n $trainer ]]; then kill -TERM "$trainer" 2>/dev/null || true; fi' TERM INT
rlhf train --resume auto "$@" --runtime.ray.address "$ip:$port" &
trainer=$!
while true; do
    code=0
    wait "$trainer" || code=$?
    # A signal ends the wait, not the run, whose own code the next wait returns.
    if [[ -z $warned ]]; then break; fi
    warned=
done
trainer=
exit "$code"
