#!/usr/bin/env bash
# Reproduces GPT-2 350M (24 layers, 1024 channels) from the first 31 billion of FineWeb's 100 billion tokens.
#
#   scripts/run_gpt2_350M.sh                     on all GPUs of this machine
#   SMOKE=1 scripts/run_gpt2_350M.sh             all of it in small, on the CPU, in about a minute
#
# To expect of 60,000 steps of 524,288 (31.5 billion tokens, 7.1e+19 FLOPs). The times are predicted
# for 64 sequences at once on each GPU; validation and saving come on top.
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                    121.7 hours       15.2 hours       42.0 hours        5.3 hours   predicted
#   cost                    182 dollars      183 dollars      105 dollars      105 dollars   predicted
#   validation loss      unknown          nothing published was found for these settings, which are llm.c's
#   HellaSwag            unknown
#   OpenAI's model       3.0831, 37.5 %   published: llm.c's figures, on the same validation data
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

: "${STEPS:=60000}" # of 524,288 tokens
begin "$@" # counts the GPUs, and refuses wrong settings and a second start in OUT_DIR
: "${SHARDS:=$((STEPS / 190 + 1))}" # of 100 million tokens each, for training (63 GB of disk)

command=("${launch[@]}" "$TRAINER" # one process for each GPU; multi_node/ sets LAUNCH for several machines
    --train-data "$DATA_DIR/fineweb100B/fineweb_train_*.bin"
    --val-data "$DATA_DIR/fineweb100B/fineweb_val_*.bin" --val-every 250 --val-sequences 10240
    --hellaswag 1 --hellaswag-data "$DATA_DIR/hellaswag/hellaswag_val.bin"
    --tokenizer "$DATA_DIR/gpt2_tokenizer.bin" --sample-every 5000
    --init d24 --seq-len 1024 --total-batch 524288 --auto 1 # which chooses the micro-batch
    --steps "$STEPS" --lr 3e-4 --schedule cosine --warmup 700 --final-lr-frac 0 --weight-decay 0.1
    --out-dir "$OUT_DIR" --checkpoint-every 500 --keep 3 --keep-major 10000 --patience 10
    --zero-stage 1 --start-timeout 600 # several GPUs share the optimizer's state
    "${SMALL[@]}" "$@") # SMOKE's sizes, and what stands behind this script's name. The last of two options counts

build && plan "${command[@]}" # what does not fit is refused before hours go into the data
gpt2_data fineweb100B/fineweb --version 100B # by the programs of dev/data; what is there stays
keep_training "${command[@]}" # with --resume, and again after a failure
finish "OpenAI's model: 3.0831 and 0.375"
