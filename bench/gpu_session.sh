#!/usr/bin/env bash
# What needs a GPU, in one go: the marked tests, then benches and a run of the command line. Each
# part has a time limit of its own, so that one that hangs does not take the others along.
# Usage: gpu_session.sh OUT [PART ...]   parts: tests dit wan images cli
set -u
out=${1:?usage: gpu_session.sh OUT [PART ...]}
shift
parts=${*:-tests dit wan images cli}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=
part() {
  local limit=$1 name=$2
  shift 2
  case " $parts " in *" $name "*) ;; *) return 0 ;; esac
  echo "=== $name"
  timeout "$limit" "$@" 2>&1 | tee "$out/$name.log" | tail -n 30
}
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
part 200 tests python3 -m pytest -q -m gpu -p no:cacheprovider core/tests plugins \
  --ignore-glob='*/test_server_*' --ignore-glob='*/test_jobs_*'
part 100 dit python3 bench/dit.py --json "$out/dit.json"
part 320 wan python3 bench/generate.py --output "$out"
part 250 images python3 bench/images.py --all --output "$out"
part 150 cli python3 -m sgld generate --model-path config:wan2.1-t2v-1.3b --load-format dummy \
  --prompt "a red kite over the sea" --size 832x480 --num-frames 81 --num-inference-steps 50 \
  --seed 1 --output-path "$out" --output-file-name wan-1.3b-dummy.mp4
