// An all-reduce by a ring, turn by turn: a reduce-scatter, then an all-gather.
"use strict";

// The states of an all-reduce over R ranks. held[r][p]: a bit for each rank whose term rank r's part p has. sends: what
// each rank passes to the next one in the turn that leads to this state.
function ringStates(R) {
    const part = (i) => (i % R + R) % R;
    let held = Array.from({length: R}, (_, r) => Array(R).fill(2 ** r));
    const states = [{held, sends: [], half: "at the start", turn: 0}];
    for (const [half, first] of [["reduce-scatter", -1], ["all-gather", 0]]) {
        for (let turn = 0; turn < R - 1; turn++) {
            const next = held.map((parts) => [...parts]), sends = [];
            for (let r = 0; r < R; r++) {
                const p = part(r + first - turn), to = part(r + 1);
                next[to][p] = first < 0 ? held[to][p] | held[r][p] : held[r][p];
                sends.push({from: r, to, part: p});
            }
            held = next;
            states.push({held, sends, half, turn: turn + 1});
        }
    }
    return states;
}

// ---- The figure ----

const RING_CELL = 58, RING_TOP = 30, RING_LEFT = 64;

function ringPicture(state, R) {
    const width = RING_LEFT + RING_CELL * R + 70, height = RING_TOP + 44 * R + 8, all = 2 ** R - 1;
    const picture = svg("svg", {viewBox: `0 0 ${width} ${height}`, style: `max-width: ${width}px`, role: "img",
                                "aria-label": "Ranks from top to bottom, their parts of the array from left to right"});
    state.held.forEach((parts, r) => {
        const y = RING_TOP + 44 * r, sent = state.sends.find((send) => send.from === r);
        picture.append(svgText(RING_LEFT - 10, y + 24, `rank ${r}`, "end"));
        parts.forEach((mask, p) => {
            const x = RING_LEFT + RING_CELL * p;
            const came = state.sends.some((send) => send.to === r && send.part === p);
            const name = `box ${mask === all ? "done" : came ? "came" : "still"}${came ? " fresh" : ""}`;
            const terms = parts.map((_, k) => mask & 2 ** k ? k : "·").join("");
            picture.append(svg("rect", {x, y, width: RING_CELL - 4, height: 36, rx: 4, class: name}),
                           svgText(x + (RING_CELL - 4) / 2, y + 23, terms, "small middle mono"));
        });
        if (sent === undefined) { return; }
        picture.append(svgText(RING_LEFT + RING_CELL * R + 2, y + 24, `${sent.part} → ${sent.to}`, "small"));
    });
    for (let p = 0; p < R; p++) {
        picture.append(svgText(RING_LEFT + RING_CELL * p + (RING_CELL - 4) / 2, 20, `part ${p}`, "small middle"));
    }
    return picture;
}

function ringFigure() {
    const parts = figure("ring", "An all-reduce by a ring: step through it");
    let at = 0, timer = null;
    const show = () => {
        const R = ranks.value(), states = ringStates(R);
        at = Math.min(Math.max(at, 0), states.length - 1);
        const state = states[at];
        parts.picture.replaceChildren(ringPicture(state, R));
        parts.words.textContent = (at === 0 ? "At the start rank r has only its own terms. "
            : `Turn ${state.turn} of ${R - 1} of the ${state.half}. `) +
            `Each rank has sent ${at} of ${2 * (R - 1)} parts, ${(at / R).toFixed(2)} of an array. ` +
            "Digits name the ranks whose terms are in a sum. A green sum has all terms. A sum with an orange edge " +
            "has just come.";
        if (at === states.length - 1) { stop(); }
    };
    const stop = () => { clearInterval(timer), timer = null, play.textContent = "Play"; };
    const ranks = slider(parts.controls, "ranks", [2, 3, 4, 5, 6, 7, 8], 4, () => { at = 0, show(); });
    button(parts.controls, "← Back", () => { stop(), at--, show(); });
    button(parts.controls, "Next →", () => { stop(), at++, show(); });
    const play = button(parts.controls, "Play", () => {
        if (timer !== null) { return stop(); }
        if (at === 2 * (ranks.value() - 1)) { at = 0; }
        play.textContent = "Stop", timer = setInterval(() => { at++, show(); }, 900);
    });
    show();
}

if (typeof document !== "undefined") { ringFigure(); }
