#!/usr/bin/env bash
# Reproduces GPT-2 774M (36 layers, 1280 channels) from 100 billion tokens of FineWeb, read one and a half times.
#
#   scripts/run_gpt2_774M.sh                     on all GPUs of this machine
#   SMOKE=1 scripts/run_gpt2_774M.sh             all of it in small, on the CPU, in about a minute
#
# To expect of 286,102 steps of 524,288 (150 billion tokens, 7.4e+20 FLOPs). The times are predicted
# for 32 sequences at once on each GPU; validation and saving come on top.
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                  1,192.4 hours      149.3 hours      431.8 hours       54.2 hours   predicted
#   cost                  1,789 dollars    1,792 dollars    1,079 dollars    1,083 dollars   predicted
#   validation loss      unknown          nothing published was found for these settings, which are llm.c's
#   HellaSwag            unknown          (discussion 580: some 6 days on 8 A100)
#   OpenAI's model       3.0006, 43.2 %   published: llm.c's figures, on the same validation data
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

: "${STEPS:=286102}" # of 524,288 tokens
begin "$@" # counts the GPUs, and refuses wrong settings and a second start in OUT_DIR
: "${SHARDS:=1000}" # of 100 million tokens each, for training (200 GB of disk)

command=("${launch[@]}" "$TRAINER" # one process for each GPU; multi_node/ sets LAUNCH for several machines
    --train-data "$DATA_DIR/fineweb100B/fineweb_train_*.bin"
    --val-data "$DATA_DIR/fineweb100B/fineweb_val_*.bin" --val-every 250 --val-sequences 10240
    --hellaswag 1 --hellaswag-data "$DATA_DIR/hellaswag/hellaswag_val.bin"
    --tokenizer "$DATA_DIR/gpt2_tokenizer.bin" --sample-every 5000
    --init d36 --seq-len 1024 --total-batch 524288 --auto 1 # which chooses the micro-batch
    --steps "$STEPS" --lr 2.5e-4 --schedule cosine --warmup 700 --final-lr-frac 0 --weight-decay 0.1
    --out-dir "$OUT_DIR" --checkpoint-every 500 --keep 3 --keep-major 50000 --patience 10
    --zero-stage 1 --start-timeout 600 # several GPUs share the optimizer's state
    "${SMALL[@]}" "$@") # SMOKE's sizes, and what stands behind this script's name. The last of two options counts

build && plan "${command[@]}" # what does not fit is refused before hours go into the data
gpt2_data fineweb100B/fineweb --version 100B # by the programs of dev/data; what is there stays
keep_training "${command[@]}" # with --resume, and again after a failure
finish "OpenAI's model: 3.0006 and 0.432"
