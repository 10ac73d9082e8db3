#!/usr/bin/env bash
# Trains Llama 3's 8B (32 layers, 4096 channels) from scratch on 84 billion tokens of FineWeb-Edu, on a grid of GPUs.
#
#   scripts/run_llama_8B.sh                     on all GPUs of this machine, 8 or so
#   SMOKE=1 scripts/run_llama_8B.sh             all of it in small, on the CPU, in about a minute
#   GPUS=64 PLAN=1 scripts/run_llama_8B.sh      the trainer's plan for 64 GPUs and the whole command; no run
#
# scripts/multi_node/ starts it on eight machines: HOSTS="node1 ..." RECIPE=scripts/run_llama_8B.sh run_mpi.sh
#
# To expect of 20,000 steps of 4,194,304 (83.9 billion tokens, 4.3e+21 FLOPs). The times are predicted
# for 1 sequence at once on each GPU; validation and saving come on top.
#
#                        8 x A100 80 GB  64 x A100 80 GB   8 x H100 80 GB  64 x H100 80 GB
#   time                    906.7 hours      116.0 hours      309.4 hours       38.5 hours   predicted
#   cost                 10,881 dollars   11,136 dollars    6,188 dollars    6,164 dollars   predicted
#   validation loss      unknown          nothing published was found on FineWeb-Edu with these tokens
#   HellaSwag            above 48.9 %     published: GPT-2 1558M, 25 billion tokens of it (llm.c's discussion 677)
#
# Published (Llama 3's report, Dubey et al. 2024): rate 3e-4 for 8B; for 405B a cosine that falls to a hundredth, a
# warm-up of 8,000 of 1,200,000 steps, and 4 million tokens in the first ones. Ours: a warm-up of 500 steps; decay 0.1;
# sequences of 8,192 tokens from the start, with attention across their documents; FineWeb-Edu alone.
#
# Disk: 360 GB of data, 290 GB more while they are made, and 113 GB for each checkpoint.
set -eu
cd "$(dirname "$0")/.."
[ "${SMOKE:-0}" = 0 ] || : "${GPUS:=4}" # a grid of 2 x 2
. scripts/common.sh

: "${STEPS:=20000}" # of 4,194,304 tokens
begin "$@" # counts the GPUs, and refuses wrong settings and a second start in OUT_DIR
: "${SHARDS:=$((STEPS / 150 + 1))}" # files of text, of about 0.7 billion tokens each; there are 140

# ---- The grid. What it leaves is data parallel. doc/several_gpus.md compares grids ----
grid="--tp 2" # 8: NVLink joins the two GPUs that share a layer. The plan says whether it fits another number of GPUs
[ "$GPUS" != 64 ] || grid="--pp 2 --pp-schedule interleaved --pp-chunks 4" # 64: two stages send each other little
[ "$GPUS" != 4 ] || grid="--pp 2 --tp 2"
if [ "$SMOKE" = 1 ]; then SMALL+=(--layers 2 --heads 2 --kv-heads 2 --channels 32) EMU_NCCL_FAULT=die@1:130; fi

# shellcheck disable=SC2206 # grid is words
command=("${launch[@]}" "$TRAINER" # one process for each GPU; multi_node/ sets LAUNCH for several machines
    --train-data "$DATA_DIR/llama3_edu100B/edu_fineweb_train_*.bin"
    --val-data "$DATA_DIR/llama3_edu100B/edu_fineweb_val_*.bin" --val-every 250 --val-sequences 1280
    --hellaswag 1 --hellaswag-data "$DATA_DIR/llama3_hellaswag/hellaswag_val.bin"
    --tokenizer "$DATA_DIR/llama3_tokenizer.bin" --sample-every 1000
    --init llama:8B --seq-len 8192 --total-batch 4194304 --batch-size 1 $grid
    --steps "$STEPS" --lr 3e-4 --schedule cosine --warmup 500 --final-lr-frac 0.01 --weight-decay 0.1
    --out-dir "$OUT_DIR" --checkpoint-every 250 --keep 2 --keep-major 10000 --patience 10
    --zero-stage 1 --start-timeout 600 # ranks with equal parts of the model share the optimizer's state
    "${SMALL[@]}" "$@") # SMOKE's sizes, and what stands behind this script's name. The last of two options counts

build && plan "${command[@]}" # what does not fit is refused before hours go into the data
llama_data meta-llama/Llama-3.2-1B llama3 llama3_edu100B --version 100B # 1B has its tokenizer
keep_training "${command[@]}" # with --resume, and again after a failure
finish "expected: HellaSwag above 0.489"
