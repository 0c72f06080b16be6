#!/bin/sh
# 10: a program on several hosts, by Lockstep's own launcher. Start it on every host, in any order:
#
#   lockstep secret job.secret                    # once; then copy it to every host, for your user alone
#   ./lockstep_run.sh HOST:PORT HOSTS RANKS PROGRAM [ARGUMENT...]
#
# HOST:PORT is an address of one of the hosts that the others can reach, HOSTS how many there are, RANKS how many ranks
# this one has. The command `lockstep` is found by PATH, the secret by LOCKSTEP_SECRET_FILE.
set -eu
if [ $# -lt 4 ]; then
  echo "usage: lockstep_run.sh HOST:PORT HOSTS RANKS PROGRAM [ARGUMENT...]" >&2
  exit 2
fi
endpoint=$1 hosts=$2 ranks=$3
shift 3
exec lockstep run --nnodes "$hosts" --nproc "$ranks" --rdzv-endpoint "$endpoint" \
  --secret-file "${LOCKSTEP_SECRET_FILE:-job.secret}" "$@"
