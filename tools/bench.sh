#!/usr/bin/env bash
# bench.sh BUILD REPORTS: the benchmarks behind `make bench`. Peers that are Python programs are run by the Python that has
# torch (build/setup/torch_python); where libtorch came without one they are left out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
lockstep=$1/bin/lockstep reports=$2
python=$(cat build/setup/torch_python 2>/dev/null || true)
collectives=gloo,mpi training=plain,torch launchers=(--against torchrun --python "$python")
if [ -z "$python" ]; then
  echo "bench: the libtorch that is used has no Python: gloo, torch's DistributedDataParallel and torchrun are left out"
  collectives=mpi training=plain launchers=()
fi
mkdir -p "$reports"
"$lockstep" bench all_reduce --memory resident,foreign --against $collectives \
  --json "$reports/all_reduce.json" --plot "$reports/all_reduce.svg"
"$lockstep" bench ddp --model mlp-1024x8,mlp-2048x8,mlp-512x4,resnet18,gpt-small --against $training \
  --json "$reports/ddp.json" --plot "$reports/ddp.svg"
"$lockstep" bench store --clients 1,16,256 --against torch --json "$reports/store.json"
"$lockstep" bench launch "${launchers[@]}" --json "$reports/launch.json"
