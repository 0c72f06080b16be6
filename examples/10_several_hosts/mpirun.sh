#!/bin/sh
# 10: the same under mpirun (Open MPI). It starts the ranks; they do not use MPI.
#
#   ./mpirun.sh HOST:RANKS[,HOST:RANKS...] PROGRAM [ARGUMENT...]
#
# The first host is where the ranks meet. Without the secret (LOCKSTEP_SECRET_FILE, seen by every host) only ranks of one
# host may meet. MPIRUN_OPTIONS are further words for mpirun.
set -eu
if [ $# -lt 2 ]; then
  echo "usage: mpirun.sh HOST:RANKS[,HOST:RANKS...] PROGRAM [ARGUMENT...]" >&2
  exit 2
fi
where=$1
shift
MASTER_ADDR=${where%%:*}
MASTER_PORT=${MASTER_PORT:-29500}
export MASTER_ADDR MASTER_PORT
ranks=0
for host in $(echo "$where" | tr ',' ' '); do
  ranks=$((ranks + ${host##*:}))
done
# shellcheck disable=SC2086  # words on purpose
exec mpirun ${MPIRUN_OPTIONS-} --host "$where" -x MASTER_ADDR -x MASTER_PORT \
  ${LOCKSTEP_SECRET_FILE+-x LOCKSTEP_SECRET_FILE} -np "$ranks" "$@"
