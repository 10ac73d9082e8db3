// The plan of a GPU trainer's memory in bf16, with our own attention: rows and places as llmc/trainer/plan.cuh and
// llmc/model/memory_plan.h make them, from the tables of llmc/model/gpt2.h (TABLES, in tables.js).
"use strict";

const ceilDiv = (a, b) => Math.floor((a + b - 1) / b), roundUp = (a, b) => ceilDiv(a, b) * b;

// ---- Rows ----

// The elements of the buckets that ranks share: what is outside the blocks, and a block. R ranks hold equal parts.
function planBuckets(t, dims, L, R) {
    const size = {outside: 0, block: 0};
    for (const [, where, rows, columns] of t.parameters) {
        size[where === "PER_LAYER" ? "block" : "outside"] += dims[rows] * dims[columns];
    }
    const outside = roundUp(ceilDiv(size.outside, R), t.ZERO_ALIGNMENT);
    const block = roundUp(ceilDiv(size.block, R), t.ZERO_ALIGNMENT);
    const sums = ceilDiv(outside, t.GLOBAL_NORM_SPAN) + L * ceilDiv(block, t.GLOBAL_NORM_SPAN);
    return {part: outside + L * block, slots: R * (outside + Math.min(t.ZERO_BLOCK_SLOTS, L) * block), sums};
}

// The floats of the sums over columns: the most of LayerNorm's backward, GELU's, and the biases'. C is at most 4,096.
function planSumScratch(t, N, C) {
    const all108 = 108 * Math.floor(32 / ceilDiv(C, 256)), all132 = Math.floor(all108 / 132) * 132;
    const wave = all108 * all108 >= all132 * ceilDiv(all108, 132) * 132 ? all108 : all132;
    return Math.max(Math.min(ceilDiv(N, 16), wave) * 3 * C, ceilDiv(N, t.GELU_BACKWARD_ROWS) * 4 * C,
                    ceilDiv(N, t.BIAS_ROWS) * 4 * C);
}

// Rows {name, kind, bytes, first, last} of a run {size, B, T, recompute, ranks, stage}. The model is new: its context
// is T.
function planRows(t, run) {
    const [, L, NH, C] = t.sizes.find((size) => size[0] === run.size), N = run.B * run.T, R = run.ranks;
    const dims = {DIM_NONE: 1, DIM_C: C, DIM_Q: C, DIM_QKV: 3 * C, DIM_F: 4 * C, DIM_NH: NH, DIM_maxT: run.T,
                  DIM_Vp: roundUp(t.GPT2_VOCAB_SIZE, 128)};
    const stage = R === 1 ? 0 : run.stage, buckets = planBuckets(t, dims, L, R), whole = R * buckets.part;
    const rows = [];
    const add = (name, kind, bytes, first = "FORWARD", last = "UPDATE") => {
        if (bytes > 0) { rows.push({name, kind, bytes, first: t.phases[first], last: t.phases[last]}); }
    };
    const shared = (from) => stage >= from ? buckets.part : whole;
    add("params", "parameter", 2 * shared(3));
    add("master", "optimizer", 4 * shared(1));
    add("grads", "gradient", 4 * shared(2));
    add("adam_m", "optimizer", 4 * shared(1));
    add("adam_v", "optimizer", 4 * shared(1));
    add("param_slots", "parameter", stage >= 3 ? 2 * buckets.slots : 0);
    add("grad_slots", "gradient", stage >= 2 ? 4 * buckets.slots : 0);
    for (const [name, type, copies, upTo, columns, , first, last, kind, where, held] of t.activations) {
        if (where === "ON_CPU" || held === "GATHERED") { continue; }
        const all = {LAYER: L, BOUNDARY: L + 1}[copies] ?? 1, kept = run.recompute < t.levels[upTo];
        const count = (kept ? all : 1) * (copies === "CHUNK" ? Math.min(N, t.HEAD_ROWS) : N);
        add(name, kind.toLowerCase(), count * dims[columns] * (type === "float" ? 4 : 2), first, last);
    }
    add("att_delta", "workspace", 4 * N * NH, "BACKWARD_ATTENTION", "BACKWARD_ATTENTION");
    add("sum_scratch", "workspace", 4 * planSumScratch(t, N, C), "LM_HEAD", "BACKWARD_ATTENTION");
    add("batch_0", "data", 12 * N);
    add("batch_1", "data", 12 * N);
    add("history", "data", 4 * run.T);
    add("norm_partials", "workspace", 8 * buckets.sums);
    add("loss_sum", "workspace", 8);
    add("records", "workspace", 40 * R);
    add("result", "workspace", 40);
    add("checksum", "workspace", 8);
    add("flag", "workspace", 4);
    add("cublas", "workspace", t.CUBLAS_WORKSPACE);
    return rows;
}

// ---- Places ----

// Gives each row its offset, long lives first, then large rows, and returns the total.
function planLayout(t, rows) {
    const size = (row) => roundUp(row.bytes, t.PLAN_ALIGNMENT), placed = [];
    let total = 0;
    for (const row of [...rows].sort((a, b) => b.last - b.first - (a.last - a.first) || b.bytes - a.bytes)) {
        const meets = placed.filter((other) => row.first <= other.last && other.first <= row.last);
        row.offset = 0;
        for (let moved = true; moved;) {
            moved = false;
            for (const other of meets) {
                const end = other.offset + size(other);
                if (row.offset < end && other.offset < row.offset + size(row)) { row.offset = end, moved = true; }
            }
        }
        placed.push(row);
        total = Math.max(total, row.offset + size(row));
    }
    return total;
}

// ---- The figure ----

// The options with which a trainer plans this run.
function planOptions(run) {
    return `--plan all --attention own -e ${run.size} -b ${run.B} -t ${run.T} -d ${run.B * run.T * run.ranks} ` +
        `-r ${run.recompute} -pn ${run.ranks} -z ${run.stage}`;
}

const GIB = 2 ** 30, PLAN_WIDTH = 720, PLAN_HEIGHT = 360, PLAN_LEFT = 56;
const PLAN_PHASES = ["forward", "head", "backward: MLP", "attention", "update"];

function planPicture(rows, total) {
    const width = (PLAN_WIDTH - PLAN_LEFT) / PLAN_PHASES.length, scale = PLAN_HEIGHT / total;
    const picture = svg("svg", {viewBox: `0 0 ${PLAN_WIDTH} ${PLAN_HEIGHT + 40}`, role: "img", class: "broad",
                                "aria-label": "The memory plan: phases from left to right, bytes upwards"});
    for (const row of rows) {
        const height = row.bytes * scale, x = PLAN_LEFT + row.first * width, y = PLAN_HEIGHT + 10 - row.offset * scale;
        const span = (row.last - row.first + 1) * width;
        picture.append(svg("rect", {x, y: y - height, width: span, height, class: `box ${row.kind}`},
                           svg("title", {}, `${row.name}: ${row.bytes.toLocaleString("en")} bytes`)));
        if (height >= 12) { picture.append(svgText(x + 6, y - height / 2 + 4, row.name, "small")); }
    }
    PLAN_PHASES.forEach((phase, i) => {
        picture.append(svgText(PLAN_LEFT + (i + 0.5) * width, PLAN_HEIGHT + 30, phase, "small middle"));
    });
    const step = [0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500].find((gib) => gib * 8 * GIB >= total) ?? 1000;
    for (let gib = 0; gib * GIB <= total; gib += step) {
        const y = PLAN_HEIGHT + 14 - gib * GIB * scale;
        picture.append(svgText(PLAN_LEFT - 6, y, `${+gib.toFixed(2)} GiB`, "small end"));
    }
    return picture;
}

function planFigure(t) {
    const parts = figure("plan", "The memory of one GPU: move the sliders");
    const sizes = t.sizes.filter((size) => size[3] <= 4096).sort((a, b) => a[1] * a[3] ** 2 - b[1] * b[3] ** 2);
    const names = sizes.map((size) => size[0]), powers = [1, 2, 4, 8, 16, 32, 64];
    const update = () => {
        const run = {size: size.value(), B: B.value(), T: T.value(), recompute: recompute.value(),
                     ranks: ranks.value(), stage: stage.value()};
        const rows = planRows(t, run), total = planLayout(t, rows), sums = {};
        for (const row of rows) { sums[row.kind] = (sums[row.kind] ?? 0) + row.bytes; }
        const unshared = Object.values(sums).reduce((a, b) => a + b);
        parts.picture.replaceChildren(planPicture(rows, total));
        parts.words.replaceChildren(
            element("b", {}, `${total.toLocaleString("en")} bytes, ${(total / GIB).toFixed(2)} GiB. `),
            `Without sharing: ${(unshared / GIB).toFixed(2)} GiB. `,
            ...Object.entries(sums).map(([kind, bytes]) =>
                element("span", {class: `key ${kind}`}, `${kind} ${(bytes / GIB).toFixed(2)}`)),
            element("code", {}, `./train_gpt2cu ${planOptions(run)}`));
    };
    const size = slider(parts.controls, "model", names, "d12", update);
    const B = slider(parts.controls, "sequences of a micro-batch, B", powers, 16, update);
    const T = slider(parts.controls, "tokens of a sequence, T", powers.map((n) => 128 * n), 1024, update);
    const recompute = slider(parts.controls, "--recompute", [0, 1, 2, 3], 0, update);
    const ranks = slider(parts.controls, "GPUs", powers, 1, update);
    const stage = slider(parts.controls, "--zero-stage", [0, 1, 2, 3], 1, update);
    update();
}

if (typeof document !== "undefined") { planFigure(TABLES); }
