#!/usr/bin/env bash
# Everything that needs a GPU, in one go: the marked tests, then the benches. Each part has its own
# time limit, so that one that hangs does not take the others along. Usage: gpu_session.sh OUT
set -u
out=${1:?usage: gpu_session.sh OUT}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=
part() { local limit=$1 name=$2; shift 2; echo "=== $name"; timeout "$limit" "$@" 2>&1 | tee "$out/$name.log" | tail -n 40; }
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
part 150 gpu-tests python3 -m pytest -q -m gpu -p no:cacheprovider core/tests plugins/sgld-wan/tests
part 100 dit python3 bench/dit.py --json "$out/dit.json"
part 320 generate python3 bench/generate.py --output "$out"
