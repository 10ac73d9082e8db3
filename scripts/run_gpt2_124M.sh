#!/usr/bin/env bash
# Reproduces GPT-2 124M (12 layers, 768 channels) from 10 billion tokens of FineWeb.
#
#   scripts/run_gpt2_124M.sh                     on all GPUs of this machine
#   SMOKE=1 scripts/run_gpt2_124M.sh             all of it in small, on the CPU, in about a minute
#
# To expect of 18,865 steps of 524,288 (9.9 billion tokens, 7.9e+18 FLOPs). The times are predicted
# for 64 sequences at once on each GPU; validation and saving come on top.
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                     14.0 hours        1.8 hours        5.0 hours        0.6 hours   predicted
#   cost                     21 dollars       21 dollars       13 dollars       13 dollars   predicted
#   validation loss      near 3.28        published: 3.2847 by llm.c's trainer (README of modded-nanogpt)
#   HellaSwag            29.9 %           published: llm.c's discussion 481, 1.5 hours on 8 A100
#   to beat              3.2722           published: llm.c's later run, 10.26 billion tokens on 8 H100, 140 ms a step
#   OpenAI's model       3.4250, 29.4 %   published: llm.c's figures, on the same validation data
#
# --optimizer muon --muon-scale rms behind the name trains the matrices with Muon (doc/muon.md), in the same steps with
# AdamW's rate and decay. Published: the loss above after 65 to 75 % of the tokens (Jordan et al. 2024).
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

: "${STEPS:=18865}" # of 524,288 tokens
begin "$@" # counts the GPUs, and refuses wrong settings and a second start in OUT_DIR
: "${SHARDS:=$((STEPS / 190 + 1))}" # of 100 million tokens each, for training (20 GB of disk)

command=("${launch[@]}" "$TRAINER" # one process for each GPU; multi_node/ sets LAUNCH for several machines
    --train-data "$DATA_DIR/fineweb10B/fineweb_train_*.bin"
    --val-data "$DATA_DIR/fineweb10B/fineweb_val_*.bin" --val-every 250 --val-sequences 10240
    --hellaswag 1 --hellaswag-data "$DATA_DIR/hellaswag/hellaswag_val.bin"
    --tokenizer "$DATA_DIR/gpt2_tokenizer.bin" --sample-every 5000
    --init d12 --seq-len 1024 --total-batch 524288 --auto 1 # which chooses the micro-batch
    --steps "$STEPS" --lr 6e-4 --schedule cosine --warmup 700 --final-lr-frac 0 --weight-decay 0.1
    --out-dir "$OUT_DIR" --checkpoint-every 500 --keep 3 --keep-major 10000 --patience 10
    --zero-stage 1 --start-timeout 600 # several GPUs share the optimizer's state
    "${SMALL[@]}" "$@") # SMOKE's sizes, and what stands behind this script's name. The last of two options counts

build && plan "${command[@]}" # what does not fit is refused before hours go into the data
gpt2_data fineweb10B/fineweb --version 10B # by the programs of dev/data; what is there stays
keep_training "${command[@]}" # with --resume, and again after a failure
finish "expected: near 3.28 and 0.299; to beat: 3.2722"
