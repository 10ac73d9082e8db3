#!/usr/bin/env bash
# Reproduces GPT-2 1558M (48 layers, 1600 channels) from the first 34 billion of FineWeb-Edu's 100 billion tokens.
#
#   scripts/run_gpt2_1558M.sh                    on all GPUs of this machine
#   SMOKE=1 scripts/run_gpt2_1558M.sh            all of it in small, on the CPU, in about a minute
#
# To expect of 32,000 steps of 1,048,576 (33.6 billion tokens, 3.3e+20 FLOPs). The times are predicted
# for 16 sequences at once on each GPU; validation and saving come on top.
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                    533.3 hours       66.7 hours      181.3 hours       22.7 hours   predicted
#   cost                    800 dollars      801 dollars      453 dollars      454 dollars   predicted
#   validation loss      unknown          nothing published was found on FineWeb-Edu, for OpenAI's model neither
#   HellaSwag            above 48.9 %     published: llm.c's discussion 677, near step 25,000; 24 hours on 8 H100
#   OpenAI's model       48.9 %           published: llm.c's figure
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

: "${STEPS:=32000}" # of 1,048,576 tokens
begin "$@" # counts the GPUs, and refuses wrong settings and a second start in OUT_DIR
: "${SHARDS:=$((STEPS / 95 + 1))}" # of 100 million tokens each, for training (67 GB of disk)

command=("${launch[@]}" "$TRAINER" # one process for each GPU; multi_node/ sets LAUNCH for several machines
    --train-data "$DATA_DIR/edu_fineweb100B/edu_fineweb_train_*.bin"
    --val-data "$DATA_DIR/edu_fineweb100B/edu_fineweb_val_*.bin" --val-every 250 --val-sequences 10240
    --hellaswag 1 --hellaswag-data "$DATA_DIR/hellaswag/hellaswag_val.bin"
    --tokenizer "$DATA_DIR/gpt2_tokenizer.bin" --sample-every 5000
    --init d48 --seq-len 1024 --total-batch 1048576 --auto 1 # which chooses the micro-batch
    --steps "$STEPS" --lr 6e-4 --schedule cosine --warmup 700 --final-lr-frac 0.1 --weight-decay 0.1
    --out-dir "$OUT_DIR" --checkpoint-every 500 --keep 3 --keep-major 10000 --patience 10
    --zero-stage 1 --start-timeout 600 # several GPUs share the optimizer's state
    "${SMALL[@]}" "$@") # SMOKE's sizes, and what stands behind this script's name. The last of two options counts

build && plan "${command[@]}" # what does not fit is refused before hours go into the data
gpt2_data edu_fineweb100B/edu_fineweb --type edu --version 100B # by the programs of dev/data; what is there stays
keep_training "${command[@]}" # with --resume, and again after a failure
finish "expected: HellaSwag above 0.489"
