#!/usr/bin/env bash
#
# Runs rlhf train as a job of a Ray cluster that is there. From the root of the repository, which has to be at the same path
# on every machine (a shared file system):
#
#   RAY_API_SERVER_ADDRESS=http://HEAD:8265 examples/cluster/submit.sh -c examples/hybrid_7b/run.toml [more flags]
#
# The job goes on when this terminal is closed; `ray job logs -f ID` shows it again. `ray job stop ID` asks the run to finish its
# step and to save, but kills it after 3 seconds, unless the cluster was started with a larger RAY_JOB_STOP_WAIT_TIME_S. The
# same command goes on from the newest checkpoint.

set -euo pipefail

: "${RAY_API_SERVER_ADDRESS:?the address of the head node, such as http://10.0.0.1:8265}"

# A mistake in the configuration is found here, in this terminal.
rlhf train --check --resume auto "$@" --runtime ray

# No working directory is uploaded: data, models and checkpoints are on the shared file system. Inside the job RAY_ADDRESS
# is set, so the run finds its cluster without an address. PATH is that of the `ray start` of the node; where it has no
# rlhf, the one of this terminal is taken.
# shellcheck disable=SC2016  # the inner shell expands these
exec ray job submit --entrypoint-num-cpus 1 -- \
    bash -c 'cd "$1" && rlhf=$(command -v rlhf || echo "$2") && shift 2 && exec "$rlhf" train --resume auto "$@" --runtime ray' \
    rlhf "$PWD" "$(command -v rlhf)" "$@"
