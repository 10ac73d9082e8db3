#!/usr/bin/env bash
# Reproduces GPT-3 125M (12 layers, 768 channels, context 2048) from 100 billion tokens of FineWeb, read three times.
#
#   scripts/run_gpt3_125M.sh                     on all GPUs of this machine
#   SMOKE=1 scripts/run_gpt3_125M.sh             all of it in small, on the CPU, in about a minute
#
# To expect of 572,204 steps of 524,288 (300 billion tokens, 2.6e+20 FLOPs). The times are predicted
# for 32 sequences at once on each GPU; validation and saving come on top.
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                    511.4 hours       64.1 hours      184.9 hours       23.2 hours   predicted
#   cost                    767 dollars      770 dollars      462 dollars      465 dollars   predicted
#   validation loss      unknown          nothing published was found on FineWeb
#   HellaSwag            33.7 %           published: GPT-3 paper, table H.1, no examples given, on the paper's own data
#
# Batch, rate, warm-up (375 million tokens), final rate and number of tokens are the paper's (table 2.1, appendix B).
# But the rate falls until the end, and each token sees all before it in every layer.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

: "${STEPS:=572204}" # of 524,288 tokens
begin "$@" # counts the GPUs, and refuses wrong settings and a second start in OUT_DIR
: "${SHARDS:=1000}" # of 100 million tokens each, for training (200 GB of disk)

command=("${launch[@]}" "$TRAINER" # one process for each GPU; multi_node/ sets LAUNCH for several machines
    --train-data "$DATA_DIR/fineweb100B/fineweb_train_*.bin"
    --val-data "$DATA_DIR/fineweb100B/fineweb_val_*.bin" --val-every 250 --val-sequences 5120
    --hellaswag 1 --hellaswag-data "$DATA_DIR/hellaswag/hellaswag_val.bin"
    --tokenizer "$DATA_DIR/gpt2_tokenizer.bin" --sample-every 5000
    --init gpt3:c768 --seq-len 2048 --total-batch 524288 --auto 1 # which chooses the micro-batch
    --steps "$STEPS" --lr 6e-4 --schedule cosine --warmup 715 --final-lr-frac 0.1 --weight-decay 0.1
    --out-dir "$OUT_DIR" --checkpoint-every 500 --keep 3 --keep-major 50000 --patience 10
    --zero-stage 1 --start-timeout 600 # several GPUs share the optimizer's state
    "${SMALL[@]}" "$@") # SMOKE's sizes, and what stands behind this script's name. The last of two options counts

build && plan "${command[@]}" # what does not fit is refused before hours go into the data
gpt2_data fineweb100B/fineweb --version 100B # by the programs of dev/data; what is there stays
keep_training "${command[@]}" # with --resume, and again after a failure
finish "expected: HellaSwag 0.337, if FineWeb serves as well as the paper's data"
