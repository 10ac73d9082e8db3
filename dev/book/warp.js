// What a warp touches: sectors of device memory, and banks of shared memory.
"use strict";

const LANES = 32, SECTOR = 32, BANKS = 32;

// Lane l takes `bytes` bytes from byte start + l * stride * bytes on. Returns the sectors, the part of their bytes that
// is used, and the wavefronts of shared memory: as many lanes at a time as take 128 bytes. A bank gives a word in each.
function warpTouches(bytes, stride, start) {
    const first = (lane) => start + lane * stride * bytes, sectors = new Set(), used = new Set();
    const lanesAtOnce = Math.min(LANES, 128 / bytes), banks = Array.from({length: BANKS}, () => []);
    let wavefronts = 0;
    for (let lane = 0; lane < LANES; lane += lanesAtOnce) {
        const words = Array.from({length: BANKS}, () => new Set());
        for (let l = lane; l < lane + lanesAtOnce; l++) {
            for (let byte = first(l); byte < first(l) + bytes; byte++) {
                sectors.add(Math.floor(byte / SECTOR)), used.add(byte);
                words[Math.floor(byte / 4) % BANKS].add(Math.floor(byte / 4));
            }
        }
        words.forEach((of, bank) => banks[bank].push(...of));
        wavefronts += Math.max(...words.map((of) => of.size));
    }
    return {sectors: [...sectors], used: used.size / (SECTOR * sectors.size), bytes: used, banks, wavefronts};
}

// ---- The figure ----

function warpPicture(touched) {
    const shown = Math.min(Math.max(...touched.sectors) + 1, 128), rows = Math.ceil(shown / 16), top = 22;
    const deepest = Math.min(Math.max(...touched.banks.map((words) => words.length)), 32), below = top + rows * 18 + 44;
    const picture = svg("svg", {viewBox: `0 0 680 ${below + deepest * 9 + 26}`, role: "img", class: "broad",
                                "aria-label": "The sectors and the banks that the warp touches"});
    const title = `Device memory: sectors of 32 bytes${shown === 128 ? ", the first 128" : ""}`;
    picture.append(svgText(4, 14, title, "small"));
    for (let s = 0; s < shown; s++) {
        const x = 4 + (s % 16) * 42, y = top + Math.floor(s / 16) * 18;
        const name = `box ${touched.sectors.includes(s) ? "came" : "still"}`;
        picture.append(svg("rect", {x, y, width: 40, height: 14, class: name}));
        for (let word = 0; word < 8; word++) {
            if (touched.bytes.has(s * SECTOR + word * 4) || touched.bytes.has(s * SECTOR + word * 4 + 2)) {
                picture.append(svg("rect", {x: x + word * 5, y, width: 5, height: 14, class: "used"}));
            }
        }
    }
    picture.append(svgText(4, below - 10, "Shared memory: the words that each of the 32 banks must give", "small"));
    touched.banks.forEach((words, bank) => {
        for (let i = 0; i < Math.max(Math.min(words.length, 32), 1); i++) {
            picture.append(svg("rect", {x: 4 + bank * 21, y: below + i * 9, width: 19, height: 8,
                                        class: `box ${words.length === 0 ? "still" : i === 0 ? "done" : "came"}`}));
        }
        picture.append(svgText(13 + bank * 21, below + deepest * 9 + 14, String(bank), "tiny middle"));
    });
    return picture;
}

function warpFigure() {
    const parts = figure("warp", "What 32 lanes touch: change the stride");
    const show = () => {
        const touched = warpTouches(bytes.value(), stride.value(), start.value());
        parts.picture.replaceChildren(warpPicture(touched));
        parts.words.replaceChildren(
            element("b", {}, `Sectors: ${touched.sectors.length}, ${+(100 * touched.used).toFixed(1)} % used. ` +
                             `Wavefronts: ${touched.wavefronts}. `),
            "Above, a sector that moves is orange, and the bytes that a lane asked for are green. Below, the first " +
            "word of a bank is green, and the words that wait for it are orange.");
    };
    const bytes = slider(parts.controls, "bytes of a lane", [2, 4, 8, 16], 4, show);
    const stride = slider(parts.controls, "stride, in these", Array.from({length: 34}, (_, i) => i), 1, show);
    const start = slider(parts.controls, "first byte", [0, 4, 8, 16, 32], 0, show);
    show();
}

if (typeof document !== "undefined") { warpFigure(); }
