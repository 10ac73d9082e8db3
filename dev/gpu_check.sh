#!/usr/bin/env bash
# Builds, tests and measures the GPU trainers on a machine with GPUs, in 9 minutes on one and on eight. It needs make,
# gcc or clang, and nvcc. It uses PyTorch and nsys where they are.
#
#   dev/gpu_check.sh OUTDIR [NAME=VALUE ...]    NAME=VALUE: for make, e.g. GPU_ARCH=90
#
# OUTDIR gets results.md, a table to commit under dev/bench/results/, and a log of each part. Every part has its own
# time limit, and none stops the others. The status is 1 if a part failed. GPU_CHECK_SECONDS=900 grants more time.
set -u
out=$(mkdir -p "${1:?OUTDIR is missing}" && cd "$1" && pwd) && cd "$(dirname "$0")/.." && shift || exit 1
export LC_ALL=C PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin"
failed=0 work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
data=(--train-data "$work/tokens.bin" --seq-len 1024)
trainer=(./train_gpt2cu "${data[@]}" --val-every 0 --sample-every 0 --seed 1)

row() { printf '| %s | %s | %d s | %s |\n' "$@" | tee -a "$out/results.md"; }

# part NAME SECONDS COMMAND ...: a row with the step of median time, without the first three, or with the last line.
# What this machine cannot do is no failure, nor is what PyTorch does.
part() {
    local limit=$((${GPU_CHECK_SECONDS:-530} - SECONDS)) start=$SECONDS status=0 verdict=FAIL text
    local cannot='matrix multiplies need|built without NCCL|memory plan: needs|failed to run command .nsys'
    log=$out/$(tr -c 'A-Za-z0-9\n' _ <<<"$1").log
    [ "$limit" -le "$2" ] || limit=$2
    [ "$limit" -ge 3 ] || { row "$1" skip 0 "no time left" && return 1; }
    timeout -k 5 "$limit" "${@:3}" </dev/null >"$log" 2>&1 || status=$?
    if [[ $1 = PyTorch* ]] || grep -qE "$cannot" "$log"; then verdict=skip; fi
    [ $status != 0 ] || verdict=ok
    [ $verdict != FAIL ] || failed=1
    text=$(sed -n 's/ | [^|]* left$//; s/^step .*| *\([0-9.]* ms |.*\)$/\1/p' "$log" | sed '1,3d; s: | :, :g' |
        sort -n | awk '{ step[NR] = $0 } END { print step[int((NR + 1) / 2)] }')
    [ $status != 124 ] || text="no end within $limit s"
    row "$1" $verdict $((SECONDS - start)) "${text:-$(tail -n 1 "$log" | tr '|' ' ')}"
    return $status
}

# train NAME SECONDS GPUS OPTIONS ...: the trainer, one process a GPU.
train() {
    local launch=("${trainer[@]}")
    # shellcheck disable=SC2016 # for the bash that starts the processes
    [ "$3" = 1 ] || launch=(bash -c 'for ((i = 0; i < $0; i++)); do "$@" --process-rank $i & ranks+=($!); done
        for rank in "${ranks[@]}"; do wait $rank || status=$?; done; exit ${status:-0}' "$3" "${trainer[@]}"
        --num-processes "$3" --nccl-init fs --nccl-fs-path "$(mktemp -d "$work/start.XXXXXX")" --start-timeout 20)
    part "$1" "$2" "${launch[@]}" "${@:4}"
}

# The machine. What nvidia-smi does not say is left open. Of a card in slices (MIG) a process sees one.
gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | head -n 1)
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
[ -z "${CUDA_VISIBLE_DEVICES:-}" ] || gpus=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)
[ "$gpus" -ge 1 ] || gpus=1
if nvidia-smi -L 2>/dev/null | grep -q '^ *MIG '; then gpus=1 gpu="a MIG slice of $gpu"; fi
{
    printf '# gpt2.c %s on %s\n\n' "$(git describe --always --dirty 2>/dev/null)" "${gpu:-a GPU without a name}"
    printf '%d GPUs, %s, %s UTC\n\n' "$gpus" "$(nvcc --version 2>/dev/null | grep release)" "$(date -u '+%F %H:%M')"
    printf '| part | verdict | time | median step, else the last line |\n|---|---|---|---|\n'
} | tee "$out/results.md"

# 8 Mi random tokens below 32768, behind the header of a shard.
{ printf '\x88\xd8\x34\x01\1\0\0\0\0\0\x80\0' && head -c 1012 /dev/zero; } >"$work/tokens.bin"
head -c 16777216 /dev/urandom | tr '\200-\377' '\000-\177' >>"$work/tokens.bin"

part "build the trainers" 90 make -s -j2 "$@" train_gpt2cu train_llama3cu
part "build the tests" 150 make -s -j3 "$@" test_gpt2cu test_llama3cu build/cuda/test_kernels
part "test_gpt2cu" 60 ./test_gpt2cu
part "test_llama3cu" 60 ./test_llama3cu
part "all terms of sums" 40 build/cuda/test_kernels terms
part "kernels" 60 build/cuda/test_kernels

same() { # HOW: the weights are those of the first run on so many GPUs
    hash=$(sed -n 's/^weights hash //p' "$log")
    [ "$hash" = "${first:=$hash}" ] || { failed=1 && row "weights on $count" FAIL 0 "$hash $1, $first before"; }
}

# Every stage of sharding makes equal weights, because each rank has one micro-batch in a step. So does what waits on
# the host.
for count in $(printf '%d\n' 1 2 4 "$gpus" | sort -nu); do
    [ "$count" -le "$gpus" ] || break
    first=""
    for stage in 0 1 2 3; do
        [ "$count" -gt 1 ] || [ $stage = 0 ] || break
        train "d12 on $count, stage $stage" 30 "$count" --init d12 -b 4 -x 8 -z $stage && same "in stage $stage"
    done
    if [ "$count" = 1 ] && train "d12 on 1, --offload all" 30 1 --init d12 -b 4 -x 8 --offload all; then
        same "with --offload"
    fi
done

# Muon on all GPUs, and on one the batches that README predicts: in bf16, then in 8 bits.
for bits in 0 1; do
    train "Muon on $gpus, --fp8 $bits" 30 "$gpus" --init d12 -b 4 -x 8 --optimizer muon -z 1 --fp8 $bits
    train "d12, batch 64, --fp8 $bits" 40 1 --init d12 -b 64 -x 20 --fp8 $bits
    train "d48, batch 16, --fp8 $bits" 40 1 --init d48 -b 16 -x 20 --fp8 $bits
done
# The batch of a Llama of 1 billion parameters that LOG.md predicts, in tokens.
for bits in 0 1; do
    trainer=(./train_llama3cu "${trainer[@]:1}")
    train "llama:1B, batch 16, --fp8 $bits" 40 1 --init llama:1B -b 16 -x 12 --fp8 $bits
done
trainer=(./train_gpt2cu "${trainer[@]:1}")
part "kernels' times by nsys" 50 nsys profile --trace cuda --stats true --output "$work/trace" \
    "${trainer[@]}" --init d12 -b 64 -x 8 && sed -n '/cuda_gpu_kern_sum/,/^\[/p' "$log" >"$out/kernels.txt"

# PyTorch with its own largest batch.
torch() {
    part "PyTorch $1, batch $2" 90 python3 train_gpt2.py --device cuda --precision autocast --compile 1 \
        "${data[@]}" --init "$1" --batch-size "$2" --val-every 0 --steps 23
}
if part "PyTorch" 20 python3 -c 'import torch; print(torch.__version__, "on", torch.cuda.get_device_name())'; then
    torch d12 128 || torch d12 64 || torch d12 32 || torch d12 16
    torch d48 32 || torch d48 16 || torch d48 8 || torch d48 4
fi
exit $failed
